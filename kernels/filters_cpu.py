"""Finds what top-k, top-p and min-p leave of rows of logits, without sorting. Knows no words.

Candidates of equal logit stay or go together, so that all three filters come down to one number a
row, its floor: whatever is less goes. Top-k and top-p look for the rank of the floor digit by
digit: a pass over the row adds up the weights of the candidates in 2048 buckets of ranks, from the
top of which it is seen in which bucket the floor lies; the next pass is over that bucket alone. A
rank has 32 bits, so that three passes are enough. Chunks of 128 that have nothing so large are
skipped, and so are most of them by top-k: the floor is no lower than the k-th largest of their
largest logits.

Weights are 1 for top-k and exp(logit - largest logit) for top-p. The latter are float32, within
1e-7 of the power of a difference that is itself rounded to float32, and are added up in float64, in
an order that depends on the row alone. So a candidate may be on the other side of the edge of top-p
if the mass of those before it differs from the bound by less than about 1e-6 of the whole.
"""

from collections.abc import Callable
from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.kernels import masses_cpu, rows_cpu
from tokenmark.kernels.compiled import compiled, entry, inlined
from tokenmark.kernels.masses_cpu import exponential
from tokenmark.kernels.rows_cpu import (
    CHUNKS,
    LANES,
    RANK_OF_INFINITY,
    TILE,
    Float,
    Floats,
    Row,
    Scale,
    Words,
    logit_of_rank,
    rank_of_bits,
    survey,
    unpack,
)

__all__ = ["find_floors"]

Weights = NDArray[np.float64]  # [2, _BUCKETS]
# A row, how it is read, the highest rank of each of its chunks, and that of all; what is
# overwritten: room for the bits of a chunk, and for the weights.
View = tuple[Row, Scale, Words, np.uint32, Words, Weights]
# The lowest rank, the highest, and the number of last bits in which the ranks of a bucket differ.
Span = tuple[np.uint32, np.uint32, np.uint32]
Limits = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]  # top-k, top-p, min-p

# What is weighed.
_COUNT, _MASS = 0, 1
# Three passes of 11 bits see all 32 of a rank.
_BUCKETS: Final = 2**11
_LOWEST_RANK: Final = np.uint32(1)


@inlined
def _rank(logit: Float) -> np.uint32:
    """The rank of a logit; -0.0 has that of 0.0."""
    return rank_of_bits(np.float32(logit + np.float32(0)).view(np.uint32))


@compiled
def _pick(bits: Words, span: Span, ranks: Words) -> int:
    """Move the candidates of a span to the front, and note their ranks; how many there are."""
    low, high, _ = span
    logits, n = bits.view(np.float32), np.int32(0)
    for i in range(LANES):
        ranks[i] = _rank(logits[i])
        n = np.int32(n + np.int32(low <= ranks[i] <= high))
    if n in (0, LANES):
        return int(n)
    n_moved = 0
    for i in range(LANES):
        # Without a branch: which candidates are of the span cannot be foreseen.
        rank = ranks[i]
        ranks[n_moved], logits[n_moved] = rank, logits[i]
        n_moved += low <= rank <= high
    return n_moved


@compiled
def _weigh(view: View, span: Span, measure: int) -> None:
    """Fill the first row of the weights with those of the buckets of a span."""
    row, scale, tops, highest, bits, weights = view
    low, _, shift = span
    logits, top = bits.view(np.float32), logit_of_rank(highest)
    ranks, masses = np.empty(LANES, dtype=np.uint32), np.ones(LANES, dtype=np.float32)
    weights[:, :] = 0
    for chunk in range(tops.size):
        if tops[chunk] < low:
            continue
        unpack(row, scale, chunk * LANES, bits)
        n = _pick(bits, span, ranks)
        if measure == _MASS:
            for i in range(n):
                masses[i] = exponential(np.float32(logits[i] - top))
        for i in range(n):
            # Neighbours are often of one bucket: each would wait for the sum of the one before.
            weights[i % 2, np.uint32(ranks[i] - low) >> shift] += np.float64(masses[i])
    for i in range(_BUCKETS):
        weights[0, i] += weights[1, i]


@compiled
def _span(low: np.uint32, high: np.uint32) -> Span:
    """The ranks from one to another, in as small buckets as can be."""
    shift = np.uint32(0)
    while np.uint32(high - low) >> shift >= _BUCKETS:
        shift = np.uint32(shift + np.uint32(1))
    return low, high, shift


@compiled
def _lowest_to_stay(view: View, low: np.uint32, limit: float, measure: int) -> np.uint32:
    """The lowest rank that stays by one filter; 0 if all do.

    Candidates below `low` are not there. A candidate stays if those above it weigh less than the
    bound: `limit` candidates, or that fraction of the mass.
    """
    _, _, _, highest, _, weights = view
    span = _span(low, highest)
    _weigh(view, span, measure)
    total = weights[0].sum()
    bound = limit * total if measure == _MASS else limit
    if total < bound:
        return np.uint32(0)
    above = 0.0
    while True:
        low, high, shift = span
        last, weight = 0, above
        for i in range(np.int64(np.uint32(high - low) >> shift), -1, -1):
            # A bucket with candidates, also where roundings leave too little weight.
            if weights[0, i] == 0:
                continue
            last, above = i, weight
            weight += weights[0, i]
            if weight >= bound:
                break
        low = np.uint32(low + np.uint32(last << shift))
        if shift == 0:
            return low
        span = _span(low, min(high, np.uint32(low + np.uint32((1 << shift) - 1))))
        _weigh(view, span, measure)


@compiled
def _kth_top(tops: Words, k: int, highest: np.uint32) -> np.uint32:
    """A rank that at least k candidates reach: the k-th highest of chunks, or the lowest of all."""
    low = _LOWEST_RANK
    while low < highest:
        middle = np.uint32(highest - (highest - low) // 2)
        n = 0
        for i in range(tops.size):
            n += tops[i] >= middle
        if n >= k:
            low = middle
        else:
            highest = np.uint32(middle - 1)
    return low


@compiled
def _find_floor(view: View, top_k: int, top_p: float, min_p: float) -> Float:
    row, _, tops, highest, _, _ = view
    rank = np.uint32(0)
    if top_k < row.size:
        low = _kth_top(tops, top_k, highest)
        rank = _lowest_to_stay(view, low, np.float64(top_k), _COUNT)
    if top_p < 1:
        rank = _lowest_to_stay(view, max(rank, _LOWEST_RANK), top_p, _MASS)
    floor = logit_of_rank(rank)
    if min_p > 0:
        floor = max(floor, np.float32(logit_of_rank(highest) + np.float32(log(min_p))))
    return floor


def _build(sources: str) -> Callable[..., None]:
    def find_floors(
        flat: Row,
        layout: tuple[int, int],
        encoding: int,
        temperatures: Floats,
        limits: Limits,
        floors: Floats,
    ) -> None:
        _ = sources
        stride, n_columns = layout
        top_k, top_p, min_p = limits
        tops = np.empty(((n_columns + TILE - 1) // TILE, CHUNKS), dtype=np.float32)
        ranks, bits = np.empty(tops.size, dtype=np.uint32), np.empty(TILE, dtype=np.uint32)
        weights = np.empty((2, _BUCKETS))
        for i in range(floors.size):
            floors[i] = -np.inf
            if top_k[i] >= n_columns and top_p[i] >= 1 and min_p[i] <= 0:
                continue
            row = flat[i * stride : i * stride + n_columns]
            scale = (encoding, temperatures[i], np.float32(-np.inf))
            highest, _ = survey(row, scale, 0, bits, tops)
            if not 0 < highest < RANK_OF_INFINITY:
                continue
            for chunk in range(ranks.size):
                ranks[chunk] = _rank(tops[chunk // CHUNKS, chunk % CHUNKS])
            view = (row, scale, ranks, _rank(logit_of_rank(highest)), bits[:LANES], weights)
            floors[i] = _find_floor(view, top_k[i], top_p[i], min_p[i])

    return find_floors


find_floors: Final = entry(_build, masses_cpu, rows_cpu)
"""Fill `floors` [B] for rows of logits: the scaled logit below which candidates go.

That is the smallest that stays by top-k and top-p, or what min-p asks for if that is more; -inf
where no filter is set, and of rows that cannot be drawn: without a candidate, with NaN or +inf.

Args:
    flat: the rows, `layout[0]` apart.
    layout: row stride, V.
    encoding: of the logits.
    temperatures: [B].
    limits: top-k, top-p and min-p, [B] each, as `tokenmark.kernels.rows.Filters` has them.
    floors: [B], overwritten.
"""
