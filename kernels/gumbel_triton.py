"""The keyed draw of a batch as Triton kernels: words, race and winners without a host round trip.

Knows nothing of requests, nor which positions are marked, and trusts that its arguments were
checked. Whatever differs between rows or steps is data: no key, payload, temperature or batch size
compiles a kernel anew.

Several programs share a row: each keeps the two best candidates of its calls, and a second kernel
chooses among them. A candidate's value depends on its own logit and word alone, and a tie goes to
the lowest id, so the winner does not depend on how a row is split.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokenmark.kernels.contexts_triton import Contexts, row_state, sources_of
from tokenmark.kernels.rows import RowStatus
from tokenmark.kernels.rows_triton import scaled_logits
from tokenmark.kernels.words_triton import PHILOX, words_of_calls
from tokenmark.watermark.prf.family import Family

__all__ = ["RowDraws", "draw_rows"]

_LANES: Final = 128
# Enough programs to fill the largest devices a few times over, few enough to be joined at once.
_PROGRAMS: Final = 2048
_MAX_SPLITS: Final = 512

_NO_ID = tl.constexpr(2**31 - 1)
_MINUS_INF_BITS = tl.constexpr(-0x00800000)
_SQRT_HALF_BITS = tl.constexpr(0x3F3504F3)
# The words with 1 - x > sqrt(1/2).
_SMALL_WORDS = tl.constexpr(0x4AFB0CCC)
# The upper part times any exponent of a float32 is exact.
_LN2_UPPER = tl.constexpr(0.693145751953125)
_LN2_LOWER = tl.constexpr(1.4286068203094172e-06)
_DRAWN = tl.constexpr(RowStatus.DRAWN.value)
_NO_CANDIDATE = tl.constexpr(RowStatus.NO_CANDIDATE.value)
_NOT_FINITE = tl.constexpr(RowStatus.NOT_FINITE.value)


@dataclass(frozen=True, slots=True, eq=False)
class RowDraws:
    """The winners of a batch, on the device of the logits."""

    ids: Tensor  # [B] int64; 0 where nothing was drawn
    status: Tensor  # [B] int32, a RowStatus each
    has_choice: Tensor  # [B] bool, whether a second candidate raced
    words: Tensor | None  # [B] int32, the bits of the winner's word
    gaps: Tensor | None  # [B] float32, winner over runner-up in the race; inf without runner-up


def draw_rows(  # noqa: PLR0913 - a tensor for each thing that differs between rows
    logits: Tensor,  # [B, V] float32, bfloat16 or float16, any strides; -inf where removed
    states: Tensor | Contexts,  # [B, 8] int32: the bits of a row's key or state; of philox 3 zeros
    symbols: Tensor,  # [B] integers below 2^20; 0 with philox
    families: Tensor,  # [B] integers, a Family each
    temperatures: Tensor,  # [B] float32, above 0
    floors: Tensor,  # [B] float32, the smallest scaled logits that stay
    *,
    present: Collection[Family],
    detailed: bool = False,
    lanes: int = _LANES,
) -> RowDraws:
    """The id that wins each row's race over softmax(logits / temperature), ties to the lowest id.

    A row's problem is told in its status, so that nothing waits for the device; the launches can be
    captured in a CUDA graph.

    Args:
        logits: all tensors on one device, and contiguous but for this one.
        states: as `tokenmark.watermark.prf` makes them, or what they are to be made from.
        symbols: payload symbols; 0 carries none.
        families: which words the states lead to.
        temperatures: what logits are divided by, in float32.
        floors: as `tokenmark.kernels.filters_triton` finds them; -inf keeps all.
        present: every family that some row has: the host knows, and need not ask the device.
        detailed: also return the winner's word and its lead.
        lanes: calls at a time in one program, a power of two; it changes no result.
    """
    n_rows, n_ids = logits.shape
    draws = RowDraws(
        ids=logits.new_empty(n_rows, dtype=torch.int64),
        status=logits.new_empty(n_rows, dtype=torch.int32),
        has_choice=logits.new_empty(n_rows, dtype=torch.bool),
        words=logits.new_empty(n_rows, dtype=torch.int32) if detailed else None,
        gaps=logits.new_empty(n_rows, dtype=torch.float32) if detailed else None,
    )
    if n_rows == 0:
        return draws
    n_steps = {family: max(1, -(-_max_calls(n_ids, family) // lanes)) for family in present}
    n_splits = _n_splits(n_rows, max(n_steps.values()))
    bests = logits.new_empty((5, n_rows, n_splits), dtype=torch.int32)
    with torch.cuda.device_of(logits):
        for family in present:
            _race_kernel[(n_rows, n_splits)](
                logits,
                *logits.stride(),
                sources_of(states),
                symbols,
                families,
                temperatures,
                floors,
                bests,
                n_ids,
                -(-n_steps[family] // n_splits) * lanes,
                family=family.value,
                detailed=detailed,
                lanes=lanes,
            )
        _winner_kernel[(n_rows,)](
            bests,
            draws.ids,
            draws.status,
            draws.has_choice,
            draws.words,
            draws.gaps,
            n_splits,
            detailed=detailed,
            width=_MAX_SPLITS,
        )
    return draws


def _max_calls(n_ids: int, family: Family) -> int:
    """How many calls a row needs at most, whatever its symbol."""
    if family is Family.PHILOX:
        return -(-n_ids // 4)
    return 128 * ((n_ids + 2046) // 2048 + 1)


def _n_splits(n_rows: int, n_steps: int) -> int:
    """Into how many splits rows of so many steps are cut, none of them empty."""
    wanted = min(n_steps, max(1, _PROGRAMS // n_rows), _MAX_SPLITS)
    return -(-n_steps // -(-n_steps // wanted))


@triton.jit
def _calls_of_split(
    symbol: tl.tensor, n_ids: tl.tensor, calls_per_split: tl.tensor, family: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The calls [first, end) of this program's split of its row."""
    if family == PHILOX:
        first = 0
        end = (n_ids + 3) >> 2
    else:
        first = (symbol >> 11) << 7
        end = (((symbol + n_ids - 1) >> 11) + 1) << 7
    first += tl.program_id(1) * calls_per_split
    return first, tl.minimum(first + calls_per_split, end)


@triton.jit
def _log_parts(a: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """e and f with a = 2^e (1 + f) and 1 + f between the square roots of 1/2 and 2; a is normal."""
    bits = a.to(tl.int32, bitcast=True)
    exponent = tl.sub(bits, _SQRT_HALF_BITS, sanitize_overflow=False) >> 23
    significand = tl.sub(bits, exponent << 23, sanitize_overflow=False)
    return exponent.to(tl.float32), significand.to(tl.float32, bitcast=True) - 1.0


@triton.jit
def _log_of_parts(exponent: tl.tensor, f: tl.tensor) -> tl.tensor:
    """e ln 2 + ln(1 + f), off by less than 2e-7 of itself before the last rounding."""
    # Minimax: ln(1 + f) = f - f^2 / 2 + f^3 p(f).
    p = tl.fma(f, 0.08700430393218994, -0.14267486333847046)
    p = tl.fma(p, f, 0.14914768934249878)
    p = tl.fma(p, f, -0.1657758504152298)
    p = tl.fma(p, f, 0.19963063299655914)
    p = tl.fma(p, f, -0.2500133812427521)
    p = tl.fma(p, f, 0.3333390951156616)
    log_of_significand = tl.fma(f * f, tl.fma(p, f, -0.5), f)
    return tl.fma(exponent, _LN2_UPPER, tl.fma(exponent, _LN2_LOWER, log_of_significand))


@triton.jit
def _log_exponential(words: tl.tensor, family: tl.constexpr) -> tl.tensor:
    """ln E of float32, off by less than 2e-6 at every word; E is Exp(1) and finite."""
    if family == PHILOX:
        # The float32 just below (m + 1) / 2^24, m the upper 24 bits.
        above = ((words >> 8).to(tl.float32) + 1.0) * 2.0**-24
        uniform = tl.sub(above.to(tl.int32, bitcast=True), 1, sanitize_overflow=False)
        exponent, f = _log_parts(uniform.to(tl.float32, bitcast=True))
    else:
        # ln(1 - x): where x is small, 1 + f is 1 - x itself and f = -x keeps every bit of x;
        # elsewhere 1 - x comes from the complement of the word, which keeps the bits of 1 - x.
        complement = words ^ 0xFFFFFFFF
        exponent, f = _log_parts((complement.to(tl.float32) + 0.5) * 2.0**-32)
        is_small = words < _SMALL_WORDS
        exponent = tl.where(is_small, 0.0, exponent)
        f = tl.where(is_small, (words.to(tl.float32) + 0.5) * -(2.0**-32), f)
    exponent, f = _log_parts(-_log_of_parts(exponent, f))
    return _log_of_parts(exponent, f)


@triton.jit
def _race(
    scaled: tl.tensor, floor: tl.tensor, words: tl.tensor, family: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The value of each lane in the race, and whether its logit is NaN or +inf."""
    # A logarithm is finite whatever the word, so that -inf stays -inf and loses to every other.
    value = tl.where(scaled >= floor, scaled - _log_exponential(words, family), float("-inf"))
    return value, ~(scaled < float("inf"))


@triton.jit
def _best_of(
    values: tl.tensor, ids: tl.tensor, words: tl.tensor, runners_up: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The best of several bests: its value, id and word, and the best value that lost."""
    value = tl.max(values, axis=0)
    best_id = tl.min(tl.where(values == value, ids, _NO_ID), axis=0)
    is_best = ids == best_id
    word = tl.max(tl.where(is_best, words, 0), axis=0)
    runner_up = tl.max(tl.where(is_best, runners_up, values), axis=0)
    return value, best_id, word, runner_up


@triton.jit(do_not_specialize=["row_stride", "n_ids", "calls_per_split"])
def _race_kernel(  # noqa: PLR0913, PLR0917 - pointers, strides and sizes
    logits: tl.tensor,
    row_stride: tl.tensor,
    id_stride: tl.tensor,
    sources: tl.tuple,
    symbols: tl.tensor,
    families: tl.tensor,
    temperatures: tl.tensor,
    floors: tl.tensor,
    bests: tl.tensor,  # [5, B, n_splits]: value, id, whether flawed, runner-up; word
    n_ids: tl.tensor,
    calls_per_split: tl.tensor,
    family: tl.constexpr,
    detailed: tl.constexpr,
    lanes: tl.constexpr,
) -> None:
    """The two best of the candidates that one split of one row has."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(families + row) != family:
        return
    state = row_state(sources, row, family)
    symbol = tl.load(symbols + row).to(tl.int32)
    first_call, end_call = _calls_of_split(symbol, n_ids, calls_per_split, family)
    temperature = tl.load(temperatures + row)
    floor = tl.load(floors + row)
    lane = tl.arange(0, lanes)
    best = tl.full((lanes,), float("-inf"), tl.float32)
    best_id = tl.full((lanes,), _NO_ID, tl.int32)
    is_flawed = lane < 0
    best_word = tl.full((lanes,), 0, tl.uint32)
    runner_up = best
    for start in range(first_call, end_call, lanes):
        words, first_index = words_of_calls(state, start + lane, family)
        first_id = first_index - symbol
        for j in tl.static_range(4 if family == PHILOX else 16):
            ids = first_id + j * (1 if family == PHILOX else 128)
            scaled = scaled_logits(logits + row * row_stride, id_stride, n_ids, temperature, ids)
            value, is_flaw = _race(scaled, floor, words[j], family)
            is_flawed |= is_flaw
            # Ids ascend within a lane, so the first of equals is the lowest.
            is_better = value > best
            runner_up = tl.maximum(runner_up, tl.minimum(best, value))
            if detailed:
                best_word = tl.where(is_better, words[j], best_word)
            best_id = tl.where(is_better, ids, best_id)
            best = tl.where(is_better, value, best)
    best, best_id, best_word, runner_up = _best_of(best, best_id, best_word, runner_up)
    plane = tl.num_programs(0).to(tl.int64) * tl.num_programs(1)
    place = bests + row * tl.num_programs(1) + tl.program_id(1)
    tl.store(place, best.to(tl.int32, bitcast=True))
    tl.store(place + plane, best_id)
    tl.store(place + 2 * plane, tl.max(is_flawed.to(tl.int32), axis=0))
    tl.store(place + 3 * plane, runner_up.to(tl.int32, bitcast=True))
    if detailed:
        tl.store(place + 4 * plane, best_word.to(tl.int32, bitcast=True))


@triton.jit(do_not_specialize=["n_splits"])
def _winner_kernel(  # noqa: PLR0913, PLR0917 - pointers and sizes
    bests: tl.tensor,  # [5, B, n_splits], of `_race_kernel`
    drawn_ids: tl.tensor,
    status: tl.tensor,
    has_choice: tl.tensor,
    drawn_words: tl.tensor,
    gaps: tl.tensor,
    n_splits: tl.tensor,
    detailed: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """The best of a row's splits."""
    row = tl.program_id(0).to(tl.int64)
    plane = tl.num_programs(0).to(tl.int64) * n_splits
    split = tl.arange(0, width)
    is_split = split < n_splits
    places = bests + row * n_splits + split
    # A split that is not there has the value -inf, like one without a candidate.
    values = tl.load(places, mask=is_split, other=_MINUS_INF_BITS).to(tl.float32, bitcast=True)
    ids = tl.load(places + plane, mask=is_split, other=_NO_ID)
    flaws = tl.load(places + 2 * plane, mask=is_split, other=0)
    bits = tl.load(places + 3 * plane, mask=is_split, other=_MINUS_INF_BITS)
    words = tl.full((width,), 0, tl.uint32)
    if detailed:
        words = tl.load(places + 4 * plane, mask=is_split, other=0).to(tl.uint32, bitcast=True)
    runners_up = bits.to(tl.float32, bitcast=True)
    value, best_id, word, runner_up = _best_of(values, ids, words, runners_up)
    has_winner = value > float("-inf")
    outcome = tl.where(has_winner, _DRAWN, _NO_CANDIDATE)
    outcome = tl.where(tl.max(flaws, axis=0) > 0, _NOT_FINITE, outcome)
    tl.store(status + row, outcome)
    tl.store(drawn_ids + row, tl.where(outcome == _DRAWN, best_id, 0).to(tl.int64))
    tl.store(has_choice + row, (outcome == _DRAWN) & (runner_up > float("-inf")))
    if detailed:
        tl.store(drawn_words + row, word.to(tl.int32, bitcast=True))
        tl.store(gaps + row, tl.where(has_winner, value, 0.0) - runner_up)
