"""Which tokens of which requests the next step computes. Knows nothing of tensors or sampling.

There is no prefill and no decode phase. Every request has some known tokens and some computed ones,
and each step lets the computed ones catch up under one token budget: a long prompt takes several
steps, an answer takes one token a step, and a request that was preempted starts again from zero.

    queue     order              blocks          left by
    waiting   oldest in front    none            admission, finish
    running   oldest first       hold n_tokens   preemption, finish

Every running request is older than every waiting one. Blocks are taken from the youngest running
request, so the oldest always moves on and every request ends.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenmark.engine.block_pool import BlockPool
from tokenmark.engine.config import EngineConfig
from tokenmark.engine.request import FinishReason, Request, RequestStatus
from tokenmark.watermark.errors import CapacityError, RequestError

__all__ = ["ScheduledChunk", "Scheduler", "SchedulerOutput"]


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Consecutive tokens of one request that a step computes.

    Args:
        request_id: whose tokens they are.
        start: position of the first one, prompt and answer counted together; all before it are
            computed.
        token_ids: at least one id.
        block_ids: all blocks of the request, in token order; they hold every token of the chunk.
        samples: whether the chunk ends at the last known token, so that its last row of logits
            gives the next one.
    """

    request_id: str
    start: int
    # Token ids are the user's text, which no log may hold.
    token_ids: tuple[int, ...] = field(repr=False)
    block_ids: tuple[int, ...]
    samples: bool

    @property
    def stop(self) -> int:
        """Position behind the last token."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """What one step computes.

    Args:
        chunks: at most one a request, oldest request first.
        preempted: ids of requests that lost their blocks; none of them has a chunk.
    """

    chunks: tuple[ScheduledChunk, ...]
    preempted: tuple[str, ...]

    @property
    def n_tokens(self) -> int:
        """Number of tokens over all chunks, at most the step's budget."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)


class Scheduler:
    """The queues of one engine.

    Its owner repeats: `schedule`, compute and sample, `update`, then `finish` for every answer that
    has ended. `add` and `finish` may be called between any two of these.
    """

    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        if pool.n_blocks != config.n_blocks:
            raise AssertionError(f"{pool.n_blocks} blocks in the pool, {config.n_blocks} in config")
        self._config = config
        self._pool = pool
        self._requests: dict[str, Request] = {}
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._n_arrivals = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._requests)

    @property
    def n_running(self) -> int:
        """Number of requests that hold blocks."""
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        """Number of requests that hold no blocks, preempted ones included."""
        return len(self._waiting)

    def get(self, request_id: str) -> Request | None:
        """The unfinished request of that id, if there is one."""
        return self._requests.get(request_id)

    def add(self, request: Request) -> None:
        """Put a new request at the end of the queue.

        Raises:
            RequestError: prompt and answer may together exceed `max_model_len`.
            CapacityError: `max_queued` requests are waiting already.
        """
        n_prompt, max_tokens = request.n_prompt, request.params.max_tokens
        if n_prompt + max_tokens > self._config.max_model_len:
            raise RequestError(
                f"a prompt of {n_prompt} tokens and max_tokens={max_tokens} exceed the context of "
                f"{self._config.max_model_len} tokens; shorten the prompt or lower max_tokens",
                param="max_tokens",
            )
        if self.n_waiting >= self._config.max_queued:
            raise CapacityError(
                f"{self.n_waiting} requests are waiting and max_queued is "
                f"{self._config.max_queued}; try again later"
            )
        if request.request_id in self._requests or request.arrival is not None:
            raise AssertionError(f"added twice: {request}")
        request.arrival = self._n_arrivals
        self._n_arrivals += 1
        self._requests[request.request_id] = request
        self._waiting.append(request)

    def schedule(self) -> SchedulerOutput:
        """The chunks of the next step; the blocks for them are already allocated."""
        chunks: list[ScheduledChunk] = []
        preempted: list[str] = []
        budget = self._config.max_batched_tokens
        # Preemption shortens the list at its young end, which this loop has not reached yet.
        while budget > 0 and len(chunks) < self.n_running:
            request = self._running[len(chunks)]
            preempted += self._make_room(request)
            if request.status is RequestStatus.RUNNING:
                chunks.append(_next_chunk(request, budget))
                budget -= len(chunks[-1].token_ids)
        # Whoever has just lost blocks would be first in line for them again.
        while budget > 0 and not preempted and self._admit():
            chunks.append(_next_chunk(self._running[-1], budget))
            budget -= len(chunks[-1].token_ids)
        return SchedulerOutput(tuple(chunks), tuple(preempted))

    def update(self, output: SchedulerOutput, sampled: Mapping[str, int]) -> None:
        """Record that a step has been computed.

        Requests that were finished since `schedule` are passed over.

        Args:
            output: the latest answer of `schedule`.
            sampled: the next id of each request whose chunk samples.
        """
        for chunk in output.chunks:
            request = self._requests.get(chunk.request_id)
            if request is None:
                continue
            is_running = request.status is RequestStatus.RUNNING
            if not is_running or request.n_computed != chunk.start:
                raise AssertionError(f"chunk from {chunk.start} does not continue {request}")
            if chunk.samples:
                if request.finish_reason_by_ids() is not None:
                    raise AssertionError(f"drawn past the end of {request}")
                request.output_ids.append(sampled[chunk.request_id])
            request.n_computed = chunk.stop

    def finish(self, request_id: str, reason: FinishReason) -> Request | None:
        """End a request at any stage and take back its blocks.

        Returns the request, or None if no unfinished one has that id: a client may abort an answer
        that has just ended by itself.
        """
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        if request.status is RequestStatus.RUNNING:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        self._release(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        return request

    def check_integrity(self) -> None:
        """Raise AssertionError unless queues, requests and block pool agree."""
        self._pool.check_integrity()
        # A dict keeps the order of insertion, which is the order of arrival.
        if [*self._running, *self._waiting] != list(self._requests.values()):
            raise AssertionError("the queues are not the unfinished requests in order of arrival")
        held: list[int] = []
        for request in self._running:
            held += request.block_ids
            n_slots = len(request.block_ids) * self._config.block_size
            if request.status is not RequestStatus.RUNNING or n_slots < request.n_computed:
                raise AssertionError(f"running without enough blocks: {request}")
        for request in self._waiting:
            is_idle = not request.block_ids and request.n_computed == 0
            if request.status is not RequestStatus.WAITING or not is_idle:
                raise AssertionError(f"waiting with something computed: {request}")
        if len(set(held)) != len(held) or len(held) != self._pool.n_held:
            raise AssertionError(
                f"running requests hold {len(set(held))} different blocks in {len(held)} places, "
                f"and {self._pool.n_held} blocks are held"
            )

    def _make_room(self, request: Request) -> list[str]:
        """Get a running request the blocks for its known tokens; the ids of those preempted."""
        preempted: list[str] = []
        n_missing = self._n_missing_blocks(request)
        while not self._pool.can_allocate(n_missing):
            youngest = self._running.pop()
            self._preempt(youngest)
            preempted.append(youngest.request_id)
            if youngest is request:
                return preempted
        request.block_ids += self._pool.allocate(n_missing)
        return preempted

    def _admit(self) -> bool:
        """Start the first waiting request if there is room for all its known tokens.

        Room for the first chunk alone would let a long prompt in that then loses its blocks, and
        the work in them, before it is through.
        """
        if not self._waiting or self.n_running >= self._config.max_running:
            return False
        n_missing = self._n_missing_blocks(self._waiting[0])
        if not self._pool.can_allocate(n_missing):
            return False
        request = self._waiting.popleft()
        request.block_ids += self._pool.allocate(n_missing)
        request.status = RequestStatus.RUNNING
        self._running.append(request)
        return True

    def _preempt(self, request: Request) -> None:
        """Send a request back to the front of the queue; its ids stay and are computed again."""
        self._release(request)
        request.n_computed = 0
        request.n_preemptions += 1
        request.status = RequestStatus.WAITING
        self._waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self._pool.free(request.block_ids)
        request.block_ids = []

    def _n_missing_blocks(self, request: Request) -> int:
        return self._config.n_blocks_of(request.n_tokens) - len(request.block_ids)


def _next_chunk(request: Request, budget: int) -> ScheduledChunk:
    start = request.n_computed
    stop = min(request.n_tokens, start + budget)
    return ScheduledChunk(
        request_id=request.request_id,
        start=start,
        token_ids=request.token_ids(start, stop),
        block_ids=tuple(request.block_ids),
        samples=stop == request.n_tokens,
    )
