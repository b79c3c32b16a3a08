"""What the Triton draw is measured beside: a plain draw with Philox words, and an empty kernel.

Knows nothing of filters, families or statuses. In the plain draw there is one Philox call an
id, of whose four words one is used, and blocks of 1,024 ids have winners that a second kernel
compares. That is the recipe of vLLM's marks word for word.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokenmark.kernels.words_triton import philox4x32

__all__ = ["launch_nothing", "plain_draw", "words_of_ids"]

_BLOCK: Final = 1024
_STATE_WORDS = tl.constexpr(8)


def plain_draw(
    logits: Tensor,  # [B, V] float32, bfloat16 or float16, finite; the ids of a row side by side
    states: Tensor,  # [B, 8] int32: the bits of `philox.row_states` and three zeros
) -> Tensor:  # [B] int64
    """The id of the largest logit - ln(-ln u) of each row, in float32, ties to the lowest id."""
    n_rows, n_ids = logits.shape
    n_blocks = triton.cdiv(n_ids, _BLOCK)
    values = logits.new_empty((n_rows, n_blocks), dtype=torch.float32)
    ids = logits.new_empty((n_rows, n_blocks), dtype=torch.int64)
    winners = logits.new_empty(n_rows, dtype=torch.int64)
    _block_kernel[(n_rows, n_blocks)](
        logits, logits.stride(0), states, values, ids, n_ids, block=_BLOCK
    )
    _row_kernel[(n_rows,)](values, ids, winners, n_blocks, width=triton.next_power_of_2(n_blocks))
    return winners


def launch_nothing() -> None:
    """Launch a kernel that does nothing, on the present GPU."""
    _empty_kernel[(1,)]()


@triton.jit
def _empty_kernel() -> None:
    return


@triton.jit
def words_of_ids(state: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """The word of each id, from the five words at `state`."""
    s0 = tl.load(state).to(tl.uint32, bitcast=True)
    s1 = tl.load(state + 1).to(tl.uint32, bitcast=True)
    s2 = tl.load(state + 2).to(tl.uint32, bitcast=True)
    k0 = tl.load(state + 3).to(tl.uint32, bitcast=True)
    k1 = tl.load(state + 4).to(tl.uint32, bitcast=True)
    o0, o1, o2, o3 = philox4x32(((ids >> 2).to(tl.uint32), s0, s1, s2), (k0, k1))
    is_even = (ids & 1) == 0
    return tl.where((ids & 2) == 0, tl.where(is_even, o0, o1), tl.where(is_even, o2, o3))


@triton.jit
def _block_kernel(
    logits: tl.tensor,
    row_stride: tl.tensor,
    states: tl.tensor,
    values: tl.tensor,  # [B, n_blocks]
    winners: tl.tensor,  # [B, n_blocks]
    n_ids: tl.tensor,
    block: tl.constexpr,
) -> None:
    """The winner of one block of one row."""
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * block + tl.arange(0, block)
    words = words_of_ids(states + row * _STATE_WORDS, ids)
    # The float32 just below (m + 1) / 2^24, m the upper 24 bits.
    above = ((words >> 8).to(tl.float32) + 1.0) * 2.0**-24
    uniform = (above.to(tl.int32, bitcast=True) - 1).to(tl.float32, bitcast=True)
    logit = tl.load(logits + row * row_stride + ids, mask=ids < n_ids, other=float("-inf"))
    value = logit.to(tl.float32) - tl.log(-tl.log(uniform))
    best, place = tl.max(value, axis=0, return_indices=True)
    place_of_block = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(values + place_of_block, best)
    tl.store(winners + place_of_block, (tl.program_id(1) * block + place).to(tl.int64))


@triton.jit
def _row_kernel(
    values: tl.tensor,
    winners_of_blocks: tl.tensor,
    winners: tl.tensor,
    n_blocks: tl.tensor,
    width: tl.constexpr,
) -> None:
    """The winner of a row's blocks."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, width)
    places = row * n_blocks + block
    value = tl.load(values + places, mask=block < n_blocks, other=float("-inf"))
    _, place = tl.max(value, axis=0, return_indices=True)
    tl.store(winners + row, tl.load(winners_of_blocks + row * n_blocks + place))
