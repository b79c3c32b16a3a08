"""Masses of candidates, compiled for the CPU: powers of e in vectors, and their sum over a row.

Knows nothing of filters or words.
"""

from collections.abc import Callable
from math import factorial, log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.kernels import rows_cpu
from tokenmark.kernels.compiled import compiled, entry, inlined
from tokenmark.kernels.rows_cpu import CHUNKS, TILE, Float, Floats, Row, Scale, survey, unpack

__all__ = ["exponential", "find_log_masses"]

# A float32 is rounded to an integer, its last bits, when this is added.
_ROUNDER: Final = np.float32(1.5 * 2**23)
_OCTAVES_PER_NAT: Final = np.float32(1 / log(2))
# ln 2 in two parts, of which the first has so few digits that its multiples are exact.
_LN2_HIGH: Final = np.float32(355 / 512)
_LN2_LOW: Final = np.float32(log(2) - 355 / 512)
_C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(1 / factorial(n)) for n in range(2, 8))
# The least for which the power of e is a normal number; no mass is 0.
_LEAST_EXPONENT: Final = np.float32(-87)


@inlined
def exponential(x: Float) -> Float:
    """The power of e to a number that is not positive; that of -87 if it is less."""
    x = max(x, _LEAST_EXPONENT)
    rounded = np.float32(x * _OCTAVES_PER_NAT + _ROUNDER)
    n = np.float32(rounded - _ROUNDER)
    r = np.float32(np.float32(x - n * _LN2_HIGH) - n * _LN2_LOW)
    tail = _C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * _C7))))
    power = np.float32(np.float32(1) + np.float32(r + r * r * tail))
    exponent = np.uint32(rounded.view(np.uint32) << np.uint32(23))
    return np.uint32(power.view(np.uint32) + exponent).view(np.float32)


@compiled
def _log_mass(row: Row, scale: Scale, top: Float) -> float:
    """ln of the sum of the powers of e of a row, whose largest logit is `top`."""
    bits = np.empty(TILE, dtype=np.uint32)
    masses, sums = bits.view(np.float32), np.zeros(TILE)
    for column in range(0, row.size, TILE):
        unpack(row, scale, column, bits)
        # Two loops: one would work on half as many at once, as float64 is twice as wide.
        for i in range(TILE):
            masses[i] = exponential(np.float32(masses[i] - top))
        for i in range(TILE):
            sums[i] += np.float64(masses[i])
    return np.float64(top) + log(sums.sum())


def _build(sources: str) -> Callable[..., None]:
    def find_log_masses(
        flat: Row,
        layout: tuple[int, int],
        encoding: int,
        scales: tuple[Floats, Floats],
        rows: NDArray[np.int64],
        log_masses: NDArray[np.float64],
    ) -> None:
        _ = sources
        stride, n_columns = layout
        temperatures, floors = scales
        bits = np.empty(TILE, dtype=np.uint32)
        tops = np.empty(((n_columns + TILE - 1) // TILE, CHUNKS), dtype=np.float32)
        for i in range(rows.size):
            start = rows[i] * stride
            row = flat[start : start + n_columns]
            scale = (encoding, temperatures[rows[i]], floors[rows[i]])
            survey(row, scale, 0, bits, tops)
            log_masses[i] = _log_mass(row, scale, tops.max())

    return find_log_masses


find_log_masses: Final = entry(_build, rows_cpu)
"""Fill `log_masses` [N]: ln of the sum of the powers of e of what the filters left of some rows.

A logit less that is the logarithm of a probability, within 2e-7. Rows must have a candidate, and
neither NaN nor +inf.

Args:
    flat: all rows, `layout[0]` apart.
    layout: row stride, V.
    encoding: of the logits.
    scales: temperatures [B], and the smallest scaled logits that stay [B].
    rows: which of them, [N].
    log_masses: overwritten.
"""
