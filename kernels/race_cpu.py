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
from typing import Final, Protocol, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tokenmark.watermark.prf.chacha8 import KEYSTREAM_WORDS

__all__ = ["BFLOAT16", "CHACHA8", "FLOAT16", "FLOAT32", "PHILOX", "race_rows"]

Words = NDArray[np.uint32]
Float = np.float32
Floats = NDArray[np.float32]
Row = NDArray[np.uint32] | NDArray[np.uint16]  # [V], logits as they are stored
Block = tuple[np.uint32, ...]
Lanes = tuple[np.uint64, ...]  # 32-bit values; the high halves mean nothing
Kind = tuple[int, int]  # encoding of the logits, family of the words
Best = tuple[NDArray[np.float64], NDArray[np.int64]]  # [2]: best and second; id and word of best

Function = TypeVar("Function", bound=Callable[..., object])

CHACHA8, PHILOX = 0, 1
FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2

_LANES: Final = 128
_CHUNKS: Final = 16
_TILE: Final = _CHUNKS * _LANES
# A lane of Philox is two calls of four words.
_PHILOX_LANES: Final = _TILE // 8
# Lanes are computed so many at a time: a number that the compiler knows, two vectors or more.
_GROUP: Final = 32
# The words of so few candidates cost less one by one than their whole tile does.
_FEW: Final = 3

_CHACHA_CONSTANTS: Final = tuple(np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32))
_LOW_HALF: Final = np.uint64(0xFFFFFFFF)

_MINUS_INFINITY: Final = np.uint32(0xFF800000)
# A rank orders the bits of floats as unsigned integers: -inf is 0; +inf and all NaN are the last.
_RANK_OFFSET: Final = np.uint32(0x807FFFFF)
_RANK_OF_INFINITY: Final = np.uint32(0xFF000001)

# -ln E of the smallest word, rounded up; the other family's is smaller.
_LARGEST_GAIN: Final = 22.874
_ALL_WORDS: Final = np.uint32(0xFFFFFFFF)
# The bits of a float32 as an integer: 2^23 an octave; here those of 2^32.
_BITS_PER_NAT: Final = 2.0**23 / log(2)
_BITS_OF_ALL: Final = 2.0**23 * (127 + 32)
# What values are lowered by before others are left out because of them: more than all roundings.
_SLACK: Final = 2.0**-13
_SLACK_PER_NAT: Final = 2.0**-20


class _Decorator(Protocol):
    def __call__(self, function: Function, /) -> Function: ...


_compiled = cast("_Decorator", njit)
# Into the code of the callers, whose loops become vector instructions only if no call is left.
_inlined = cast("_Decorator", njit(forceinline=True))


def _entered(function: Function) -> Function:
    """Compiled at the first call and kept on disk, where there is a folder to write to.

    What is kept is renewed when this file changes: nothing compiled may stand in another.
    """
    try:
        return cast("Function", njit(nogil=True, cache=True)(function))
    except RuntimeError:
        return cast("Function", njit(nogil=True)(function))


@_inlined
def _rotate(x: np.uint32, bits: np.uint32) -> np.uint32:
    return np.uint32((x << bits) | (x >> np.uint32(32 - bits)))


@_inlined
def _quarter_round(a: np.uint32, b: np.uint32, c: np.uint32, d: np.uint32) -> Block:
    a = np.uint32(a + b)
    d = _rotate(np.uint32(d ^ a), np.uint32(16))
    c = np.uint32(c + d)
    b = _rotate(np.uint32(b ^ c), np.uint32(12))
    a = np.uint32(a + b)
    d = _rotate(np.uint32(d ^ a), np.uint32(8))
    c = np.uint32(c + d)
    b = _rotate(np.uint32(b ^ c), np.uint32(7))
    return a, b, c, d


@_inlined
def _double_round(state: Block) -> Block:
    a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = state
    a0, b0, c0, d0 = _quarter_round(a0, b0, c0, d0)
    a1, b1, c1, d1 = _quarter_round(a1, b1, c1, d1)
    a2, b2, c2, d2 = _quarter_round(a2, b2, c2, d2)
    a3, b3, c3, d3 = _quarter_round(a3, b3, c3, d3)
    a0, b1, c2, d3 = _quarter_round(a0, b1, c2, d3)
    a1, b2, c3, d0 = _quarter_round(a1, b2, c3, d0)
    a2, b3, c0, d1 = _quarter_round(a2, b3, c0, d1)
    a3, b0, c1, d2 = _quarter_round(a3, b0, c1, d2)
    return a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3


@_compiled
def _chacha_words(key: Words, tile: int, lane: int, words: Words) -> None:
    # Read before the loop: the compiler cannot know that the words are not stored over the key.
    k0, k1, k2, k3, k4, k5, k6, k7 = key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]
    zero = np.uint32(0)
    target = words[lane:]
    for i in range(_GROUP):
        counter = np.uint32(tile * _LANES + lane + i)
        start = (*_CHACHA_CONSTANTS, k0, k1, k2, k3, k4, k5, k6, k7, counter, zero, zero, zero)
        end = _double_round(_double_round(_double_round(_double_round(start))))
        # Written out: a loop over the tuples would keep them in memory, lane by lane.
        target[i] = start[0] + end[0]
        target[1 * _LANES + i] = start[1] + end[1]
        target[2 * _LANES + i] = start[2] + end[2]
        target[3 * _LANES + i] = start[3] + end[3]
        target[4 * _LANES + i] = start[4] + end[4]
        target[5 * _LANES + i] = start[5] + end[5]
        target[6 * _LANES + i] = start[6] + end[6]
        target[7 * _LANES + i] = start[7] + end[7]
        target[8 * _LANES + i] = start[8] + end[8]
        target[9 * _LANES + i] = start[9] + end[9]
        target[10 * _LANES + i] = start[10] + end[10]
        target[11 * _LANES + i] = start[11] + end[11]
        target[12 * _LANES + i] = start[12] + end[12]
        target[13 * _LANES + i] = start[13] + end[13]
        target[14 * _LANES + i] = start[14] + end[14]
        target[15 * _LANES + i] = start[15] + end[15]


@_inlined
def _philox_round(counter: Lanes, key: Lanes) -> Lanes:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    product0 = np.uint64(0xD2511F53) * (c0 & _LOW_HALF)
    product1 = np.uint64(0xCD9E8D57) * (c2 & _LOW_HALF)
    half = np.uint64(32)
    return (product1 >> half) ^ c1 ^ k0, product1, (product0 >> half) ^ c3 ^ k1, product0


@_compiled
def _philox_words(state: Words, tile: int, lane: int, words: Words) -> None:
    """Two calls a lane, side by side: one alone would wait for its multiplications."""
    s0, s1, s2 = np.uint64(state[0]), np.uint64(state[1]), np.uint64(state[2])
    key = (np.uint64(state[3]), np.uint64(state[4]))
    first = np.uint64(4 * lane)
    for i in range(_GROUP):
        call = tile * (_TILE // 4) + lane + i
        one: Lanes = (np.uint64(call), s0, s1, s2)
        other: Lanes = (np.uint64(call + _PHILOX_LANES), s0, s1, s2)
        k0, k1 = key
        for _ in range(10):
            one, other = _philox_round(one, (k0, k1)), _philox_round(other, (k0, k1))
            k0 = (k0 + np.uint64(0x9E3779B9)) & _LOW_HALF
            k1 = (k1 + np.uint64(0xBB67AE85)) & _LOW_HALF
        for j in range(4):
            index = first + np.uint64(4 * i + j)
            words[index] = ~one[j]
            words[index + np.uint64(4 * _PHILOX_LANES)] = ~other[j]


@_compiled
def _fill(state: Words, tile: int, family: int, lane: int, words: Words) -> None:
    """The race words of a group of lanes."""
    if family == CHACHA8:
        _chacha_words(state, tile % (KEYSTREAM_WORDS // _TILE), lane, words)
    else:
        _philox_words(state, tile, lane, words)


@_compiled
def _fill_few(
    state: Words, tile: int, family: int, logits: Floats, tops: Floats, floor: Float, words: Words
) -> None:
    """The race words of the candidates with logits above `floor`."""
    for j in range(_CHUNKS):
        if tops[j] <= floor:
            continue
        for i in range(j * _LANES, (j + 1) * _LANES):
            if logits[i] > floor:
                lane = i % _LANES if family == CHACHA8 else i // 4 % _PHILOX_LANES
                _fill(state, tile, family, lane - lane % _GROUP, words)


@_compiled
def _race_value(logit: Float, word: np.uint32, family: int) -> float:
    """The value of the reference: in float64, also where that one is in float32."""
    if family == CHACHA8:
        # In float64 x is exact at both ends of the word, and so is one branch.
        return np.float64(logit) - log(-log1p(-(np.float64(word) + 0.5) / 2.0**32))
    mantissa = np.float64(np.uint32(~word) >> np.uint32(8))
    uniform = np.float32((mantissa + 1.0) / (2.0**24 + 1.0))
    return np.float64(logit) - log(-log(np.float64(uniform)))


@_inlined
def _half_bits(half: np.uint32) -> np.uint32:
    """The bits of the float32 that equals a float16."""
    sign = np.uint32((half & np.uint32(0x8000)) << np.uint32(16))
    magnitude = np.uint32((half & np.uint32(0x7FFF)) << np.uint32(13))
    if magnitude >= np.uint32(1 << 23):
        bias = np.uint32(224 << 23) if magnitude >= np.uint32(31 << 23) else np.uint32(112 << 23)
        return np.uint32(sign | np.uint32(magnitude + bias))
    # The difference of two normal numbers, for processors set to flush subnormal ones.
    shifted = np.uint32(magnitude + np.uint32(113 << 23)).view(np.float32)
    return np.uint32(sign | np.float32(shifted - np.float32(2.0**-14)).view(np.uint32))


@_compiled
def _unpack(row: Row, kind: Kind, column: int, bits: Words) -> None:
    """The logits of a row from a column on, as float32; -inf where there is no column."""
    low = max(column, 0)
    high = max(low, min(column + bits.size, row.size))
    bits[: low - column] = _MINUS_INFINITY
    bits[high - column :] = _MINUS_INFINITY
    source, target = row[low:high], bits[low - column : high - column]
    if kind[0] == FLOAT32:
        for i in range(source.size):
            target[i] = source[i]
    elif kind[0] == BFLOAT16:
        for i in range(source.size):
            target[i] = np.uint32(source[i]) << np.uint32(16)
    else:
        for i in range(source.size):
            target[i] = _half_bits(np.uint32(source[i]))


@_inlined
def _flip(bits: np.uint32) -> np.uint32:
    """From the bits of floats to integers of the same order, and back."""
    sign = np.uint32(np.int32(bits) >> np.int32(31))
    return np.uint32(bits ^ (sign & np.uint32(0x7FFFFFFF)))


@_compiled
def _survey(row: Row, kind: Kind, column: int, bits: Words, tops: Floats) -> tuple[np.uint32, int]:
    """Note the largest logit of every chunk in `tops` [N, 16]; the highest rank and its tile."""
    highest, highest_tile = np.uint32(0), 0
    for tile in range(tops.shape[0]):
        _unpack(row, kind, column + tile * _TILE, bits)
        for j in range(_CHUNKS):
            rank = np.uint32(0)
            for i in range(j * _LANES, (j + 1) * _LANES):
                rank = max(rank, np.uint32(_flip(bits[i]) - _RANK_OFFSET))
            tops[tile, j] = np.uint32(_flip(np.uint32(rank + _RANK_OFFSET))).view(np.float32)
            if rank > highest:
                highest, highest_tile = rank, tile
    return highest, highest_tile


@_compiled
def _n_above(logits: Floats, floor: Float) -> np.int32:
    count = np.int32(0)
    for i in range(logits.size):
        count = np.int32(count + np.int32(logits[i] > floor))
    return count


@_compiled
def _less(value: float, difference: float) -> Float:
    """A float32 surely below value - difference; -inf for -inf."""
    return np.float32(value - difference - _SLACK - _SLACK_PER_NAT * abs(value))


@_compiled
def _word_limit(logit: Float, value: Float) -> np.uint32:
    """The largest race word with which a logit may reach a value, or a larger one."""
    bits = (np.float64(logit) - value) * _BITS_PER_NAT + _BITS_OF_ALL
    if not bits < _BITS_OF_ALL - 1:
        return _ALL_WORDS
    # Between powers of two a float is linear in its bits, and so never below the power of 2.
    return np.uint32(np.uint32(max(bits, 0.0)).view(np.float32))


@_compiled
def _enter(best: Best, logit: Float, word: np.uint32, column: int, family: int) -> None:
    """Let a candidate race against the two best so far; ties to the lowest id."""
    values, winner = best
    value = _race_value(logit, word, family)
    if value > values[0] or (value == values[0] and column < winner[0]):
        values[1], values[0] = values[0], value
        winner[0], winner[1] = column, word
    elif value > values[1]:
        values[1] = value


@_compiled
def _race_hits(
    words: Words, logits: Floats, top: Float, first: int, kind: Kind, best: Best
) -> None:
    """Race 128 candidates from column `first` on, whose largest logit is `top`."""
    values, _ = best
    bar = _less(values[1], 0.0)
    limit = _word_limit(top, bar)
    for i in range(_LANES):
        if words[i] > limit or logits[i] == -np.inf or words[i] > _word_limit(logits[i], bar):
            continue
        _enter(best, logits[i], words[i], first + i, kind[1])
        bar = _less(values[1], 0.0)
        limit = _word_limit(top, bar)


@_compiled
def _race_tile(
    row: Row, kind: Kind, column: int, words: Words, bits: Words, tops: Floats, best: Best
) -> None:
    """Race the candidates of a tile that may be one of the two best."""
    values, _ = best
    for j in range(_CHUNKS):
        limit = _word_limit(tops[j], _less(values[1], 0.0))
        smallest = _ALL_WORDS
        for i in range(j * _LANES, (j + 1) * _LANES):
            smallest = min(smallest, words[i])
        if smallest > limit or tops[j] == -np.inf:
            continue
        chunk = slice(j * _LANES, (j + 1) * _LANES)
        _unpack(row, kind, column + j * _LANES, bits[chunk])
        logits = bits[chunk].view(np.float32)
        _race_hits(words[chunk], logits, tops[j], column + j * _LANES, kind, best)


@_compiled
def _race_part(
    row: Row, kind: Kind, state: Words, symbol: int, part: tuple[int, int], best: Best
) -> None:
    """Race one of several equal parts of a row.

    Column v has the word of index v + symbol, so that the first tile may begin before column 0.
    """
    family, (values, winner) = kind[1], best
    bits, words = np.empty(_TILE, dtype=np.uint32), np.empty(_TILE, dtype=np.uint32)
    logits = bits.view(np.float32)
    n_lanes = _LANES if family == CHACHA8 else _PHILOX_LANES
    zeroth = symbol // _TILE
    n_tiles = (symbol + row.size - 1) // _TILE - zeroth + 1
    first, end = zeroth + n_tiles * part[0] // part[1], zeroth + n_tiles * (part[0] + 1) // part[1]
    tops = np.empty((end - first, _CHUNKS), dtype=np.float32)
    highest, top = _survey(row, kind, first * _TILE - symbol, bits, tops)
    values[:], winner[:] = np.nan if highest >= _RANK_OF_INFINITY else -np.inf, 0
    if not 0 < highest < _RANK_OF_INFINITY:
        return
    # The tile with the largest logit goes first: after it most of the others have little to race.
    for step in range(-1, end - first):
        index = top if step < 0 else step
        floor = _less(values[1], _LARGEST_GAIN)
        n_open = _n_above(tops[index], floor)
        if step == top or n_open == 0:
            continue
        tile = first + index
        column = tile * _TILE - symbol
        if n_open <= _FEW:
            _unpack(row, kind, column, bits)
            n_open = _n_above(logits, floor)
        if n_open <= _FEW:
            # The others cannot win with whatever is left of the words of another tile.
            _fill_few(state, tile, family, logits, tops[index], floor, words)
        else:
            for lane in range(0, n_lanes, _GROUP):
                _fill(state, tile, family, lane, words)
        _race_tile(row, kind, column, words, bits, tops[index], best)


@_entered
def race_rows(
    flat: Row,  # the rows, `layout[0]` apart
    layout: tuple[int, int],  # row stride, V
    kind: Kind,
    states: Words,  # [B, S]
    symbols: NDArray[np.int64],  # [B], all 0 for Philox
    part: tuple[int, int],  # number of the part that is raced, and how many there are
    best: Best,  # [B, 2] both
) -> None:
    """Fill `best` for rows of logits: the two best values, and the id and race word of the winner.

    Values are NaN where a logit is NaN or +inf, and -inf where there is no candidate, or no second.
    """
    values, winners = best
    for row in range(symbols.size):
        start = row * layout[0]
        logits = flat[start : start + layout[1]]
        outcome = (values[row], winners[row])
        _race_part(logits, kind, states[row], symbols[row], part, outcome)
