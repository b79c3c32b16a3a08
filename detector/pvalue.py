"""Tail probabilities of the statistics under the null, as natural logarithms.

Knows nothing of keys or text. Logarithms stay finite where the probability itself underflows.
"""

import math

import numpy as np
from scipy.special import gammainc, gammaincc, gammaln

__all__ = ["log_gamma_tail"]

# Below this the direct tail loses digits to underflow; above it, it is exact to 1e-13 or better.
_SMALLEST_DIRECT_TAIL = 1e-280


def log_gamma_tail(n: int, statistic: float) -> float:
    """ln P[Gamma(n, 1) >= statistic]: the tail of a sum of n scores that are Exp(1).

    For an integer shape the tail is the Poisson sum exp(-S) * sum over k < n of S^k / k!. Relative
    error of the result below 1e-11.

    >>> log_gamma_tail(0, 0.0), round(log_gamma_tail(1, 2000.0), 6)
    (0.0, -2000.0)
    """
    if n == 0 or statistic <= 0:
        return 0.0
    if statistic < n:
        # The tail is more than about one half: its complement holds the digits.
        return float(np.log1p(-gammainc(n, statistic)))
    tail = float(gammaincc(n, statistic))
    if tail > _SMALLEST_DIRECT_TAIL:
        return math.log(tail)
    return _log_poisson_sum(n, statistic)


def _log_poisson_sum(n: int, statistic: float) -> float:
    """The Poisson sum relative to its largest term k = n - 1; only called far above the mean.

    Each earlier term is smaller by a factor k / S < 1, so the sum is cut off where the product can
    no longer change it.
    """
    largest = -statistic + (n - 1) * math.log(statistic) - float(gammaln(n))
    ratio, total, term = statistic, 1.0, 1.0
    for k in range(n - 1, 0, -1):
        term *= k / ratio
        total += term
        if term < total * 1e-17:
            break
    return largest + math.log(total)
