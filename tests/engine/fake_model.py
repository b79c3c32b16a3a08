"""A model of few ids behind a paged cache: what it answers depends on every id it reads there.

A block handed to two requests, a token computed too late or not at all, or a wrong order of blocks
changes the ids read, and with them the answer.
"""

import zlib

from tokenmark.engine.request import FinishReason, Request
from tokenmark.engine.scheduler import Scheduler, SchedulerOutput

EOS = 0
VOCAB_SIZE = 8


def next_id(prefix: tuple[int, ...], *, is_eos_allowed: bool) -> int:
    word = zlib.crc32(bytes(prefix))
    return word % VOCAB_SIZE if is_eos_allowed else 1 + word % (VOCAB_SIZE - 1)


def answer_alone(request: Request) -> tuple[list[int], FinishReason]:
    """The answer of a request that is the only one, with nothing cached."""
    alone = Request(
        request_id="alone",
        prompt_ids=request.prompt_ids,
        params=request.params,
        eos_ids=request.eos_ids,
    )
    while (reason := alone.finish_reason_by_ids()) is None:
        prefix = alone.token_ids(0, alone.n_tokens)
        alone.output_ids.append(next_id(prefix, is_eos_allowed=alone.is_eos_allowed))
    return alone.output_ids, reason


class PagedModel:
    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._slots: dict[tuple[int, int], int] = {}

    def run(self, output: SchedulerOutput, scheduler: Scheduler) -> dict[str, int]:
        for chunk in output.chunks:
            for offset, token_id in enumerate(chunk.token_ids):
                self._slots[self._slot(chunk.block_ids, chunk.start + offset)] = token_id
        sampled = {}
        for chunk in output.chunks:
            request = scheduler.get(chunk.request_id)
            if chunk.samples and request is not None:
                read = [self._slots[self._slot(chunk.block_ids, n)] for n in range(chunk.stop)]
                sampled[chunk.request_id] = next_id(
                    tuple(read), is_eos_allowed=request.is_eos_allowed
                )
        return sampled

    def _slot(self, block_ids: tuple[int, ...], position: int) -> tuple[int, int]:
        return block_ids[position // self._block_size], position % self._block_size


def finish_ended(scheduler: Scheduler, sampled: dict[str, int]) -> list[Request]:
    """What the engine does after `update`: end the answers whose ids say so."""
    ended = []
    for request_id in sampled:
        request = scheduler.get(request_id)
        reason = None if request is None else request.finish_reason_by_ids()
        if request is not None and reason is not None:
            scheduler.finish(request_id, reason)
            ended.append(request)
    return ended
