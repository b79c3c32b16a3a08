"""Draws rows on the CPU with compiled code: threads, and races too close for it.

Knows nothing of requests, nor how a row is filtered or raced, and trusts that its arguments were
checked. The ids are those of the reference in `watermark.gumbel`: a race so close that roundings
would decide it is handed to the reference.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from tokenmark.kernels import filters_cpu, masses_cpu, race_cpu, rows_cpu
from tokenmark.kernels.rows import Filters, RowKeys, RowStatus
from tokenmark.kernels.threads_cpu import run_all
from tokenmark.watermark.gumbel import race, race_large_u, winners
from tokenmark.watermark.prf import chacha8, philox
from tokenmark.watermark.prf.family import Family

__all__ = ["RowDraws", "draw_rows"]

Words = NDArray[np.uint32]
Logits = NDArray[np.generic]  # [B, V] float32, float16, or the bits of bfloat16 as uint16


@dataclass(frozen=True, slots=True, eq=False)
class RowDraws:
    """The winners of a batch; of a row that was not drawn only the status means anything."""

    ids: NDArray[np.int64]  # [B]
    words: Words  # [B], of the winners
    values: NDArray[np.float64]  # [B, 2], the two best of each race; -inf where there is no second
    floors: NDArray[np.float32]  # [B], the smallest scaled logits that the filters left
    status: NDArray[np.uint8]  # [B], of RowStatus
    log_probabilities: NDArray[np.float64]  # [B], of the ids; NaN where it was not wanted


# By family: the word whose race word is 0.
_WORD_OF_ZERO: Final = np.array([0, 0xFFFFFFFF], dtype=np.uint32)
# By family: two values closer than this, per nat of their size, could change places with the
# logarithm that is used. It is in float64 here, and in the reference in float64 or float32.
_NEAR_TIE: Final = np.array([2.0**-44, 2.0**-20])
# Counted into the size of every value, for the roundings of the logarithm.
_NEAR_TIE_NATS: Final = 32.0
_ENCODINGS: Final[Mapping[np.dtype[np.generic], int]] = {
    np.dtype(np.float32): rows_cpu.FLOAT32,
    np.dtype(np.float16): rows_cpu.FLOAT16,
    np.dtype(np.uint16): rows_cpu.BFLOAT16,
}
# A quarter of a millisecond of work; less is not worth handing to another thread.
_MIN_WORDS_PER_TASK: Final = 2**18


def draw_rows(
    logits: Logits,  # [B, V]
    keys: RowKeys,
    filters: Filters | None,  # None keeps all candidates
    *,
    wants_log_probability: NDArray[np.bool_] | None = None,  # [B]; None wants none
    n_threads: int,
) -> RowDraws:
    """The id that wins each row's race over what the filters left, ties to the lowest id.

    The logits of a row must lie side by side; rows may lie anywhere in rising order. A row that has
    no candidate, or NaN or +inf, is told by its status.
    """
    n_rows, n_columns = logits.shape
    floors = np.full(n_rows, -np.inf, dtype=np.float32)
    temperatures = np.ones(n_rows, dtype=np.float32) if filters is None else filters.temperatures
    if n_rows and n_columns:
        rows = _Rows.of(logits, n_threads)
        if filters is not None:
            rows.find_floors(filters, floors)
        values, won = _combine(*rows.race(keys, (temperatures, floors)))
    else:
        values, won = np.full((n_rows, 2), -np.inf), np.zeros((n_rows, 2), dtype=np.int64)
    draws = RowDraws(
        ids=won[:, 0],
        words=won[:, 1].astype(np.uint32) ^ _WORD_OF_ZERO[keys.families],
        values=values,
        floors=floors,
        status=np.zeros(n_rows, dtype=np.uint8),
        log_probabilities=np.full(n_rows, np.nan),
    )
    for row in np.flatnonzero(_is_close(values, keys.families)):
        best = values[row, 0]
        if not np.isfinite(best):
            is_empty = best == -np.inf
            draws.status[row] = RowStatus.NO_CANDIDATE if is_empty else RowStatus.NOT_FINITE
            continue
        family = Family(keys.families[row])
        words = _words(keys.states[row], n_columns, int(keys.symbols[row]), family)
        scaled = _scaled(logits[row : row + 1], temperatures[row])
        left = np.where(scaled < floors[row], np.float32(-np.inf), scaled)
        draws.ids[row] = _reference_id(left, words, family)
        draws.words[row] = words[0, draws.ids[row]]
    if wants_log_probability is not None:
        wanted = np.flatnonzero(wants_log_probability & (draws.status == RowStatus.DRAWN))
        scaled = _scaled(logits[wanted, draws.ids[wanted]], temperatures[wanted])
        log_masses = rows.log_masses(wanted, (temperatures, floors)) if wanted.size else 0.0
        draws.log_probabilities[wanted] = scaled - log_masses
    return draws


def _is_close(
    values: NDArray[np.float64],  # [B, 2]
    families: NDArray[np.uint8],  # [B]
) -> NDArray[np.bool_]:  # [B]
    """Whether roundings could exchange the two best; True too where a row was not drawn."""
    best, second = values[:, 0], values[:, 1]
    # NaN compares as False, and so does what infinities leave of a row without a candidate.
    return ~(second < best - _NEAR_TIE[families] * (_NEAR_TIE_NATS + np.abs(best)))


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows of logits as compiled code takes them, and how many threads share them out."""

    flat: Words | NDArray[np.uint16]
    layout: tuple[int, int]  # row stride, V
    encoding: int
    n_rows: int
    n_threads: int

    @classmethod
    def of(cls, logits: Logits, n_threads: int) -> "_Rows":
        n_rows, n_columns = logits.shape
        row_stride = logits.strides[0] // logits.itemsize
        span = ((n_rows - 1) * row_stride + n_columns,)
        bits = logits.view(f"u{logits.itemsize}")
        flat = as_strided(bits, span, (logits.itemsize,), writeable=False)
        layout = (row_stride, n_columns)
        return cls(flat, layout, _ENCODINGS[logits.dtype], n_rows, n_threads)

    def find_floors(
        self,
        filters: Filters,
        floors: NDArray[np.float32],  # [B], filled
    ) -> None:
        n_slices = min(self.n_rows, self._n_tasks())
        temperatures = np.array(filters.temperatures)
        limits = (np.array(filters.top_k), np.array(filters.top_p), np.array(filters.min_p))

        def run(place: int) -> None:
            rows, flat = self._slice(place, n_slices)
            filters_cpu.find_floors(
                flat,
                self.layout,
                self.encoding,
                temperatures[rows],
                (limits[0][rows], limits[1][rows], limits[2][rows]),
                floors[rows],
            )

        run_all(run, n_slices, self.n_threads)

    def log_masses(
        self,
        wanted: NDArray[np.int64],  # [N], of rows that were drawn
        scales: tuple[NDArray[np.float32], NDArray[np.float32]],  # [B] temperatures, floors
    ) -> NDArray[np.float64]:  # [N]
        """ln of what the powers of e of some rows, as filtered, come to."""
        found = np.empty(wanted.size)
        scales = (np.array(scales[0]), scales[1])
        n_parts = min(wanted.size, self._n_tasks())

        def run(place: int) -> None:
            part = slice(wanted.size * place // n_parts, wanted.size * (place + 1) // n_parts)
            masses_cpu.find_log_masses(
                self.flat, self.layout, self.encoding, scales, wanted[part], found[part]
            )

        run_all(run, n_parts, self.n_threads)
        return found

    def race(
        self,
        keys: RowKeys,
        scales: tuple[NDArray[np.float32], NDArray[np.float32]],  # [B] temperatures, floors
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:  # [P, B, 2] both
        """The two best values of P parts of each row, and the id and race word of the best.

        Threads share out the rows; of fewer rows than threads each is raced in parts.
        """
        n_tasks = self._n_tasks()
        n_slices, n_parts = min(self.n_rows, n_tasks), max(1, n_tasks // self.n_rows)
        values = np.empty((n_parts, self.n_rows, 2))
        won = np.empty((n_parts, self.n_rows, 2), dtype=np.int64)
        # numba compiles anew for arrays that are read-only or lie otherwise.
        states, symbols, families = (
            np.array(array, order="C") for array in (keys.states, keys.symbols, keys.families)
        )
        temperatures, floors = np.array(scales[0]), scales[1]

        def run(index: int) -> None:
            part, place = divmod(index, n_slices)
            rows, flat = self._slice(place, n_slices)
            race_cpu.race_rows(
                flat,
                self.layout,
                self.encoding,
                (states[rows], symbols[rows], families[rows]),
                (temperatures[rows], floors[rows]),
                (part, n_parts),
                (values[part, rows], won[part, rows]),
            )

        run_all(run, n_slices * n_parts, self.n_threads)
        return values, won

    def _n_tasks(self) -> int:
        return max(1, min(self.n_threads, self.n_rows * self.layout[1] // _MIN_WORDS_PER_TASK))

    def _slice(self, place: int, n_slices: int) -> tuple[slice, Words | NDArray[np.uint16]]:
        rows = slice(self.n_rows * place // n_slices, self.n_rows * (place + 1) // n_slices)
        return rows, self.flat[rows.start * self.layout[0] :]


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
    state = row_state[None, : family.state_words]
    if family is Family.CHACHA8:
        return chacha8.keystream(state, n_words, first=symbol)
    return philox.words(state, n_words)


def _scaled(
    logits: Logits,
    temperature: NDArray[np.float32] | np.float32,
) -> NDArray[np.float32]:
    """The float32 that compiled code makes of logits."""
    if logits.dtype == np.uint16:
        values = (logits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        values = logits.astype(np.float32)
    return values / temperature


def _reference_id(logits: NDArray[np.float32], words: Words, family: Family) -> int:
    """The winner of a row, [1, V]."""
    if family is Family.CHACHA8:
        return int(winners(race(logits, words))[0])
    return int(winners(race_large_u(logits, philox.uniform_f32(words)))[0])
