"""Rows of logits as compiled code reads them: any encoding, scaled, in tiles. Knows no words.

Logits are handled as the bits of float32, and compared by rank: an unsigned integer that orders
floats as they are ordered, -inf being 0, +inf and every NaN the last.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.kernels.compiled import compiled, inlined

__all__ = [
    "BFLOAT16",
    "CHUNKS",
    "FLOAT16",
    "FLOAT32",
    "LANES",
    "RANK_OF_INFINITY",
    "TILE",
    "Float",
    "Floats",
    "Row",
    "Scale",
    "Words",
    "logit_of_rank",
    "rank_of_bits",
    "survey",
    "unpack",
]

Words = NDArray[np.uint32]
Float = np.float32
Floats = NDArray[np.float32]
Row = NDArray[np.uint32] | NDArray[np.uint16]  # [V], logits as they are stored
# How logits are stored; the temperature; the smallest that stays after division by it.
Scale = tuple[int, Float, Float]

FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2

LANES: Final = 128
CHUNKS: Final = 16
TILE: Final = CHUNKS * LANES

_MINUS_INFINITY: Final = np.uint32(0xFF800000)
_RANK_OFFSET: Final = np.uint32(0x807FFFFF)
RANK_OF_INFINITY: Final = np.uint32(0xFF000001)


@inlined
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


@compiled
def unpack(row: Row, scale: Scale, column: int, bits: Words) -> None:
    """The logits of a row from a column on, scaled; -inf where one is removed or has no column."""
    encoding, temperature, floor = scale
    low = max(column, 0)
    high = max(low, min(column + bits.size, row.size))
    bits[: low - column] = _MINUS_INFINITY
    bits[high - column :] = _MINUS_INFINITY
    source, target = row[low:high], bits[low - column : high - column]
    if encoding == FLOAT32:
        for i in range(source.size):
            target[i] = source[i]
    elif encoding == BFLOAT16:
        for i in range(source.size):
            target[i] = np.uint32(source[i]) << np.uint32(16)
    else:
        for i in range(source.size):
            target[i] = _half_bits(np.uint32(source[i]))
    logits = target.view(np.float32)
    if temperature != np.float32(1):
        for i in range(logits.size):
            logits[i] = logits[i] / temperature
    if floor > -np.inf:
        for i in range(logits.size):
            # NaN stays, so that whoever reads it can tell.
            logits[i] = -np.inf if logits[i] < floor else logits[i]


@inlined
def _flip(bits: np.uint32) -> np.uint32:
    """From the bits of floats to integers of the same order, and back."""
    sign = np.uint32(np.int32(bits) >> np.int32(31))
    return np.uint32(bits ^ (sign & np.uint32(0x7FFFFFFF)))


@inlined
def rank_of_bits(bits: np.uint32) -> np.uint32:
    """The rank of a logit."""
    return np.uint32(_flip(bits) - _RANK_OFFSET)


@inlined
def logit_of_rank(rank: np.uint32) -> Float:
    """The logit of a rank."""
    return np.uint32(_flip(np.uint32(rank + _RANK_OFFSET))).view(np.float32)


@compiled
def survey(
    row: Row,
    scale: Scale,
    column: int,
    bits: Words,  # [TILE], overwritten
    tops: Floats,  # [N, CHUNKS], filled
) -> tuple[np.uint32, int]:
    """Note the largest logit of every chunk of N tiles; the highest rank and its tile."""
    highest, highest_tile = np.uint32(0), 0
    for tile in range(tops.shape[0]):
        unpack(row, scale, column + tile * TILE, bits)
        for j in range(CHUNKS):
            rank = np.uint32(0)
            for i in range(j * LANES, (j + 1) * LANES):
                rank = max(rank, rank_of_bits(bits[i]))
            tops[tile, j] = logit_of_rank(rank)
            if rank > highest:
                highest, highest_tile = rank, tile
    return highest, highest_tile
