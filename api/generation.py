"""The bridge from requests to the engine: bodies become submissions, results become pieces.

Knows nothing of connections, or of the shapes in which answers are sent. It alone of this package
knows the engine.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import generate_latest

from tokenmark.api.errors import ApiError, ErrorCode
from tokenmark.api.response_schemas import FinishReason, ModelCard, Usage, WatermarkReport
from tokenmark.api.schemas import ChatRequest, CompletionRequest, GenerationRequest, shown
from tokenmark.engine.async_engine import Submission
from tokenmark.engine.core import StepResult
from tokenmark.engine.request import FinishReason as EngineFinishReason
from tokenmark.engine.request import SamplingParams
from tokenmark.engine.served_model import ServedModel
from tokenmark.watermark.errors import CapacityError, RequestError

__all__ = ["Ending", "Generation", "GenerationService", "Piece", "ServedModel"]

_DEFAULT_COMPLETION_TOKENS: Final = 16
_MAX_ANSWERS: Final = 128
_FINISH_REASONS: Final[dict[EngineFinishReason, FinishReason]] = {
    EngineFinishReason.STOP: "stop",
    EngineFinishReason.LENGTH: "length",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one choice ended."""

    finish_reason: FinishReason
    n_tokens: int
    watermark: WatermarkReport


@dataclass(frozen=True, slots=True)
class Piece:
    """The next text of one choice, perhaps none; `ending` is set on the last one."""

    choice: int
    text: str = field(repr=False)
    ending: Ending | None


class Generation:
    """Answers under way, all choices of one request.

    Iterate over it for the pieces as they come, interleaved, until every choice has ended; close it
    in any case, so that choices that nobody waits for any more stop.

    Args:
        n_choices: how many answers there will be.
        n_prompt_tokens: tokens of all prompts, each counted once.
        first: the first piece.
        rest: the others.

    Iterating raises ApiError where the engine fails.
    """

    def __init__(
        self,
        *,
        n_choices: int,
        n_prompt_tokens: int,
        first: Piece,
        rest: AsyncGenerator[Piece, None],
    ) -> None:
        self.n_choices = n_choices
        self._n_prompt_tokens = n_prompt_tokens
        self._first = first
        self._rest = rest

    async def __aiter__(self) -> AsyncIterator[Piece]:
        yield self._first
        async for piece in self._rest:
            yield piece

    async def aclose(self) -> None:
        """Stop what has not ended."""
        await self._rest.aclose()

    def usage(self, endings: Sequence[Ending]) -> Usage:
        """The counts of tokens of choices that have ended."""
        n_output_tokens = sum(ending.n_tokens for ending in endings)
        return Usage(
            prompt_tokens=self._n_prompt_tokens,
            completion_tokens=n_output_tokens,
            total_tokens=self._n_prompt_tokens + n_output_tokens,
        )


class GenerationService:
    """Answers requests with one model."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._created = int(time.time())

    @property
    def is_healthy(self) -> bool:
        """Whether the engine takes requests."""
        return self._model.engine.is_healthy

    @property
    def model_card(self) -> ModelCard:
        """The model, as clients see it."""
        return ModelCard(id=self._model.name, created=self._created)

    def metrics(self) -> bytes:
        """The engine's metrics in the text format of Prometheus."""
        return generate_latest(self._model.metrics.registry)

    def check_model(self, name: str) -> None:
        """Refuse a name that is not the model's.

        Raises:
            ApiError: model_not_found.
        """
        if name != self._model.name:
            raise ApiError(
                ErrorCode.MODEL_NOT_FOUND,
                f"there is no model {shown(name)} here; this server has {self._model.name}",
                param="model",
            )

    async def complete(self, body: CompletionRequest) -> Generation:
        """The answers to a completion request, begun.

        Raises:
            ApiError: no such model, a prompt longer than the context, or the engine refused.
            RequestError: the request breaks another rule.
        """
        self.check_model(body.model)
        if len(body.prompts) * body.n > _MAX_ANSWERS:
            raise RequestError(
                f"{len(body.prompts)} prompts with n={body.n} ask for more than {_MAX_ANSWERS} "
                "answers at once; send several requests",
                param="prompt",
            )
        prompts = [await self._prompt_ids(prompt, "prompt") for prompt in body.prompts]
        n_left = min(self._room_after(prompt_ids, "prompt") for prompt_ids in prompts)
        default = min(_DEFAULT_COMPLETION_TOKENS, n_left)
        max_tokens = default if body.max_tokens is None else body.max_tokens
        return await self._begin(prompts, body, max_tokens)

    async def chat(self, body: ChatRequest) -> Generation:
        """The answers to a chat request, begun; errors are those of `complete`."""
        self.check_model(body.model)
        template = self._model.chat
        if template is None:
            raise RequestError(
                f"model {self._model.name} has no chat template; use /v1/completions",
                param="model",
            )
        roles = {"developer": "system"}
        messages = [
            {"role": roles.get(message.role, message.role), "content": message.text}
            for message in body.messages
        ]
        prompt = await asyncio.to_thread(template.render, messages)
        prompt_ids = await self._prompt_ids(prompt, "messages")
        n_left = self._room_after(prompt_ids, "messages")
        max_tokens = n_left if body.token_limit is None else body.token_limit
        return await self._begin([prompt_ids], body, max_tokens)

    async def _prompt_ids(self, prompt: str | list[int], param: str) -> list[int]:
        if not isinstance(prompt, str):
            return prompt
        # Tokenizing takes time that other clients wait, so what cannot fit is refused unread.
        if self._model.codec.least_tokens(prompt) > self._model.max_model_len:
            raise ApiError(
                ErrorCode.CONTEXT_LENGTH_EXCEEDED,
                f"the prompt has {len(prompt)} characters, more than the context of "
                f"{self._model.max_model_len} tokens can hold; shorten it",
                param=param,
            )
        # A prompt may have millions of characters, and the event loop serves everybody.
        return await asyncio.to_thread(self._model.codec.encode, prompt)

    def _room_after(self, prompt_ids: Sequence[int], param: str) -> int:
        """How many tokens an answer to the prompt may have, at least one."""
        n_left = self._model.max_model_len - len(prompt_ids)
        if n_left < 1:
            raise ApiError(
                ErrorCode.CONTEXT_LENGTH_EXCEEDED,
                f"the prompt has {len(prompt_ids)} tokens and the context of this model is "
                f"{self._model.max_model_len}, answer included; shorten the prompt",
                param=param,
            )
        return n_left

    async def _begin(
        self, prompts: Sequence[Sequence[int]], body: GenerationRequest, max_tokens: int
    ) -> Generation:
        """Submit n answers a prompt and wait for the first piece, or for the engine's refusal."""
        params = _sampling_params(body, max_tokens)
        submissions = [
            submission
            for prompt_ids in prompts
            for submission in self._model.submissions(
                prompt_ids,
                params,
                n=body.n,
                wants_mark=body.watermark.enabled,
                payload=body.watermark.payload,
            )
        ]
        pieces = self._pieces(submissions)
        return Generation(
            n_choices=len(submissions),
            n_prompt_tokens=sum(map(len, prompts)),
            first=await anext(pieces),
            rest=pieces,
        )

    async def _pieces(self, submissions: Sequence[Submission]) -> AsyncGenerator[Piece, None]:
        choices = {
            submission.request.request_id: choice for choice, submission in enumerate(submissions)
        }
        results = self._model.engine.generate(submissions)
        try:
            async with aclosing(results):
                async for result in results:
                    yield self._piece(choices[result.request_id], result)
        except CapacityError as error:
            raise ApiError.of_engine(error, is_healthy=self.is_healthy) from error

    def _piece(self, choice: int, result: StepResult) -> Piece:
        if result.error is not None:
            raise ApiError.of_engine(result.error)
        if result.finish_reason is None:
            return Piece(choice, result.text, None)
        ending = Ending(
            finish_reason=_FINISH_REASONS[result.finish_reason],
            n_tokens=result.n_output,
            watermark=self._report(result),
        )
        return Piece(choice, result.text, ending)

    def _report(self, result: StepResult) -> WatermarkReport:
        mark = self._model.mark
        return WatermarkReport(
            applied=result.n_marked > 0,
            scheme=None if mark is None else mark.scheme.name,
            key_id=None if mark is None else mark.key.key_id,
            marked_tokens=result.n_marked,
            reason=result.unmarked_reason,
        )


def _sampling_params(body: GenerationRequest, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        seed=body.seed,
        stop=body.stop_strings,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
    )
