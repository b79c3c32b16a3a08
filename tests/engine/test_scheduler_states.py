"""Random lives of a small engine: every request gets the answer it would have had alone."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.engine.fake_model import EOS, VOCAB_SIZE, PagedModel, answer_alone, finish_ended
from tokenmark.engine.block_pool import BlockPool
from tokenmark.engine.config import EngineConfig
from tokenmark.engine.request import FinishReason, Request, RequestStatus, SamplingParams
from tokenmark.engine.scheduler import Scheduler, SchedulerOutput

MAX_MODEL_LEN = 20
MAX_QUEUED = 6


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    """Engines in which one to four of the longest requests have room."""
    block_size = draw(st.integers(1, 5))
    n_least = -(-MAX_MODEL_LEN // block_size)
    return EngineConfig(
        max_model_len=MAX_MODEL_LEN,
        n_blocks=draw(st.integers(n_least, 4 * n_least)),
        block_size=block_size,
        max_batched_tokens=draw(st.integers(1, 24)),
        max_running=draw(st.integers(1, 6)),
        max_queued=MAX_QUEUED,
    )


@st.composite
def params_for(draw: st.DrawFn, n_prompt: int) -> SamplingParams:
    max_tokens = draw(st.integers(1, MAX_MODEL_LEN - n_prompt))
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, max_tokens)),
        ignore_eos=draw(st.booleans()),
    )


class EngineLife(RuleBasedStateMachine):
    requests: Bundle[Request] = Bundle("requests")

    @initialize(config=configs())
    def start(self, config: EngineConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.n_blocks)
        self.scheduler = Scheduler(config, self.pool)
        self.model = PagedModel(config.block_size)
        self.pending: SchedulerOutput | None = None
        self.n_added = 0

    @precondition(lambda self: self.scheduler.n_waiting < MAX_QUEUED)
    @rule(
        target=requests,
        prompt_ids=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=15),
        data=st.data(),
    )
    def add(self, prompt_ids: list[int], data: st.DataObject) -> Request:
        request = Request(
            request_id=f"request {self.n_added}",
            prompt_ids=tuple(prompt_ids),
            params=data.draw(params_for(len(prompt_ids))),
            eos_ids=frozenset({EOS}),
        )
        self.n_added += 1
        self.scheduler.add(request)
        return request

    @precondition(lambda self: self.pending is None)
    @rule()
    def schedule(self) -> None:
        unfinished = self.unfinished()
        n_drawn = [request.n_output for request in unfinished]
        self.pending = self.scheduler.schedule()
        assert [request.n_output for request in unfinished] == n_drawn
        chunks, preempted = self.pending.chunks, self.pending.preempted
        scheduled = [chunk.request_id for chunk in chunks]
        assert self.pending.n_tokens <= self.config.max_batched_tokens
        assert len(set(scheduled)) == len(scheduled) <= self.config.max_running
        assert not set(scheduled) & set(preempted)
        assert scheduled[:1] == [request.request_id for request in unfinished[:1]]
        for chunk in chunks:
            assert chunk.token_ids
            assert len(chunk.block_ids) * self.config.block_size >= chunk.stop

    @precondition(lambda self: self.pending is not None)
    @rule()
    def compute(self) -> None:
        assert self.pending is not None
        sampled = self.model.run(self.pending, self.scheduler)
        self.scheduler.update(self.pending, sampled)
        self.pending = None
        for request in finish_ended(self.scheduler, sampled):
            assert (request.output_ids, request.finish_reason) == answer_alone(request)

    @rule(request=requests)
    def abort(self, request: Request) -> None:
        was_unfinished = request.status is not RequestStatus.FINISHED
        reason = FinishReason.ABORT if was_unfinished else request.finish_reason
        finished = self.scheduler.finish(request.request_id, FinishReason.ABORT)
        assert (finished is request) == was_unfinished
        assert request.finish_reason is reason

    @invariant()
    def everything_agrees(self) -> None:
        self.scheduler.check_integrity()
        assert self.scheduler.n_running <= self.config.max_running

    def unfinished(self) -> list[Request]:
        return list(self.scheduler._requests.values())

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        if self.pending is not None:
            self.compute()
        n_most = [request.n_prompt + request.params.max_tokens for request in self.unfinished()]
        # The oldest request moves on in every step, so this many steps are enough.
        for _ in range(sum(n_most)):
            self.schedule()
            self.compute()
            self.everything_agrees()
        assert not self.scheduler.has_work
        assert self.pool.n_free == self.config.n_blocks


TestEngineLife = EngineLife.TestCase
TestEngineLife.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
