"""Draws rows on the CPU with compiled code: threads, and races too close for it.

Knows nothing of keys or requests, nor how a row is raced. The ids are those of the reference in
`watermark.gumbel`: a race so close that roundings would decide it is handed to the reference.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from tokenmark.kernels import race_cpu
from tokenmark.watermark.gumbel import race, race_large_u, winners
from tokenmark.watermark.prf import chacha8, philox

__all__ = ["Family", "RowDraws", "RowStatus", "draw_rows", "warm_up"]

Words = NDArray[np.uint32]


class Family(IntEnum):
    """Whose words decide a race."""

    CHACHA8 = race_cpu.CHACHA8
    """Row states are ChaCha8 keys, [B, 8]; small words win, in float64."""
    PHILOX = race_cpu.PHILOX
    """Row states are those of `prf.philox`, [B, 5]; large words win, in vLLM's float32."""


class RowStatus(IntEnum):
    """What became of a row."""

    DRAWN = 0
    NO_CANDIDATE = 1
    """All its logits are -inf."""
    NOT_FINITE = 2
    """One of its logits is NaN or +inf."""


@dataclass(frozen=True, slots=True, eq=False)
class RowDraws:
    """The winners of a batch; of a row that was not drawn only the status means anything."""

    ids: NDArray[np.int64]  # [B]
    words: Words  # [B], of the winners
    values: NDArray[np.float64]  # [B, 2], the two best of each race; -inf where there is no second
    status: NDArray[np.uint8]  # [B], of RowStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """What the rows of a family look like.

    Two values closer than `near_tie`, per nat of their size, could change places with the
    logarithm that is used: in float64 here and in the reference, in float32 there.
    """

    state_words: int
    id_limit: int
    symbol_limit: int
    word_of_zero: np.uint32  # the word whose race word is 0
    near_tie: float


_RECIPES: Final = {
    Family.CHACHA8: _Recipe(
        state_words=8,
        id_limit=chacha8.KEYSTREAM_WORDS,
        symbol_limit=chacha8.KEYSTREAM_WORDS,
        word_of_zero=np.uint32(0),
        near_tie=2.0**-44,
    ),
    Family.PHILOX: _Recipe(
        state_words=philox.ROW_STATE_WORDS,
        id_limit=2**32,
        symbol_limit=1,
        word_of_zero=np.uint32(0xFFFFFFFF),
        near_tie=2.0**-20,
    ),
}
# Counted into the size of every value, for the roundings of the logarithm.
_NEAR_TIE_NATS: Final = 32.0
_ENCODINGS: Final[Mapping[np.dtype[np.generic], int]] = {
    np.dtype(np.float32): race_cpu.FLOAT32,
    np.dtype(np.float16): race_cpu.FLOAT16,
    np.dtype(np.uint16): race_cpu.BFLOAT16,
}
# A quarter of a millisecond of work; less is not worth handing to another thread.
_MIN_WORDS_PER_TASK: Final = 2**18


def draw_rows(
    logits: NDArray[np.generic],  # [B, V] float32, float16, or the bits of bfloat16 as uint16
    row_states: Words,  # [B, S]
    symbols: NDArray[np.int64],  # [B], in [0, 2^20); 0 with Philox, which carries no payload
    *,
    family: Family,
    n_threads: int,
) -> RowDraws:
    """The id that wins each row's race over softmax(logits), ties to the lowest id.

    The logits of a row must lie side by side; rows may lie anywhere. A row that has no candidate,
    or NaN or +inf, is told by its status.

    Raises:
        ValueError: shapes, types or symbols that do not fit.
    """
    recipe = _RECIPES[family]
    _check(logits, row_states, symbols, recipe)
    n_rows, n_columns = logits.shape
    if n_rows and n_columns:
        values, won = _combine(*_race_parts(logits, row_states, symbols, family, n_threads))
    else:
        values, won = np.full((n_rows, 2), -np.inf), np.zeros((n_rows, 2), dtype=np.int64)
    draws = RowDraws(
        ids=won[:, 0],
        words=won[:, 1].astype(np.uint32) ^ recipe.word_of_zero,
        values=values,
        status=np.zeros(n_rows, dtype=np.uint8),
    )
    best = values[:, 0]
    clearly_less = best - recipe.near_tie * (_NEAR_TIE_NATS + np.abs(best))
    for row in np.flatnonzero(~(values[:, 1] < clearly_less)):
        if not np.isfinite(best[row]):
            is_empty = best[row] == -np.inf
            draws.status[row] = RowStatus.NO_CANDIDATE if is_empty else RowStatus.NOT_FINITE
            continue
        words = _words(row_states[row], n_columns, int(symbols[row]), family)
        draws.ids[row] = _reference_id(logits[row : row + 1], words, family)
        draws.words[row] = words[0, draws.ids[row]]
    return draws


def warm_up() -> None:
    """Compile what `draw_rows` runs, or load it from disk, ahead of the first draw."""
    state, symbol = np.zeros((1, 8), dtype=np.uint32), np.zeros(1, dtype=np.int64)
    for dtype in _ENCODINGS:
        logits = np.zeros((1, 1), dtype=dtype)
        draw_rows(logits, state, symbol, family=Family.CHACHA8, n_threads=1)


def _check(
    logits: NDArray[np.generic], row_states: Words, symbols: NDArray[np.int64], recipe: _Recipe
) -> None:
    if logits.ndim != 2 or logits.dtype not in _ENCODINGS:  # noqa: PLR2004 - rows and columns
        raise ValueError(
            f"logits must be [B, V] of {', '.join(map(str, _ENCODINGS))}, "
            f"got {logits.dtype} {logits.shape}"
        )
    n_rows, n_columns = logits.shape
    row_stride, column_stride = logits.strides
    is_row_together = n_columns <= 1 or column_stride == logits.itemsize
    are_rows_in_order = n_rows <= 1 or (row_stride >= 0 and row_stride % logits.itemsize == 0)
    if logits.size and not (is_row_together and are_rows_in_order):
        raise ValueError(
            "the logits of a row must lie side by side and rows one after the other, "
            f"got strides of {logits.strides} bytes; make them contiguous"
        )
    if n_columns > recipe.id_limit:
        raise ValueError(f"there are words for {recipe.id_limit} ids, got {n_columns} columns")
    if row_states.dtype != np.uint32 or row_states.shape != (n_rows, recipe.state_words):
        raise ValueError(
            f"row states must be uint32 [{n_rows}, {recipe.state_words}], "
            f"got {row_states.dtype} {row_states.shape}"
        )
    if symbols.dtype != np.int64 or symbols.shape != (n_rows,):
        raise ValueError(f"symbols must be int64 [{n_rows}], got {symbols.dtype} {symbols.shape}")
    if n_rows and symbols.view(np.uint64).max() >= recipe.symbol_limit:
        raise ValueError(
            f"symbols lie in [0, {recipe.symbol_limit}), got {symbols.min()}..{symbols.max()}"
        )


@cache
def _pool(n_workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_workers, thread_name_prefix="tokenmark-draw")


# Threads do not survive a fork.
os.register_at_fork(after_in_child=_pool.cache_clear)


def _race_parts(
    logits: NDArray[np.generic],
    row_states: Words,
    symbols: NDArray[np.int64],
    family: Family,
    n_threads: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:  # [P, B, 2] both
    """The two best values of P parts of each row, and the id and race word of the best.

    Threads share out the rows; of fewer rows than threads each is raced in parts.
    """
    n_rows, n_columns = logits.shape
    row_stride = logits.strides[0] // logits.itemsize
    span = ((n_rows - 1) * row_stride + n_columns,)
    bits = logits.view(f"u{logits.itemsize}")
    flat = as_strided(bits, span, (logits.itemsize,), writeable=False)
    row_states, symbols = np.array(row_states, order="C"), np.array(symbols, order="C")
    n_tasks = max(1, min(n_threads, n_rows * n_columns // _MIN_WORDS_PER_TASK))
    n_slices, n_parts = min(n_rows, n_tasks), max(1, n_tasks // n_rows)
    values = np.empty((n_parts, n_rows, 2))
    won = np.empty((n_parts, n_rows, 2), dtype=np.int64)

    def run(index: int) -> None:
        part, place = divmod(index, n_slices)
        rows = slice(n_rows * place // n_slices, n_rows * (place + 1) // n_slices)
        race_cpu.race_rows(
            flat[rows.start * row_stride :],
            (row_stride, n_columns),
            (_ENCODINGS[logits.dtype], int(family)),
            row_states[rows],
            symbols[rows],
            (part, n_parts),
            (values[part, rows], won[part, rows]),
        )

    running = [_pool(n_threads - 1).submit(run, i) for i in range(1, n_slices * n_parts)]
    run(0)
    for task in running:
        task.result()
    return values, won


def _combine(
    values: NDArray[np.float64],  # [P, B, 2]
    won: NDArray[np.int64],  # [P, B, 2]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:  # [B, 2] both
    if len(values) == 1:
        return values[0], won[0]
    # Parts hold rising ids: of equal values the first is that of the lowest id.
    winning_part = values[:, :, 0].argmax(axis=0)
    n_rows = values.shape[1]
    # Sorting puts NaN last, so that here it comes out as the best.
    two_best = np.sort(values.transpose(1, 0, 2).reshape(n_rows, -1))[:, :-3:-1]
    return two_best, won[winning_part, np.arange(n_rows)]


def _words(row_state: Words, n_words: int, symbol: int, family: Family) -> Words:  # [1, V]
    if family is Family.CHACHA8:
        return chacha8.keystream(row_state[None], n_words, first=symbol)
    return philox.words(row_state[None], n_words)


def _reference_id(logits: NDArray[np.generic], words: Words, family: Family) -> int:
    """The winner of a row, [1, V]."""
    if logits.dtype == np.uint16:
        values = (logits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        values = logits.astype(np.float32)
    if family is Family.CHACHA8:
        return int(winners(race(values, words))[0])
    return int(winners(race_large_u(values, philox.uniform_f32(words)))[0])
