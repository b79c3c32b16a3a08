"""The keyed words, compiled for the CPU in lanes that become vector instructions.

Knows nothing of logits. What is filled are race words, small where they win: W itself of ChaCha8,
the complement of W of Philox.
"""

from typing import Final

import numpy as np

from tokenmark.kernels.compiled import compiled, inlined
from tokenmark.kernels.rows_cpu import LANES, TILE, Words
from tokenmark.watermark.prf.chacha8 import KEYSTREAM_WORDS
from tokenmark.watermark.prf.family import Family

__all__ = ["CHACHA8", "GROUP", "PHILOX", "PHILOX_LANES", "fill"]

Block = tuple[np.uint32, ...]
Lanes = tuple[np.uint64, ...]  # 32-bit values; the high halves mean nothing

CHACHA8, PHILOX = int(Family.CHACHA8), int(Family.PHILOX)

GROUP: Final = 32
"""Lanes are computed so many at a time: a number that the compiler knows, two vectors or more."""

PHILOX_LANES: Final = TILE // 8
"""A lane of Philox is two calls of four words."""

_CHACHA_CONSTANTS: Final = tuple(np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32))
_LOW_HALF: Final = np.uint64(0xFFFFFFFF)


@inlined
def _rotate(x: np.uint32, bits: np.uint32) -> np.uint32:
    return np.uint32((x << bits) | (x >> np.uint32(32 - bits)))


@inlined
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


@inlined
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


@compiled
def _chacha_words(key: Words, tile: int, lane: int, words: Words) -> None:
    # Read before the loop: the compiler cannot know that the words are not stored over the key.
    k0, k1, k2, k3, k4, k5, k6, k7 = key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]
    zero = np.uint32(0)
    target = words[lane:]
    for i in range(GROUP):
        counter = np.uint32(tile * LANES + lane + i)
        start = (*_CHACHA_CONSTANTS, k0, k1, k2, k3, k4, k5, k6, k7, counter, zero, zero, zero)
        end = _double_round(_double_round(_double_round(_double_round(start))))
        # Written out: a loop over the tuples would keep them in memory, lane by lane.
        target[i] = start[0] + end[0]
        target[1 * LANES + i] = start[1] + end[1]
        target[2 * LANES + i] = start[2] + end[2]
        target[3 * LANES + i] = start[3] + end[3]
        target[4 * LANES + i] = start[4] + end[4]
        target[5 * LANES + i] = start[5] + end[5]
        target[6 * LANES + i] = start[6] + end[6]
        target[7 * LANES + i] = start[7] + end[7]
        target[8 * LANES + i] = start[8] + end[8]
        target[9 * LANES + i] = start[9] + end[9]
        target[10 * LANES + i] = start[10] + end[10]
        target[11 * LANES + i] = start[11] + end[11]
        target[12 * LANES + i] = start[12] + end[12]
        target[13 * LANES + i] = start[13] + end[13]
        target[14 * LANES + i] = start[14] + end[14]
        target[15 * LANES + i] = start[15] + end[15]


@inlined
def _philox_round(counter: Lanes, key: Lanes) -> Lanes:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    product0 = np.uint64(0xD2511F53) * (c0 & _LOW_HALF)
    product1 = np.uint64(0xCD9E8D57) * (c2 & _LOW_HALF)
    half = np.uint64(32)
    return (product1 >> half) ^ c1 ^ k0, product1, (product0 >> half) ^ c3 ^ k1, product0


@compiled
def _philox_words(state: Words, tile: int, lane: int, words: Words) -> None:
    """Two calls a lane, side by side: one alone would wait for its multiplications."""
    s0, s1, s2 = np.uint64(state[0]), np.uint64(state[1]), np.uint64(state[2])
    key = (np.uint64(state[3]), np.uint64(state[4]))
    first = np.uint64(4 * lane)
    for i in range(GROUP):
        call = tile * (TILE // 4) + lane + i
        one: Lanes = (np.uint64(call), s0, s1, s2)
        other: Lanes = (np.uint64(call + PHILOX_LANES), s0, s1, s2)
        k0, k1 = key
        for _ in range(10):
            one, other = _philox_round(one, (k0, k1)), _philox_round(other, (k0, k1))
            k0 = (k0 + np.uint64(0x9E3779B9)) & _LOW_HALF
            k1 = (k1 + np.uint64(0xBB67AE85)) & _LOW_HALF
        for j in range(4):
            index = first + np.uint64(4 * i + j)
            words[index] = ~one[j]
            words[index + np.uint64(4 * PHILOX_LANES)] = ~other[j]


@compiled
def fill(state: Words, tile: int, family: int, lane: int, words: Words) -> None:
    """The race words of a group of lanes."""
    if family == CHACHA8:
        _chacha_words(state, tile % (KEYSTREAM_WORDS // TILE), lane, words)
    else:
        _philox_words(state, tile, lane, words)
