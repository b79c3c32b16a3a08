"""The engine behind an event loop: one thread steps, coroutines submit and receive.

Knows nothing of HTTP or text formats. The thread sleeps while there is no work; it owns the core,
and everything that reaches the core from outside goes through one inbox.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from tokenmark.engine.answer import Answer
from tokenmark.engine.core import EngineCore, StepResult
from tokenmark.engine.metrics import EngineMetrics
from tokenmark.engine.request import Request
from tokenmark.watermark.errors import CapacityError, TokenmarkError

__all__ = ["AsyncEngine", "Submission"]

_JOIN_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Submission:
    """A request with its drawing state."""

    request: Request
    answer: Answer


class _Stream:
    """The results of some requests, on their way from the engine's thread to one coroutine."""

    def __init__(self, n_requests: int) -> None:
        self.n_open = n_requests
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[StepResult | TokenmarkError] = asyncio.Queue()

    def put(self, item: StepResult | TokenmarkError) -> None:
        """Called from the engine's thread."""
        # The loop is closed only when the server is going down and nobody listens any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    async def get(self) -> StepResult:
        item = await self._queue.get()
        if isinstance(item, TokenmarkError):
            raise item
        return item


class AsyncEngine:
    """Runs an engine core on a thread of its own; use it as a context manager.

    Args:
        core: touched by no one else from now on.
        metrics: what happened, for whoever watches the server.
    """

    def __init__(self, core: EngineCore, metrics: EngineMetrics) -> None:
        self._core = core
        self._metrics = metrics
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        # Guards the four below, which both sides touch.
        self._wake = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._open: set[_Stream] = set()
        self._stopping = False
        self._ended = False
        # Where the results of each request go that the core has.
        self._streams: dict[str, _Stream] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(_JOIN_TIMEOUT_S)

    @property
    def is_healthy(self) -> bool:
        """Whether the engine's thread is alive and takes requests."""
        return self._thread.is_alive() and not (self._stopping or self._ended)

    async def generate(self, submissions: Sequence[Submission]) -> AsyncGenerator[StepResult, None]:
        """The results of the requests as they come, interleaved, until all have ended.

        Requests that are unfinished when the generator is closed are aborted, so a client that goes
        away holds no blocks.

        Raises:
            RequestError: one of the requests can never fit.
            CapacityError: the queue is full, or the engine has stopped.
        """
        stream = _Stream(len(submissions))
        names = [submission.request.request_id for submission in submissions]
        try:
            self._submit(lambda: self._add(submissions, stream), stream)
            while stream.n_open:
                result = await stream.get()
                stream.n_open -= result.finish_reason is not None
                yield result
        finally:
            with self._wake:
                self._open.discard(stream)
                if stream.n_open:
                    self._inbox.append(lambda: self._abort(names))
                    self._wake.notify()

    def _submit(self, action: Callable[[], None], stream: _Stream) -> None:
        """Have the engine's thread do something between two steps, or tell the stream it ended."""
        with self._wake:
            if not self.is_healthy:
                raise CapacityError(
                    "the engine has stopped; see the server's log and start it anew"
                )
            self._open.add(stream)
            self._inbox.append(action)
            self._wake.notify()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                for result in self._core.step():
                    self._deliver(result)
                self._observe()
            self._tell_all("the engine is shutting down; ask again once it is back")
        except BaseException:
            # A defect. The thread ends with its traceback in the log, and /healthz turns red.
            self._tell_all("the engine stopped on an internal error; see the server's log")
            raise

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do, take in what was posted; False to stop."""
        with self._wake:
            self._wake.wait_for(lambda: self._stopping or self._inbox or self._core.has_work)
            if self._stopping:
                return False
            actions = list(self._inbox)
            self._inbox.clear()
        for action in actions:
            action()
        return True

    def _add(self, submissions: Sequence[Submission], stream: _Stream) -> None:
        """Queue all of the requests, or none and say why."""
        added = []
        try:
            for submission in submissions:
                self._core.add(submission.request, submission.answer)
                added.append(submission.request.request_id)
        except TokenmarkError as error:
            for name in added:
                self._core.abort(name)
            stream.put(error)
            return
        self._streams.update(dict.fromkeys(added, stream))
        for submission in submissions:
            self._metrics.observe_admission(submission.request.n_prompt)

    def _abort(self, names: Sequence[str]) -> None:
        for name in names:
            self._streams.pop(name, None)
            result = self._core.abort(name)
            if result is not None:
                self._metrics.observe_result(result)

    def _deliver(self, result: StepResult) -> None:
        self._metrics.observe_result(result)
        stream = self._streams[result.request_id]
        if result.finish_reason is not None:
            del self._streams[result.request_id]
        stream.put(result)

    def _observe(self) -> None:
        """State the load; whenever the engine is idle, check that nothing was lost."""
        self._metrics.observe_load(self._core.n_running, self._core.n_waiting)
        if not self._core.has_work:
            self._core.check_integrity()

    def _tell_all(self, message: str) -> None:
        """End whatever somebody still waits for; nothing new is taken from now on."""
        with self._wake:
            self._ended = True
            for stream in self._open:
                stream.put(CapacityError(message))
