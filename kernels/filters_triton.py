"""What top-k, top-p and min-p leave of each row of logits, as a Triton kernel that does not sort.

Knows nothing of words or requests, and trusts that its arguments were checked. The law is that of
`tokenmark.kernels.rows.Filters`: candidates of equal logit stay or go together, so that a filter is
told by its floor, the smallest scaled logit that stays.

A floor is searched by bisection over the floats between the smallest and the largest candidate, at
most 32 passes over the row: what lies above a candidate's logit, counted or weighed, is less the
larger that logit is. After every pass the ends are candidates' logits again, so that few distinct
logits need few passes.

Counts are exact. A mass is a sum of float32 exponentials, off by less than 2e-7 of themselves, in
float32 over the lanes of a step and in float64 over the steps. So a candidate may be on the other
side of the edge of top-p where the mass before it differs from the bound by less than about 1e-6
of the whole.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokenmark.kernels.rows_triton import scaled_logits

__all__ = ["find_floors"]

# One program has a row to itself: the wider its steps, the more loads are under way.
_WIDTH: Final = 4096
_WARPS: Final = 16

_SIGN = tl.constexpr(-(2**31))
_MAGNITUDE = tl.constexpr(2**31 - 1)
# Below it powers are no normal numbers.
_LOWEST_EXPONENT = tl.constexpr(-87.0)
_LOG2_E = tl.constexpr(1.4426950408889634)
# The upper part times any exponent of a float32 is exact.
_LN2_UPPER = tl.constexpr(0.693145751953125)
_LN2_LOWER = tl.constexpr(1.4286068203094172e-06)


def find_floors(
    logits: Tensor,  # [B, V] float32, bfloat16 or float16, any strides; -inf where removed
    temperatures: Tensor,  # [B] float32, above 0
    top_k: Tensor,  # [B] int64, at least 1; V or more keeps all
    top_p: Tensor,  # [B] float64, above 0; 1 keeps all
    min_p: Tensor,  # [B] float64, from 0, which keeps all, to 1
    *,
    width: int = _WIDTH,
) -> Tensor:  # [B] float32
    """The smallest scaled logit of each row that stays; -inf where nothing is removed.

    Nothing is removed from a row without candidate, or with NaN or +inf: its draw will tell. The
    launch waits for nothing and can be captured in a CUDA graph.

    Args:
        logits: all tensors on one device, and contiguous but for this one.
        temperatures: what logits are divided by, in float32.
        top_k: how many candidates stay, and those that tie with the last of them.
        top_p: what share of the probability stays, at least.
        min_p: how likely a candidate is that stays, measured by the likeliest.
        width: ids at a time, a power of two; sums are rounded accordingly.
    """
    n_rows, n_ids = logits.shape
    floors = logits.new_empty(n_rows, dtype=torch.float32)
    if n_rows == 0:
        return floors
    with torch.cuda.device_of(logits):
        _floor_kernel[(n_rows,)](
            logits,
            *logits.stride(),
            temperatures,
            top_k,
            top_p,
            min_p,
            floors,
            n_ids,
            width=width,
            num_warps=_WARPS,
        )
    return floors


@triton.jit
def _rank(logit: tl.tensor) -> tl.tensor:
    """An integer ordered as floats are; both zeros have the same."""
    bits = logit.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, -(bits & _MAGNITUDE), bits)


@triton.jit
def _logit_of_rank(rank: tl.tensor) -> tl.tensor:
    bits = tl.where(rank < 0, tl.sub(0, rank, sanitize_overflow=False) | _SIGN, rank)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _exponential(x: tl.tensor) -> tl.tensor:
    """e^x of float32 for x <= 0, off by less than 2e-7 of itself; 0 below -87."""
    in_range = tl.maximum(x, _LOWEST_EXPONENT)
    # A float32 of that size has no bits for fractions: the sum is rounded to an integer.
    exponent = tl.fma(in_range, _LOG2_E, 12582912.0) - 12582912.0
    f = tl.fma(exponent, -_LN2_LOWER, tl.fma(exponent, -_LN2_UPPER, in_range))
    # Minimax: e^f = 1 + f + f^2 p(f).
    p = tl.fma(f, 0.0013814540579915047, 0.00836874544620514)
    p = tl.fma(p, f, 0.04166838899254799)
    p = tl.fma(p, f, 0.1666652113199234)
    p = tl.fma(p, f, 0.4999999403953552)
    p = tl.fma(tl.fma(p, f, 1.0), f, 1.0)
    power = ((exponent.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x >= _LOWEST_EXPONENT, p * power, 0.0)


@triton.jit
def _survey(row: tl.tuple, width: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The smallest and the largest candidate; +inf as the largest of a row that has NaN or +inf."""
    row_logits, id_stride, n_ids, temperature = row
    lane = tl.arange(0, width)
    lowest = tl.full((width,), float("inf"), tl.float32)
    highest = tl.full((width,), float("-inf"), tl.float32)
    for start in range(0, n_ids, width):
        scaled = scaled_logits(row_logits, id_stride, n_ids, temperature, start + lane)
        lowest = tl.minimum(lowest, tl.where(scaled > float("-inf"), scaled, float("inf")))
        highest = tl.maximum(highest, tl.where(scaled < float("inf"), scaled, float("inf")))
    return tl.min(lowest, axis=0), tl.max(highest, axis=0)


@triton.jit
def _weigh_above(
    row: tl.tuple, highest: tl.tensor, logit: tl.tensor, by_mass: tl.constexpr, width: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The number or mass of those above `logit`, the smallest of them, the largest of others."""
    row_logits, id_stride, n_ids, temperature = row
    lane = tl.arange(0, width)
    weight = tl.full((), 0, tl.float64)
    above = tl.full((width,), float("inf"), tl.float32)
    others = tl.full((width,), float("-inf"), tl.float32)
    for start in range(0, n_ids, width):
        scaled = scaled_logits(row_logits, id_stride, n_ids, temperature, start + lane)
        is_above = scaled > logit
        if by_mass:
            masses = tl.where(is_above, _exponential(scaled - highest), 0.0)
            weight += tl.sum(masses, axis=0).to(tl.float64)
        else:
            weight += tl.sum(is_above.to(tl.int32), axis=0).to(tl.float64)
        above = tl.minimum(above, tl.where(is_above, scaled, float("inf")))
        others = tl.maximum(others, tl.where(is_above, float("-inf"), scaled))
    return weight, tl.min(above, axis=0), tl.max(others, axis=0)


@triton.jit
def _search(
    row: tl.tuple,
    lowest: tl.tensor,
    highest: tl.tensor,
    bound: tl.tensor,
    by_mass: tl.constexpr,
    width: tl.constexpr,
) -> tl.tensor:
    """The smallest candidate, from `lowest` on, with less than `bound` above it."""
    low, high = lowest, highest
    while low < high:
        # Half way by rank, and below `high`: in steps of floats, however far these are apart.
        low_rank, high_rank = _rank(low), _rank(high)
        half = (low_rank & high_rank) + ((low_rank ^ high_rank) >> 1)
        weight, above, others = _weigh_above(row, highest, _logit_of_rank(half), by_mass, width)
        low = tl.where(weight < bound, low, above)
        high = tl.where(weight < bound, others, high)
    return low


@triton.jit(do_not_specialize=["row_stride", "n_ids"])
def _floor_kernel(  # noqa: PLR0913, PLR0917 - pointers, strides and sizes
    logits: tl.tensor,
    row_stride: tl.tensor,
    id_stride: tl.tensor,
    temperatures: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    min_p: tl.tensor,
    floors: tl.tensor,
    n_ids: tl.tensor,
    width: tl.constexpr,
) -> None:
    """The floor of one row."""
    number = tl.program_id(0).to(tl.int64)
    k, p, fraction = tl.load(top_k + number), tl.load(top_p + number), tl.load(min_p + number)
    tl.store(floors + number, float("-inf"))
    if (k >= n_ids) & (p >= 1.0) & (fraction <= 0.0):
        return
    row = (logits + number * row_stride, id_stride, n_ids, tl.load(temperatures + number))
    lowest, highest = _survey(row, width)
    if ~((lowest <= highest) & (highest < float("inf"))):
        return
    floor = lowest
    if k < n_ids:
        floor = _search(row, lowest, highest, k.to(tl.float64), by_mass=False, width=width)
    if p < 1.0:
        below = _logit_of_rank(_rank(floor) - 1)
        whole, _, _ = _weigh_above(row, highest, below, by_mass=True, width=width)
        floor = _search(row, floor, highest, p * whole, by_mass=True, width=width)
    if fraction > 0.0:
        floor = tl.maximum(floor, highest + tl.log(fraction).to(tl.float32))
    # What does not exceed the smallest candidate removes nothing.
    tl.store(floors + number, tl.where(floor > lowest, floor, float("-inf")))
