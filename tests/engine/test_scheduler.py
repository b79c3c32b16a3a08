import pytest

from tests.engine.fake_model import EOS, PagedModel, answer_alone, finish_ended
from tokenmark.engine.block_pool import BlockPool
from tokenmark.engine.config import EngineConfig
from tokenmark.engine.request import FinishReason, Request, RequestStatus, SamplingParams
from tokenmark.engine.scheduler import Scheduler, SchedulerOutput
from tokenmark.watermark.errors import CapacityError, RequestError


def request_of(request_id: str, n_prompt: int, max_tokens: int = 4) -> Request:
    seed = sum(request_id.encode())
    return Request(
        request_id=request_id,
        prompt_ids=tuple((seed * 7 + position) % 8 for position in range(n_prompt)),
        params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        eos_ids=frozenset({EOS}),
    )


def scheduler_of(
    *requests: Request,
    kind: type[Scheduler] = Scheduler,
    n_blocks: int = 16,
    block_size: int = 4,
    max_batched_tokens: int = 8,
    max_running: int = 4,
    max_queued: int = 8,
) -> Scheduler:
    config = EngineConfig(
        max_model_len=16,
        n_blocks=n_blocks,
        block_size=block_size,
        max_batched_tokens=max_batched_tokens,
        max_running=max_running,
        max_queued=max_queued,
    )
    scheduler = kind(config, BlockPool(n_blocks))
    for request in requests:
        scheduler.add(request)
    return scheduler


def step(scheduler: Scheduler, model: PagedModel | None = None) -> SchedulerOutput:
    """One step whose samples are all 1, or those of the model."""
    output = scheduler.schedule()
    scheduler.check_integrity()
    sampled = (
        {chunk.request_id: 1 for chunk in output.chunks if chunk.samples}
        if model is None
        else model.run(output, scheduler)
    )
    scheduler.update(output, sampled)
    finish_ended(scheduler, sampled)
    scheduler.check_integrity()
    return output


def serve(scheduler: Scheduler, model: PagedModel | None = None) -> None:
    while scheduler.has_work:
        step(scheduler, model)


def spans(output: SchedulerOutput) -> list[tuple[str, int, int, bool]]:
    return [(chunk.request_id, chunk.start, chunk.stop, chunk.samples) for chunk in output.chunks]


def test_a_long_prompt_is_computed_in_chunks_and_only_the_last_one_samples() -> None:
    scheduler = scheduler_of(request_of("a", 10), max_batched_tokens=4)
    assert [spans(step(scheduler)) for _ in range(4)] == [
        [("a", 0, 4, False)],
        [("a", 4, 8, False)],
        [("a", 8, 10, True)],
        [("a", 10, 11, True)],
    ]


def test_chunks_carry_the_ids_and_the_blocks_of_their_request() -> None:
    request = request_of("a", 6)
    scheduler = scheduler_of(request)
    (prefill,), (decode,) = (step(scheduler).chunks for _ in range(2))
    assert prefill.token_ids == request.prompt_ids
    assert decode.token_ids == (1,)
    assert prefill.block_ids == decode.block_ids == (0, 1)


def test_running_requests_come_before_new_ones() -> None:
    scheduler = scheduler_of(request_of("a", 3), max_batched_tokens=4)
    step(scheduler)
    scheduler.add(request_of("b", 9))
    output = step(scheduler)
    assert spans(output) == [("a", 3, 4, True), ("b", 0, 3, False)]
    assert output.n_tokens == 4


def test_several_requests_share_one_step() -> None:
    scheduler = scheduler_of(request_of("a", 3), request_of("b", 2), request_of("c", 9))
    assert spans(step(scheduler)) == [("a", 0, 3, True), ("b", 0, 2, True), ("c", 0, 3, False)]
    assert spans(step(scheduler)) == [("a", 3, 4, True), ("b", 2, 3, True), ("c", 3, 9, True)]


def test_no_more_run_than_allowed() -> None:
    scheduler = scheduler_of(*(request_of(name, 1) for name in "abc"), max_running=2)
    step(scheduler)
    assert (scheduler.n_running, scheduler.n_waiting) == (2, 1)


def test_a_request_without_room_waits_and_takes_nothing_from_others() -> None:
    first, second = request_of("a", 9, 2), request_of("b", 5, 2)
    scheduler = scheduler_of(first, second, n_blocks=4, max_batched_tokens=16)
    output = step(scheduler)
    assert spans(output) == [("a", 0, 9, True)]
    assert output.preempted == ()
    assert (second.status, second.block_ids) == (RequestStatus.WAITING, [])
    step(scheduler)
    assert spans(step(scheduler)) == [("b", 0, 5, True)]


def test_the_youngest_is_preempted_to_the_front_and_computed_again() -> None:
    old, young, later = request_of("a", 7, 8), request_of("b", 7, 8), request_of("c", 1)
    scheduler = scheduler_of(old, young, n_blocks=4, max_batched_tokens=16)
    step(scheduler)
    scheduler.add(later)
    step(scheduler)
    output = step(scheduler)
    assert output.preempted == ("b",)
    assert spans(output) == [("a", 8, 9, True)]
    assert (young.n_computed, young.block_ids, young.n_preemptions) == (0, [], 1)
    assert young.output_ids == [1, 1]
    assert list(scheduler._waiting) == [young, later]
    while young.status is RequestStatus.WAITING:
        output = step(scheduler)
    assert spans(output)[0] == ("b", 0, 9, True)
    assert output.chunks[0].token_ids == (*young.prompt_ids, 1, 1)


def test_preempted_requests_get_the_answers_they_would_have_had_alone() -> None:
    requests = [request_of(name, 5, 11) for name in "abcd"]
    scheduler, model = scheduler_of(*requests, n_blocks=5, max_batched_tokens=5), PagedModel(4)
    serve(scheduler, model)
    assert sum(request.n_preemptions for request in requests) > 0
    for request in requests:
        assert (request.output_ids, request.finish_reason) == answer_alone(request)


@pytest.mark.parametrize("reason", FinishReason)
def test_a_request_can_be_finished_at_any_stage(reason: FinishReason) -> None:
    running, preempted, waiting = request_of("a", 7, 8), request_of("b", 7, 8), request_of("c", 1)
    scheduler = scheduler_of(running, preempted, waiting, n_blocks=4, max_batched_tokens=14)
    while not preempted.n_preemptions:
        step(scheduler)
    for request in (preempted, running, waiting):
        assert scheduler.get(request.request_id) is request
        assert scheduler.finish(request.request_id, reason) is request
        scheduler.check_integrity()
        assert scheduler.get(request.request_id) is None
        assert (request.status, request.finish_reason) == (RequestStatus.FINISHED, reason)
        assert request.block_ids == []
    assert not scheduler.has_work


def test_finishing_what_has_ended_changes_nothing() -> None:
    request = request_of("a", 1)
    scheduler = scheduler_of(request)
    scheduler.finish("a", FinishReason.STOP)
    assert scheduler.finish("a", FinishReason.ABORT) is None
    assert scheduler.finish("never there", FinishReason.ABORT) is None
    assert request.finish_reason is FinishReason.STOP


def test_a_request_aborted_during_a_step_is_passed_over() -> None:
    aborted, other = request_of("a", 2), request_of("b", 2)
    scheduler = scheduler_of(aborted, other)
    output = scheduler.schedule()
    scheduler.finish("a", FinishReason.ABORT)
    scheduler.update(output, {"b": 1})
    scheduler.check_integrity()
    assert (aborted.output_ids, other.output_ids) == ([], [1])


def test_a_request_longer_than_the_context_is_refused() -> None:
    scheduler = scheduler_of(request_of("fits", 12, 4))
    with pytest.raises(RequestError, match=r"prompt of 12 tokens and max_tokens=5.*16") as caught:
        scheduler.add(request_of("too long", 12, 5))
    assert caught.value.param == "max_tokens"
    assert scheduler.get("too long") is None


def test_a_full_queue_refuses_and_accepts_again_when_it_has_moved() -> None:
    scheduler = scheduler_of(request_of("a", 1), max_queued=1)
    with pytest.raises(CapacityError, match="1 requests are waiting and max_queued is 1"):
        scheduler.add(request_of("b", 1))
    step(scheduler)
    scheduler.add(request_of("b", 1))
    scheduler.check_integrity()


def test_a_request_is_added_once() -> None:
    request = request_of("a", 1)
    scheduler = scheduler_of(request)
    with pytest.raises(AssertionError, match="added twice"):
        scheduler.add(request_of("a", 1))
    scheduler.finish("a", FinishReason.ABORT)
    with pytest.raises(AssertionError, match="added twice"):
        scheduler.add(request)


def test_a_missing_sample_is_a_fault_and_leaves_the_request_as_it_was() -> None:
    request = request_of("a", 1)
    scheduler = scheduler_of(request)
    output = scheduler.schedule()
    with pytest.raises(KeyError, match="a"):
        scheduler.update(output, {})
    assert (request.n_computed, request.output_ids) == (0, [])


def test_an_answer_that_was_not_ended_in_time_is_a_fault() -> None:
    scheduler = scheduler_of(request_of("a", 1, max_tokens=1))
    scheduler.update(scheduler.schedule(), {"a": 1})
    with pytest.raises(AssertionError, match="drawn past the end"):
        scheduler.update(scheduler.schedule(), {"a": 1})


def test_an_output_is_used_once() -> None:
    scheduler = scheduler_of(request_of("a", 1))
    output = scheduler.schedule()
    scheduler.update(output, {"a": 1})
    with pytest.raises(AssertionError, match="does not continue"):
        scheduler.update(output, {"a": 1})


def test_a_chunk_is_not_taken_for_that_of_a_namesake() -> None:
    scheduler = scheduler_of(request_of("a", 1))
    output = scheduler.schedule()
    scheduler.finish("a", FinishReason.ABORT)
    scheduler.add(request_of("a", 1))
    with pytest.raises(AssertionError, match="does not continue"):
        scheduler.update(output, {"a": 1})


def test_the_pool_has_the_size_of_the_config() -> None:
    with pytest.raises(AssertionError, match="3 blocks in the pool, 4 in config"):
        Scheduler(EngineConfig(max_model_len=4, n_blocks=4), BlockPool(3))


def test_no_rendering_shows_token_ids() -> None:
    request = Request(
        request_id="r",
        prompt_ids=(31337, 31338),
        params=SamplingParams(max_tokens=1),
        eos_ids=frozenset(),
    )
    assert "3133" not in repr(scheduler_of(request).schedule())


class ForgetsToFree(Scheduler):
    """Ends a running request without giving its blocks back."""

    def finish(self, request_id: str, reason: FinishReason) -> Request | None:
        request = self.get(request_id)
        if request is not None:
            request.block_ids = []
        return super().finish(request_id, reason)


class KeepsComputed(Scheduler):
    """Takes the blocks of a preempted request and still counts its tokens as computed."""

    def _preempt(self, request: Request) -> None:
        n_computed = request.n_computed
        super()._preempt(request)
        request.n_computed = n_computed


class QueuesAtTheBack(Scheduler):
    """Lets younger requests pass a preempted one."""

    def _preempt(self, request: Request) -> None:
        super()._preempt(request)
        self._waiting.rotate(-1)


class SharesBlocks(Scheduler):
    """Gives every new request the blocks of the oldest one."""

    def _admit(self) -> bool:
        is_admitted = super()._admit()
        oldest, newest = self._running[0], self._running[-1]
        if is_admitted and newest is not oldest:
            n_blocks = len(newest.block_ids)
            newest.block_ids = oldest.block_ids[:n_blocks]
        return is_admitted


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (ForgetsToFree, "blocks are held"),
        (KeepsComputed, "waiting with something computed"),
        (QueuesAtTheBack, "order of arrival"),
        (SharesBlocks, "different blocks"),
    ],
)
def test_integrity_sees_a_faulty_scheduler(kind: type[Scheduler], fault: str) -> None:
    requests = [request_of(name, 5, 8) for name in "abcd"]
    scheduler = scheduler_of(*requests, kind=kind, n_blocks=4, max_batched_tokens=16)
    with pytest.raises(AssertionError, match=fault):
        serve(scheduler)


def test_the_right_scheduler_passes_where_the_faulty_ones_are_seen() -> None:
    requests = [request_of(name, 5, 8) for name in "abcd"]
    scheduler = scheduler_of(*requests, n_blocks=4, max_batched_tokens=16)
    serve(scheduler)
    assert scheduler._pool.n_free == 4
