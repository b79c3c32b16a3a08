"""Turns the messages of a chat into one prompt by the model's own Jinja template.

Knows nothing of ids. Templates come with model files, so they run in a sandbox that cannot reach
Python objects or change what it is given.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenmark.watermark.errors import ModelError, RequestError

__all__ = ["ChatTemplate"]


def _raise_exception(message: str) -> NoReturn:
    """What templates call to refuse a conversation."""
    raise TemplateError(message)


_ENVIRONMENT: Final = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
)
_ENVIRONMENT.globals["raise_exception"] = _raise_exception


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the template as the model file has it.
        special_tokens: names that templates use, such as `bos_token`, with their text.

    Raises:
        ModelError: the template does not compile.
    """

    __slots__ = ("_special_tokens", "_template")

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except TemplateError as error:
            raise ModelError(f"the model's chat template does not compile: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt that asks the model for the next message.

        Raises:
            RequestError: the template refuses the messages, for instance an order of roles.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except TemplateError as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {error.message}",
                param="messages",
            ) from error
