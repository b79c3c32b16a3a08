"""Reference draw and score of the keyed exponential race. Knows nothing of keys or contexts.

The functions take 32-bit words, which are the specification, and derive every float from them in
float64. Faster paths must choose the same ids but at near-ties of the race.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.watermark.errors import SamplingError

__all__ = ["exponentials", "race", "race_large_u", "score_small_x", "uniforms", "winners"]

Words = NDArray[np.uint32]

_GRID: Final = 2.0**32


def uniforms(words: Words) -> NDArray[np.float64]:
    """x = (W + 1/2) / 2^32, inside (0, 1); small under the mark."""
    return (words.astype(np.float64) + 0.5) / _GRID


def exponentials(words: Words) -> NDArray[np.float64]:
    """E = -ln(1 - x), Exp(1); 1 - x is formed from the complement of W, so both ends are exact."""
    complement = (np.uint32(0xFFFFFFFF) - words).astype(np.float64)
    low = -np.log1p(-uniforms(words))
    high = -np.log((complement + 0.5) / _GRID)
    return np.where(words < np.uint32(2**31), low, high)


def score_small_x(words: Words) -> NDArray[np.float64]:
    """-ln x, the evidence of a token drawn with word W; Exp(1) under the null."""
    return -np.log(uniforms(words))


def race(
    logits: NDArray[np.floating],  # [B, V], after temperature; -inf where removed
    words: Words,  # [B, V]
) -> NDArray[np.float64]:  # [B, V]
    """logit - ln E for every candidate; the largest wins, its law is softmax(logits).

    A removed candidate (logit -inf) has the value -inf and can never win: a sole candidate's value
    is finite for every word.
    """
    return logits.astype(np.float64) - np.log(exponentials(words))


def race_large_u(
    logits: NDArray[np.floating],  # [B, V], after temperature; -inf where removed
    uniform: NDArray[np.float32],  # [B, V], inside (0, 1); large under the mark
) -> NDArray[np.float32]:  # [B, V]
    """logit - ln(-ln u) in float32, the form of the same race in vLLM's recipe."""
    return logits.astype(np.float32) - np.log(-np.log(uniform))


def winners(
    race_values: NDArray[np.floating],  # [B, V]
) -> NDArray[np.int64]:  # [B]
    """The id that wins each row's race, ties to the lowest id.

    Raises:
        SamplingError: a row holds NaN or +inf, or no candidate.
    """
    best = race_values.max(axis=1, initial=-np.inf)
    if not np.isfinite(best).all():
        row = int(np.flatnonzero(~np.isfinite(best))[0])
        raise SamplingError(
            f"row {row} of the logits has nothing to draw from: its best value is {best[row]}; "
            "at least one finite logit and no NaN is needed"
        )
    ids: NDArray[np.int64] = race_values.argmax(axis=1)
    return ids
