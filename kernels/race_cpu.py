"""The keyed race, compiled for the CPU: every word, a limit on words that matter, few logarithms.

Knows nothing of threads or tensors. A row is worked off in tiles of 2048 candidates, sixteen chunks
of 128, in loops that become vector instructions.

A race word is small where it wins: W itself of ChaCha8, the complement of W of Philox. E is no less
than W / 2^32, so a logit can reach a value v only with a word of at most 2^32 exp(logit - v), and
the largest logit of a chunk gives one limit for its words. What passes is raced in float64 against
the two best so far; nothing that could be one of these two is left out.
"""

from collections.abc import Callable
from math import log, log1p
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.kernels import rows_cpu, words_cpu
from tokenmark.kernels.compiled import compiled, entry
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
    survey,
    unpack,
)
from tokenmark.kernels.words_cpu import CHACHA8, GROUP, PHILOX_LANES, fill

__all__ = ["race_rows"]

Best = tuple[NDArray[np.float64], NDArray[np.int64]]  # [2]: best and second; id and word of best
Kind = tuple[Scale, int]  # how logits are read, family of the words
Keys = tuple[Words, NDArray[np.int64], NDArray[np.uint8]]  # states, symbols, families

# The words of so few candidates cost less one by one than their whole tile does.
_FEW: Final = 3

# -ln E of the smallest word, rounded up; the other family's is smaller.
_LARGEST_GAIN: Final = 22.874
_ALL_WORDS: Final = np.uint32(0xFFFFFFFF)
# The bits of a float32 as an integer: 2^23 an octave; here those of 2^32.
_BITS_PER_NAT: Final = 2.0**23 / log(2)
_BITS_OF_ALL: Final = 2.0**23 * (127 + 32)
# What values are lowered by before others are left out because of them: more than all roundings.
_SLACK: Final = 2.0**-13
_SLACK_PER_NAT: Final = 2.0**-20


@compiled
def _fill_few(
    state: Words, tile: int, family: int, logits: Floats, tops: Floats, floor: Float, words: Words
) -> None:
    """The race words of the candidates with logits above `floor`."""
    for j in range(CHUNKS):
        if tops[j] <= floor:
            continue
        for i in range(j * LANES, (j + 1) * LANES):
            if logits[i] > floor:
                lane = i % LANES if family == CHACHA8 else i // 4 % PHILOX_LANES
                fill(state, tile, family, lane - lane % GROUP, words)


@compiled
def _race_value(logit: Float, word: np.uint32, family: int) -> float:
    """The value of the reference: in float64, also where that one is in float32."""
    if family == CHACHA8:
        # In float64 x is exact at both ends of the word, and so is one branch.
        return np.float64(logit) - log(-log1p(-(np.float64(word) + 0.5) / 2.0**32))
    mantissa = np.float64(np.uint32(~word) >> np.uint32(8))
    uniform = np.float32((mantissa + 1.0) / (2.0**24 + 1.0))
    return np.float64(logit) - log(-log(np.float64(uniform)))


@compiled
def _n_above(logits: Floats, floor: Float) -> np.int32:
    count = np.int32(0)
    for i in range(logits.size):
        count = np.int32(count + np.int32(logits[i] > floor))
    return count


@compiled
def _less(value: float, difference: float) -> Float:
    """A float32 surely below value - difference; -inf for -inf."""
    return np.float32(value - difference - _SLACK - _SLACK_PER_NAT * abs(value))


@compiled
def _word_limit(logit: Float, value: Float) -> np.uint32:
    """The largest race word with which a logit may reach a value, or a larger one."""
    bits = (np.float64(logit) - value) * _BITS_PER_NAT + _BITS_OF_ALL
    if not bits < _BITS_OF_ALL - 1:
        return _ALL_WORDS
    # Between powers of two a float is linear in its bits, and so never below the power of 2.
    return np.uint32(np.uint32(max(bits, 0.0)).view(np.float32))


@compiled
def _enter(best: Best, logit: Float, word: np.uint32, column: int, family: int) -> None:
    """Let a candidate race against the two best so far; ties to the lowest id."""
    values, winner = best
    value = _race_value(logit, word, family)
    if value > values[0] or (value == values[0] and column < winner[0]):
        values[1], values[0] = values[0], value
        winner[0], winner[1] = column, word
    elif value > values[1]:
        values[1] = value


@compiled
def _race_hits(
    words: Words, logits: Floats, top: Float, first: int, kind: Kind, best: Best
) -> None:
    """Race 128 candidates from column `first` on, whose largest logit is `top`."""
    values, _ = best
    bar = _less(values[1], 0.0)
    limit = _word_limit(top, bar)
    for i in range(LANES):
        if words[i] > limit or logits[i] == -np.inf or words[i] > _word_limit(logits[i], bar):
            continue
        _enter(best, logits[i], words[i], first + i, kind[1])
        bar = _less(values[1], 0.0)
        limit = _word_limit(top, bar)


@compiled
def _race_tile(
    row: Row, kind: Kind, column: int, words: Words, bits: Words, tops: Floats, best: Best
) -> None:
    """Race the candidates of a tile that may be one of the two best."""
    values, _ = best
    for j in range(CHUNKS):
        limit = _word_limit(tops[j], _less(values[1], 0.0))
        smallest = _ALL_WORDS
        for i in range(j * LANES, (j + 1) * LANES):
            smallest = min(smallest, words[i])
        if smallest > limit or tops[j] == -np.inf:
            continue
        chunk = slice(j * LANES, (j + 1) * LANES)
        unpack(row, kind[0], column + j * LANES, bits[chunk])
        logits = bits[chunk].view(np.float32)
        _race_hits(words[chunk], logits, tops[j], column + j * LANES, kind, best)


@compiled
def _race_part(
    row: Row, kind: Kind, state: Words, symbol: int, part: tuple[int, int], best: Best
) -> None:
    """Race one of several equal parts of a row.

    Column v has the word of index v + symbol, so that the first tile may begin before column 0.
    """
    family, (values, winner) = kind[1], best
    bits, words = np.empty(TILE, dtype=np.uint32), np.empty(TILE, dtype=np.uint32)
    logits = bits.view(np.float32)
    n_lanes = LANES if family == CHACHA8 else PHILOX_LANES
    zeroth = symbol // TILE
    n_tiles = (symbol + row.size - 1) // TILE - zeroth + 1
    first, end = zeroth + n_tiles * part[0] // part[1], zeroth + n_tiles * (part[0] + 1) // part[1]
    tops = np.empty((end - first, CHUNKS), dtype=np.float32)
    highest, top = survey(row, kind[0], first * TILE - symbol, bits, tops)
    values[:], winner[:] = np.nan if highest >= RANK_OF_INFINITY else -np.inf, 0
    if not 0 < highest < RANK_OF_INFINITY:
        return
    # The tile with the largest logit goes first: after it most of the others have little to race.
    for step in range(-1, end - first):
        index = top if step < 0 else step
        floor = _less(values[1], _LARGEST_GAIN)
        n_open = _n_above(tops[index], floor)
        if step == top or n_open == 0:
            continue
        tile = first + index
        column = tile * TILE - symbol
        if n_open <= _FEW:
            unpack(row, kind[0], column, bits)
            n_open = _n_above(logits, floor)
        if n_open <= _FEW:
            # The others cannot win with whatever is left of the words of another tile.
            _fill_few(state, tile, family, logits, tops[index], floor, words)
        else:
            for lane in range(0, n_lanes, GROUP):
                fill(state, tile, family, lane, words)
        _race_tile(row, kind, column, words, bits, tops[index], best)


def _build(sources: str) -> Callable[..., None]:
    def race_rows(
        flat: Row,
        layout: tuple[int, int],
        encoding: int,
        keys: Keys,
        scales: tuple[Floats, Floats],
        part: tuple[int, int],
        best: Best,
    ) -> None:
        _ = sources
        states, symbols, families = keys
        temperatures, floors = scales
        values, winners = best
        for row in range(symbols.size):
            start = row * layout[0]
            logits = flat[start : start + layout[1]]
            kind = ((encoding, temperatures[row], floors[row]), int(families[row]))
            outcome = (values[row], winners[row])
            _race_part(logits, kind, states[row], symbols[row], part, outcome)

    return race_rows


race_rows: Final = entry(_build, rows_cpu, words_cpu)
"""Fill `best` for rows of logits: the two best values, and the id and race word of the winner.

Values are NaN where a logit is NaN or +inf, and -inf where there is no candidate, or no second.

Args:
    flat: the rows, `layout[0]` apart.
    layout: row stride, V.
    encoding: of the logits.
    keys: states [B, 8], symbols [B], families [B].
    scales: temperatures [B], and the smallest scaled logits that stay [B].
    part: number of the part of each row that is raced, and how many there are.
    best: [B, 2] both.
"""
