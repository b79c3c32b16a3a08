"""The bodies of requests, in the shapes of OpenAI's API.

Knows nothing of engines, connections or responses. Types are strict and unknown fields are refused;
null is as good as absent. Ranges that the engine checks are not repeated here.
"""

from difflib import get_close_matches
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tokenmark.api.compatibility import (
    CHAT,
    COMPLETIONS,
    MESSAGE,
    NOTHING,
    STREAM_OPTIONS,
    Compatibility,
)
from tokenmark.watermark.errors import RequestError

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "GenerationRequest",
    "Message",
    "StreamOptions",
    "shown",
]

_MAX_CHOICES: Final = 16
_MAX_SHOWN: Final = 40
_MAX_NAMED: Final = 5
# More than anybody needs, and few enough to be read while others wait.
_MAX_MESSAGES: Final = 4096
_MAX_PROMPTS: Final = 128
_MAX_PROMPT_IDS: Final = 2**20


def shown(name: str) -> str:
    """A name that a client sent, in a form and length fit for one line of ASCII."""
    return ascii(name if len(name) <= _MAX_SHOWN else name[:_MAX_SHOWN] + "...")


def _is_presentable(name: str) -> bool:
    return name.isidentifier() and len(name) <= _MAX_SHOWN


def _checked_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(
            "a string of the request holds half of a surrogate pair, which is no character; "
            "send valid Unicode"
        ) from None
    return text


def _in_words(form: str) -> WrapValidator:
    """Says in one sentence what a value of none of several types should have been."""

    def validate(value: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("form", "must be {form}", {"form": form}) from None

    return WrapValidator(validate)


Text = Annotated[str, AfterValidator(_checked_unicode)]
# What 64 bits hold, signed or not, so that no error has to print a number of thousands of digits.
Integer = Annotated[int, Field(ge=-(2**63), lt=2**64)]


class _Strict(BaseModel):
    """An object of a request."""

    model_config = ConfigDict(strict=True, extra="forbid")

    noun: ClassVar[str]
    compatibility: ClassVar[Compatibility] = NOTHING

    @model_validator(mode="before")
    @classmethod
    def _leave_out_what_changes_nothing(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        fields = cls.compatibility.strip(data)
        if unknown := [name for name in fields if name not in cls.model_fields]:
            more = f" and {len(unknown) - _MAX_NAMED} more" if len(unknown) > _MAX_NAMED else ""
            named = ", ".join(map(cls._hint, unknown[:_MAX_NAMED]))
            raise RequestError(
                f"unknown in {cls.noun}: {named}{more}; leave it out",
                param=unknown[0] if _is_presentable(unknown[0]) else None,
            )
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def _hint(cls, name: str) -> str:
        close = get_close_matches(name[:_MAX_SHOWN], cls.model_fields, n=1)
        return shown(name) + (f" (did you mean {close[0]}?)" if close else "")


class StreamOptions(_Strict):
    """What a stream holds besides the answer."""

    noun = "stream_options"
    compatibility = STREAM_OPTIONS

    include_usage: bool = False


class WatermarkOptions(_Strict):
    """What the client asks of the mark."""

    noun = "watermark"

    enabled: bool = True
    payload: Integer | None = None


class TextPart(_Strict):
    """A part of a message."""

    noun = "a part of a message"

    type: Literal["text"]
    text: Text = Field(repr=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_parts(cls, data: object) -> object:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise RequestError(
                f"message parts of type {shown(kind)} are not supported by this server; "
                "send parts of type text",
                param="messages",
            )
        return data


class Message(_Strict):
    """One message of a chat."""

    noun = "a message"
    compatibility = MESSAGE

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Text | list[TextPart],
        _in_words("a string or a list of parts with type and text"),
    ] = Field(repr=False)

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class GenerationRequest(_Strict):
    """What both kinds of request have in common."""

    noun = "the request"

    model: Text
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Integer | None = None
    min_p: float = 0.0
    n: Annotated[int, Field(ge=1, le=_MAX_CHOICES)] = 1
    seed: Integer | None = None
    stop: Annotated[Text | list[Text], _in_words("a string or a list of strings")] = Field(
        default=[], repr=False
    )
    min_tokens: Integer = 0
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    watermark: WatermarkOptions = WatermarkOptions()

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as the engine takes them."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with the counts of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise RequestError(
                "stream_options is for streams; set stream to true or leave it out",
                param="stream_options",
            )
        return self


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    compatibility = COMPLETIONS

    prompt: Annotated[
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=_MAX_PROMPTS)]
        | Annotated[list[Integer], Field(min_length=1, max_length=_MAX_PROMPT_IDS)]
        | Annotated[list[list[Integer]], Field(min_length=1, max_length=_MAX_PROMPTS)],
        _in_words("a string, a list of strings, a list of token ids or a list of such lists"),
    ] = Field(repr=False)
    max_tokens: Integer | None = None
    best_of: Integer | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, at least one."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        token_ids = [item for item in self.prompt if isinstance(item, int)]
        if token_ids:
            return [token_ids]
        return [item for item in self.prompt if not isinstance(item, int)]

    @model_validator(mode="after")
    def _check_best_of(self) -> Self:
        if self.best_of not in {None, 1, self.n}:
            raise RequestError(
                "best_of: a choice among more answers than n is not supported by this server; "
                "leave best_of out",
                param="best_of",
            )
        return self


class ChatRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    compatibility = CHAT

    messages: Annotated[list[Message], Field(min_length=1, max_length=_MAX_MESSAGES)] = Field(
        repr=False
    )
    max_tokens: Integer | None = None
    max_completion_tokens: Integer | None = None

    @property
    def token_limit(self) -> int | None:
        """The most tokens of an answer, if there is a limit other than the context."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise RequestError(
                "max_tokens and max_completion_tokens mean the same; send one of them",
                param="max_tokens",
            )
        return self
