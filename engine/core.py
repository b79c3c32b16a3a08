"""The step loop of the engine: schedule, run, sample, update, detokenise.

Knows nothing of threads, clients or HTTP. One call of `step` moves every scheduled request on by a
chunk of its prompt or by one token of its answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tokenmark.engine.answer import Answer, UnmarkedReason
from tokenmark.engine.detokenizer import Detokenizer
from tokenmark.engine.model_runner import ModelOutput
from tokenmark.engine.request import FinishReason, Request
from tokenmark.engine.sampler import Row, Sampler
from tokenmark.engine.scheduler import Scheduler, SchedulerOutput
from tokenmark.watermark.errors import SamplingError

__all__ = ["EngineCore", "Runner", "StepResult"]


class Runner(Protocol):
    """Computes the chunks of a step."""

    def run(self, output: SchedulerOutput) -> ModelOutput:
        """A row of logits for each chunk that samples."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step did to one request that drew a token or ended.

    Args:
        request_id: whose result it is.
        token_ids: ids drawn by this step: one, or none where the request failed.
        text: what can be shown now; held back characters come with a later result.
        finish_reason: set on the last result.
        n_prompt: ids of the prompt.
        n_output: ids of the answer so far.
        n_marked: how many of them were drawn with the mark's key.
        unmarked_reason: why none was, if none was.
        error: what went wrong, where the reason is ERROR.
    """

    request_id: str
    # Ids and text are the user's, which no log may hold.
    token_ids: tuple[int, ...] = field(repr=False)
    text: str = field(repr=False)
    finish_reason: FinishReason | None
    n_prompt: int
    n_output: int
    n_marked: int
    unmarked_reason: UnmarkedReason | None
    error: SamplingError | None = None


@dataclass(slots=True)
class _Active:
    """Everything the engine keeps of an unfinished request."""

    request: Request
    answer: Answer
    detokenizer: Detokenizer


class EngineCore:
    """An engine without a thread of its own.

    Args:
        scheduler: decides what a step computes.
        runner: computes it.
        sampler: draws the ids.
        decode: the text of ids, special ones left out.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        sampler: Sampler,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._sampler = sampler
        self._decode = decode
        self._active: dict[str, _Active] = {}

    @property
    def has_work(self) -> bool:
        """Whether a call of `step` would do anything."""
        return self._scheduler.has_work

    @property
    def n_running(self) -> int:
        """Requests that hold blocks."""
        return self._scheduler.n_running

    @property
    def n_waiting(self) -> int:
        """Requests that wait for blocks."""
        return self._scheduler.n_waiting

    def add(self, request: Request, answer: Answer) -> None:
        """Queue a request with its drawing state.

        Raises:
            RequestError: it can never fit.
            CapacityError: the queue is full.
        """
        self._scheduler.add(request)
        detokenizer = Detokenizer(
            self._decode, request.params.stop, min_tokens=request.params.min_tokens
        )
        self._active[request.request_id] = _Active(request, answer, detokenizer)

    def abort(self, request_id: str) -> StepResult | None:
        """End a request at any stage; its blocks are free at once.

        Returns how far it came, or None if it had ended by itself.
        """
        active = self._active.get(request_id)
        if active is None:
            return None
        self._end(request_id, FinishReason.ABORT)
        return _result(active, (), "", FinishReason.ABORT)

    def step(self) -> list[StepResult]:
        """Compute one step; the results of all requests that drew or ended."""
        output = self._scheduler.schedule()
        if not output.chunks:
            return []
        computed = self._runner.run(output)
        sampling = [self._active[name] for name in computed.request_ids]
        rows = [Row(active.request, active.answer) for active in sampling]
        outcomes = self._sampler.sample(rows, computed.logits)
        drawn = dict(zip(computed.request_ids, outcomes, strict=True))
        failed = {name: error for name, error in drawn.items() if isinstance(error, SamplingError)}
        results = [self._fail(name, error) for name, error in failed.items()]
        ids = {name: token for name, token in drawn.items() if isinstance(token, int)}
        self._scheduler.update(output, ids)
        return results + [self._advance(name, token_id) for name, token_id in ids.items()]

    def check_integrity(self) -> None:
        """Raise AssertionError if a request or a block was lost."""
        self._scheduler.check_integrity()
        if not self.has_work and self._active:
            raise AssertionError(f"{len(self._active)} requests outlived the scheduler's")

    def _advance(self, request_id: str, token_id: int) -> StepResult:
        """Text and end of a request that has just drawn an id."""
        active = self._active[request_id]
        text = active.detokenizer.push(token_id)
        reason = active.request.finish_reason_by_ids()
        if active.detokenizer.stopped:
            reason = FinishReason.STOP
        if reason is not None:
            text += active.detokenizer.finish()
            self._end(request_id, reason)
        return _result(active, (token_id,), text, reason)

    def _fail(self, request_id: str, error: SamplingError) -> StepResult:
        active = self._active[request_id]
        self._end(request_id, FinishReason.ERROR)
        return _result(active, (), active.detokenizer.finish(), FinishReason.ERROR, error)

    def _end(self, request_id: str, reason: FinishReason) -> None:
        self._scheduler.finish(request_id, reason)
        del self._active[request_id]


def _result(
    active: _Active,
    token_ids: tuple[int, ...],
    text: str,
    reason: FinishReason | None,
    error: SamplingError | None = None,
) -> StepResult:
    return StepResult(
        request_id=active.request.request_id,
        token_ids=token_ids,
        text=text,
        finish_reason=reason,
        n_prompt=active.request.n_prompt,
        n_output=active.request.n_output,
        n_marked=active.answer.n_marked,
        unmarked_reason=active.answer.unmarked_reason,
        error=error,
    )
