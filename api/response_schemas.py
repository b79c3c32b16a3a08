"""The bodies of responses, in the shapes of OpenAI's API, with a `watermark` added to them.

Knows nothing of requests, engines or connections.
"""

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, Field

__all__ = [
    "ChatChoice",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatCompletionChunk",
    "EmptyDelta",
    "ErrorBody",
    "ErrorDetail",
    "FinishReason",
    "ModelCard",
    "ModelList",
    "ReplyMessage",
    "RoleDelta",
    "TextChoice",
    "TextCompletion",
    "TextDelta",
    "Usage",
    "WatermarkReport",
]

FinishReason = Literal["stop", "length"]


class WatermarkReport(BaseModel):
    """What became of the mark, for one choice or for all of them.

    `scheme` and `key_id` are those of the server, null where it marks nothing. `reason` says why no
    token was marked; it is null where one was.
    """

    applied: bool
    scheme: str | None
    key_id: str | None
    marked_tokens: int
    reason: str | None

    @classmethod
    def total(cls, reports: Iterable["WatermarkReport"]) -> "WatermarkReport":
        """The sum over at least one choice of one answer; of several reasons the first."""
        first, *others = reports
        n_marked = first.marked_tokens + sum(report.marked_tokens for report in others)
        return cls(
            applied=n_marked > 0,
            scheme=first.scheme,
            key_id=first.key_id,
            marked_tokens=n_marked,
            reason=None if n_marked else first.reason,
        )


class Usage(BaseModel):
    """Counts of tokens. Each prompt counts once, for however many choices it was used."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class _Reply(BaseModel):
    """What whole answers and chunks of streams have in common."""

    id: str
    created: int
    model: str


class TextChoice(BaseModel):
    """One completion, or a piece of it; `watermark` comes with `finish_reason`."""

    index: int
    text: str = Field(repr=False)
    logprobs: None = None
    finish_reason: FinishReason | None = None
    watermark: WatermarkReport | None = None


class TextCompletion(_Reply):
    """The answer to a completion request; streams have chunks of the same shape."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]
    usage: Usage | None = None
    watermark: WatermarkReport | None = None


class ReplyMessage(BaseModel):
    """The message that the model wrote."""

    role: Literal["assistant"] = "assistant"
    content: str = Field(repr=False)
    refusal: None = None


class ChatChoice(BaseModel):
    """One answer to a chat."""

    index: int
    message: ReplyMessage
    logprobs: None = None
    finish_reason: FinishReason
    watermark: WatermarkReport


class ChatCompletion(_Reply):
    """The answers to a chat request."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage
    watermark: WatermarkReport


class RoleDelta(BaseModel):
    """The beginning of a streamed message."""

    role: Literal["assistant"] = "assistant"
    content: Literal[""] = ""


class TextDelta(BaseModel):
    """The next piece of a streamed message."""

    content: str = Field(repr=False)


class EmptyDelta(BaseModel):
    """The end of a streamed message."""


class ChatChunkChoice(BaseModel):
    """A piece of one answer; `watermark` comes with `finish_reason`."""

    index: int
    delta: RoleDelta | TextDelta | EmptyDelta
    logprobs: None = None
    finish_reason: FinishReason | None = None
    watermark: WatermarkReport | None = None


class ChatCompletionChunk(_Reply):
    """A piece of a streamed chat answer; the last one has the `watermark` of all choices."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    watermark: WatermarkReport | None = None


class ModelCard(BaseModel):
    """A model that can be asked for."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["tokenmark"] = "tokenmark"


class ModelList(BaseModel):
    """All models that can be asked for."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class ErrorDetail(BaseModel):
    """What went wrong: `code` is stable, `param` names the field if there is one."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """The body of every response that is an error."""

    error: ErrorDetail
