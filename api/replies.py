"""The shapes of an answer, whole or in chunks: that of chats and that of completions.

Knows nothing of connections or engines.
"""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from tokenmark.api.generation import Ending, Generation, Piece
from tokenmark.api.response_schemas import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    EmptyDelta,
    ReplyMessage,
    RoleDelta,
    TextChoice,
    TextCompletion,
    TextDelta,
    Usage,
    WatermarkReport,
)

__all__ = ["ChatReplies", "Chunk", "Replies", "TextReplies", "chunks", "collect"]

Chunk = ChatCompletionChunk | TextCompletion


class Replies(Protocol):
    """Makes the bodies of one response."""

    def whole(
        self, texts: Sequence[str], endings: Sequence[Ending], usage: Usage
    ) -> ChatCompletion | TextCompletion:
        """All choices at once."""
        ...

    def opening(self, n_choices: int) -> Sequence[Chunk]:
        """What a stream begins with."""
        ...

    def text(self, choice: int, text: str) -> Chunk:
        """The next text of a choice."""
        ...

    def end(self, choice: int, ending: Ending, total: WatermarkReport | None) -> Chunk:
        """The end of a choice; `total` comes with the stream's last chunk."""
        ...

    def counts(self, usage: Usage, total: WatermarkReport) -> Chunk:
        """The last chunk of a stream that includes counts of tokens."""
        ...


def _total(endings: Sequence[Ending]) -> WatermarkReport:
    return WatermarkReport.total(ending.watermark for ending in endings)


class ChatReplies:
    """Answers to a chat."""

    def __init__(self, model: str) -> None:
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._model = model

    def whole(
        self, texts: Sequence[str], endings: Sequence[Ending], usage: Usage
    ) -> ChatCompletion:
        """All choices at once."""
        choices = [
            ChatChoice(
                index=choice,
                message=ReplyMessage(content=text),
                finish_reason=ending.finish_reason,
                watermark=ending.watermark,
            )
            for choice, (text, ending) in enumerate(zip(texts, endings, strict=True))
        ]
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            watermark=_total(endings),
        )

    def opening(self, n_choices: int) -> list[ChatCompletionChunk]:
        """The role of each choice."""
        return [
            self._chunk([ChatChunkChoice(index=choice, delta=RoleDelta())])
            for choice in range(n_choices)
        ]

    def text(self, choice: int, text: str) -> ChatCompletionChunk:
        """The next text of a choice."""
        return self._chunk([ChatChunkChoice(index=choice, delta=TextDelta(content=text))])

    def end(
        self, choice: int, ending: Ending, total: WatermarkReport | None
    ) -> ChatCompletionChunk:
        """The end of a choice."""
        last = ChatChunkChoice(
            index=choice,
            delta=EmptyDelta(),
            finish_reason=ending.finish_reason,
            watermark=ending.watermark,
        )
        return self._chunk([last], total=total)

    def counts(self, usage: Usage, total: WatermarkReport) -> ChatCompletionChunk:
        """The last chunk of a stream that includes counts of tokens."""
        return self._chunk([], usage=usage, total=total)

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        *,
        usage: Usage | None = None,
        total: WatermarkReport | None = None,
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            watermark=total,
        )


class TextReplies:
    """Answers to a completion request."""

    def __init__(self, model: str) -> None:
        self._id = f"cmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._model = model

    def whole(
        self, texts: Sequence[str], endings: Sequence[Ending], usage: Usage
    ) -> TextCompletion:
        """All choices at once."""
        choices = [
            _ended(choice, text, ending)
            for choice, (text, ending) in enumerate(zip(texts, endings, strict=True))
        ]
        return self._reply(choices, usage=usage, total=_total(endings))

    def opening(self, n_choices: int) -> list[TextCompletion]:
        """Nothing: the first chunk has text already."""
        del n_choices
        return []

    def text(self, choice: int, text: str) -> TextCompletion:
        """The next text of a choice."""
        return self._reply([TextChoice(index=choice, text=text)])

    def end(self, choice: int, ending: Ending, total: WatermarkReport | None) -> TextCompletion:
        """The end of a choice."""
        return self._reply([_ended(choice, "", ending)], total=total)

    def counts(self, usage: Usage, total: WatermarkReport) -> TextCompletion:
        """The last chunk of a stream that includes counts of tokens."""
        return self._reply([], usage=usage, total=total)

    def _reply(
        self,
        choices: list[TextChoice],
        *,
        usage: Usage | None = None,
        total: WatermarkReport | None = None,
    ) -> TextCompletion:
        return TextCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            watermark=total,
        )


def _ended(choice: int, text: str, ending: Ending) -> TextChoice:
    return TextChoice(
        index=choice,
        text=text,
        finish_reason=ending.finish_reason,
        watermark=ending.watermark,
    )


async def collect(generation: Generation, replies: Replies) -> ChatCompletion | TextCompletion:
    """The whole answer, once every choice has ended."""
    texts: list[list[str]] = [[] for _ in range(generation.n_choices)]
    endings: dict[int, Ending] = {}
    async for piece in generation:
        texts[piece.choice].append(piece.text)
        _note(endings, piece)
    ordered = [endings[choice] for choice in range(generation.n_choices)]
    return replies.whole(["".join(text) for text in texts], ordered, generation.usage(ordered))


async def chunks(
    generation: Generation, replies: Replies, *, include_usage: bool
) -> AsyncIterator[Chunk]:
    """The answer in chunks as it comes; the last one has the watermark report of all choices."""
    for chunk in replies.opening(generation.n_choices):
        yield chunk
    endings: dict[int, Ending] = {}
    async for piece in generation:
        _note(endings, piece)
        if piece.text:
            yield replies.text(piece.choice, piece.text)
        if piece.ending is not None:
            is_last = len(endings) == generation.n_choices and not include_usage
            total = _total(_in_order(endings)) if is_last else None
            yield replies.end(piece.choice, piece.ending, total)
    if include_usage:
        ordered = _in_order(endings)
        yield replies.counts(generation.usage(ordered), _total(ordered))


def _note(endings: dict[int, Ending], piece: Piece) -> None:
    if piece.ending is not None:
        endings[piece.choice] = piece.ending


def _in_order(endings: dict[int, Ending]) -> list[Ending]:
    return [endings[choice] for choice in sorted(endings)]
