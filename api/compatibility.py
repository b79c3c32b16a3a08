"""Fields of OpenAI's requests that are accepted although this server has nothing behind them.

Knows nothing of the fields that do something. A field is accepted where leaving it out would give
the same answer; anything that would need a missing feature is refused by name, never ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tokenmark.watermark.errors import RequestError

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "MESSAGE",
    "NOTHING",
    "STREAM_OPTIONS",
    "Compatibility",
    "NeutralValues",
]


@dataclass(frozen=True, slots=True)
class NeutralValues:
    """The values that ask for what happens anyway, null among them, and the missing feature."""

    values: tuple[object, ...]
    feature: str


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What one kind of object may hold besides its own fields.

    Args:
        without_effect: any value is accepted; the text says why the answer does not depend on it.
        neutral: only these values are accepted.
    """

    without_effect: Mapping[str, str]
    neutral: Mapping[str, NeutralValues]

    def strip(self, fields: Mapping[str, object]) -> dict[str, object]:
        """The object without the fields that change nothing.

        Raises:
            RequestError: a field asks for a feature that is missing; `param` names it.
        """
        for name in self.neutral.keys() & fields.keys():
            rule = self.neutral[name]
            if fields[name] is not None and fields[name] not in rule.values:
                raise RequestError(
                    f"{name}: {rule.feature} not supported by this server; leave {name} out",
                    param=name,
                )
        return {
            name: value
            for name, value in fields.items()
            if name not in self.neutral and name not in self.without_effect
        }


def _table(
    without_effect: Mapping[str, str], neutral: Mapping[str, NeutralValues]
) -> Compatibility:
    return Compatibility(MappingProxyType(without_effect), MappingProxyType(neutral))


_REQUEST_WITHOUT_EFFECT: Final = {
    "user": "names the end user for abuse statistics, which this server does not keep",
}
_REQUEST_NEUTRAL: Final = {
    "presence_penalty": NeutralValues((0,), "penalties are"),
    "frequency_penalty": NeutralValues((0,), "penalties are"),
    "logit_bias": NeutralValues(({},), "a bias on logits is"),
}

COMPLETIONS: Final = _table(
    _REQUEST_WITHOUT_EFFECT,
    _REQUEST_NEUTRAL
    | {
        "echo": NeutralValues((False,), "repeating the prompt in the answer is"),
        "logprobs": NeutralValues((), "log probabilities are"),
        "suffix": NeutralValues(("",), "text to be put before a suffix is"),
    },
)
"""Of a body of POST /v1/completions."""

CHAT: Final = _table(
    _REQUEST_WITHOUT_EFFECT
    | {
        "metadata": "labels stored answers, and this server stores none",
        "parallel_tool_calls": "limits tool calls, and this server makes none",
        "prompt_cache_key": "steers a cache of prompts, which changes speed only",
        "prompt_cache_options": "steers a cache of prompts, which changes speed only",
        "prompt_cache_retention": "steers a cache of prompts, which changes speed only",
        "safety_identifier": "names the end user for abuse statistics, which are not kept",
        "service_tier": "chooses among price classes, and there is one class",
        "store": "asks to keep the answer for later calls, and no call here reads stored answers",
    },
    _REQUEST_NEUTRAL
    | {
        "audio": NeutralValues((), "spoken answers are"),
        "function_call": NeutralValues(("none", "auto"), "function calls are"),
        "functions": NeutralValues(([],), "function calls are"),
        "logprobs": NeutralValues((False,), "log probabilities are"),
        "modalities": NeutralValues((["text"],), "answers other than text are"),
        "moderation": NeutralValues((), "moderation is"),
        "prediction": NeutralValues((), "predicted outputs are"),
        "reasoning_effort": NeutralValues((), "a choice of reasoning effort is"),
        "response_format": NeutralValues(({"type": "text"},), "structured output is"),
        "tool_choice": NeutralValues(("none", "auto"), "tool calls are"),
        "tools": NeutralValues(([],), "tool calls are"),
        "top_logprobs": NeutralValues((0,), "log probabilities are"),
        "verbosity": NeutralValues((), "a choice of verbosity is"),
        "web_search_options": NeutralValues((), "web search is"),
    },
)
"""Of a body of POST /v1/chat/completions."""

MESSAGE: Final = _table(
    {"name": "tells participants of one role apart, which chat templates do not"},
    {
        "annotations": NeutralValues(([],), "annotations are"),
        "audio": NeutralValues((), "spoken messages are"),
        "function_call": NeutralValues((), "function calls are"),
        "refusal": NeutralValues(("",), "refusals as part of a conversation are"),
        "tool_calls": NeutralValues(([],), "tool calls are"),
    },
)
"""Of one message of a chat; clients send an earlier answer back as they got it."""

STREAM_OPTIONS: Final = _table(
    {}, {"include_obfuscation": NeutralValues((False,), "padding chunks to equal lengths is")}
)
"""Of the options of a stream."""

NOTHING: Final = _table({}, {})
"""Of every other object."""
