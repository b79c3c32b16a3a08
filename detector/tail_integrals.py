"""Gamma and binomial tails for whole arrays of statistics, as natural logarithms.

Knows nothing of keys or text. A tail is a Poisson or binomial probability times an integral of
exp(-g(v)) with a convex g. The integrand falls from 1 without a peak, so one Gauss-Legendre rule of
fixed size gives full precision whatever the number of scores.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["log_binomial_tail", "log_binomial_tails", "log_gamma_tails"]

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

# The integrand is cut off where it has fallen to exp(-40); the rule is exact to 1e-12 up to there.
_DEPTH: Final = 40.0
_NODES: Final = 24
# So many tails are computed together that the values at all nodes stay in the cache.
_TOGETHER: Final = 2048
# From here on four terms of Stirling's series are exact to the last digit.
_STIRLING_FROM: Final = 32
_LOG_FACTORIALS: Final = np.array([math.lgamma(n + 1) for n in range(_STIRLING_FROM)])


def log_gamma_tails(
    n: Counts,
    statistics: Floats,
) -> Floats:  # of the common shape
    """ln P[Gamma(n, 1) >= statistic] for arrays that broadcast.

    With t = S (1 + v) above the mean and t = S (1 - v) below, the integral of t^(n-1) exp(-t)
    beyond S, divided by n!, becomes the Poisson probability of n times the integral of exp(-g),
    where g = S v - (n - 1) ln(1 + v) above and g = -S v - (n - 1) ln(1 - v) below. Below the mean
    n times that is the complement of the tail.
    The relative error of the tail is below 1e-11 up to a million scores.

    >>> log_gamma_tails(np.array([0, 1]), np.array([0.0, 2000.0])).round(6).tolist()
    [0.0, -2000.0]
    """
    return _in_blocks(_gamma_tails, n, statistics)


def _gamma_tails(n: Floats, statistics: Floats) -> Floats:
    result = np.zeros(n.size)
    informative = (n > 0) & (statistics > 0)
    shape, mean = n[informative], statistics[informative]
    above = mean >= shape
    side = np.where(above, 1.0, -1.0)
    others = shape - 1
    slope = side * (mean - others)

    def exponent(v: Floats) -> Floats:
        shift: Floats = side * v
        return slope * v + others * (shift - np.log1p(shift))

    reach = _reach(
        slope,
        falling=np.where(above, 0.0, others),
        rising=np.where(above, others, 0.0),
        ratio=1.0,
        limit=np.where(above, np.inf, 1.0),
    )
    log_side = _log_poisson(shape, mean) + np.log(shape * _integral(exponent, reach))
    result[informative] = _from_side(log_side, above)
    return result


def log_binomial_tail(n: int, k: int, probability: float) -> float:
    """ln P[Bin(n, probability) >= k]: the tail of the number of hits in n independent trials.

    Args:
        n: number of trials.
        k: number of hits; of none the tail is 1, of more than n ln 0.
        probability: of a hit, inside (0, 1).

    The relative error of the tail is below 1e-10 up to ten million trials, as long as the tail is
    above exp(-1e5); below that its logarithm is exact to 14 digits.

    >>> round(log_binomial_tail(2, 1, 0.5), 6), log_binomial_tail(2, 3, 0.5)
    (-0.287682, -inf)
    """
    return float(log_binomial_tails(np.array([n]), np.array([k]), probability)[0])


def log_binomial_tails(
    n: Counts,
    k: Counts,
    probability: float,
) -> Floats:  # of the common shape
    """log_binomial_tail for arrays that broadcast.

    The tail is the incomplete beta function I_q(k, n - k + 1). With t = q (1 - v) it becomes k
    times the binomial probability of k times the integral of exp(-g), where
    g = -(k - 1) ln(1 - v) - (n - k) ln(1 + v q / (1 - q)). Up to the mean misses are counted.

    Raises:
        ValueError: a probability that is not inside (0, 1).
    """
    if not 0 < probability < 1:
        raise ValueError(f"the probability of a hit must lie inside (0, 1), got {probability}")
    return _in_blocks(
        lambda trials, hits: _binomial_tails(trials, hits, probability),
        n,
        k,
    )


def _binomial_tails(n: Floats, k: Floats, probability: float) -> Floats:
    result = np.where(k > n, -np.inf, 0.0)
    informative = (k > 0) & (k <= n)
    total, count = n[informative], k[informative]
    above = count > total * probability
    count = np.where(above, count, total - count + 1)
    hit = np.where(above, probability, 1 - probability)
    miss = np.where(above, 1 - probability, probability)
    rest, ratio = total - count, hit / miss
    others = count - 1
    slope = others - rest * ratio

    def exponent(v: Floats) -> Floats:
        rise = ratio * v
        return slope * v - others * (np.log1p(-v) + v) + rest * (rise - np.log1p(rise))

    reach = _reach(slope, falling=others, rising=rest, ratio=ratio, limit=1.0)
    # Hits and misses are Poisson variables given their sum.
    log_side = (
        _log_poisson(count, total * hit)
        + _log_poisson(rest, total * miss)
        - _log_poisson(total, total)
        + np.log(count * _integral(exponent, reach))
    )
    result[informative] = _from_side(log_side, above)
    return result


def _in_blocks(
    tails: Callable[[Floats, Floats], Floats],
    n: Counts,
    statistics: NDArray[np.float64] | Counts,
) -> Floats:
    """The tails of flat blocks of the broadcast arrays, put together again."""
    counts, values = np.broadcast_arrays(n, statistics)
    flat_counts, flat_values = counts.ravel(), values.ravel()
    result = np.empty(flat_counts.size)
    for start in range(0, result.size, _TOGETHER):
        block = slice(start, start + _TOGETHER)
        result[block] = tails(
            flat_counts[block].astype(np.float64), flat_values[block].astype(np.float64)
        )
    return result.reshape(counts.shape)


def _from_side(log_side: Floats, above: NDArray[np.bool_]) -> Floats:
    """The tail from the side of the statistic that was integrated: itself or its complement."""
    # No side is larger than 1 but by rounding.
    log_side = np.minimum(log_side, 0.0)
    complement = np.where(above, 0.0, np.exp(log_side))
    return np.where(above, log_side, np.log1p(-complement))


def _integral(exponent: Callable[[Floats], Floats], reach: Floats) -> Floats:
    """The integral of exp(-exponent) from 0 to the reach."""
    nodes, weights = _rule()
    values = np.exp(-exponent(nodes[:, np.newaxis] * reach))
    # No matrix product: its library would start threads for it.
    integral: Floats = reach * np.einsum("i,ij->j", weights, values)
    return integral


def _reach(
    slope: Floats,
    *,
    falling: Floats,
    rising: Floats,
    ratio: Floats | float,
    limit: Floats | float,
) -> Floats:
    """A point beyond which g exceeds the depth, or the limit; not much further than need be.

    g(v) = slope v + falling (-ln(1 - v) - v) + rising (ratio v - ln(1 + ratio v)). Since
    -ln(1 - v) - v >= v^2 / 2 and x - ln(1 + x) >= 3 x^2 / (6 + 4 x), g lies above a parabola up to
    any known bound, and the point where that reaches the depth is a better bound.
    """
    bound = np.minimum(_DEPTH / np.maximum(slope, 1e-300), limit)
    for _ in range(4):
        curvature = falling + rising * ratio**2 * (6 / (6 + 4 * ratio * bound))
        root = slope + np.sqrt(slope * slope + 2 * _DEPTH * curvature)
        bound = np.minimum(bound, 2 * _DEPTH / np.maximum(root, 1e-300))
    return bound


@cache
def _rule() -> tuple[Floats, Floats]:
    """Nodes and weights of Gauss and Legendre on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return (nodes + 1) / 2, weights / 2


def _log_poisson(n: Floats, mean: Floats) -> Floats:
    """ln of the Poisson probability of n; the large parts of its logarithm never meet."""
    small = n < _STIRLING_FROM
    log_factorial = _LOG_FACTORIALS[np.where(small, n, 0).astype(np.int64)]
    direct = n * np.log(mean) - mean - log_factorial
    # Where the direct form holds any size will do.
    size = np.where(small, _STIRLING_FROM, n)
    excess = (mean - size) / size
    # Any bound will do: log1p is exact near, log far away.
    near = np.abs(excess) < 0.5  # noqa: PLR2004
    log_ratio = np.where(near, np.log1p(np.where(near, excess, 0.0)), np.log(mean) - np.log(size))
    square = size * size
    series = 1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * square)) / square) / square
    stirling = size * (log_ratio - excess) - 0.5 * np.log(2 * math.pi * size) - series / size
    result: Floats = np.where(small, direct, stirling)
    return result
