"""A model that is being served: its engine, its text codec and the mark it writes.

Knows nothing of HTTP. It turns a prompt and parameters into submissions for the engine, and decides
there, once an answer, whether the answer is marked.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from tokenmark.engine.answer import Answer, Mark, UnmarkedReason, request_key
from tokenmark.engine.async_engine import AsyncEngine, Submission
from tokenmark.engine.chat import ChatTemplate
from tokenmark.engine.metrics import EngineMetrics
from tokenmark.engine.request import Request, SamplingParams
from tokenmark.engine.text_codec import TextCodec
from tokenmark.watermark.errors import RequestError, SchemeError

__all__ = ["ServedModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What the HTTP layer needs of a model.

    Args:
        name: what clients call it.
        engine: generates; already running.
        metrics: what the engine did.
        codec: text to ids and back.
        chat: the chat format; None where the model has none.
        eos_ids: ids that end an answer.
        max_model_len: most tokens of prompt and answer together.
        mark: what answers are marked with; None on a server that marks nothing.
    """

    name: str
    engine: AsyncEngine
    metrics: EngineMetrics
    codec: TextCodec
    chat: ChatTemplate | None
    eos_ids: frozenset[int]
    max_model_len: int
    mark: Mark | None

    def submissions(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        n: int = 1,
        wants_mark: bool = True,
        payload: int | None = None,
    ) -> list[Submission]:
        """One submission for each of n answers to a prompt.

        Args:
            prompt_ids: ids of this model's vocabulary.
            params: the same for all answers.
            n: how many answers.
            wants_mark: False where the client opted out.
            payload: the message to carry.

        Raises:
            RequestError: an id outside the vocabulary, or a payload that cannot be carried.
        """
        for token_id in prompt_ids:
            if not 0 <= token_id < self.codec.vocabulary_size:
                raise RequestError(
                    f"prompt id {token_id} is outside the vocabulary of {self.name}, "
                    f"0..{self.codec.vocabulary_size - 1}",
                    param="prompt",
                )
        symbols = self._symbols(payload, wants_mark=wants_mark)
        group = secrets.token_hex(12)
        return [
            Submission(
                Request(
                    request_id=f"{group}-{choice}",
                    prompt_ids=tuple(prompt_ids),
                    params=params,
                    eos_ids=self.eos_ids,
                    choice=choice,
                ),
                self._answer(prompt_ids, params, choice, wants_mark=wants_mark, symbols=symbols),
            )
            for choice in range(n)
        ]

    def _answer(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        choice: int,
        *,
        wants_mark: bool,
        symbols: tuple[int, ...],
    ) -> Answer:
        own_key = request_key(params.seed, choice)
        if self.mark is None:
            reason = UnmarkedReason.SERVER_UNMARKED
        elif not wants_mark:
            reason = UnmarkedReason.OPTED_OUT
        elif params.is_greedy:
            reason = UnmarkedReason.GREEDY
        else:
            return Answer(own_key, marking=self.mark.begin(prompt_ids), symbols=symbols)
        return Answer(own_key, marking=None, unmarked_reason=reason)

    def _symbols(self, payload: int | None, *, wants_mark: bool) -> tuple[int, ...]:
        if payload is None:
            return ()
        if self.mark is None or not wants_mark:
            raise RequestError(
                "a payload needs a mark to carry it; leave watermark.payload out",
                param="watermark.payload",
            )
        layout = self.mark.scheme.payload
        if layout is None:
            raise RequestError(
                f"key {self.mark.key.key_id} carries no payload; leave watermark.payload out",
                param="watermark.payload",
            )
        try:
            return layout.symbols(payload)
        except SchemeError as error:
            raise RequestError(str(error), param="watermark.payload") from error
