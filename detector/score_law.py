"""The tail of a sum of independent scores of any one law, as a natural logarithm.

Knows nothing of keys, tokens or where a score comes from. A stated tail errs on the safe side: it
is not below the true one, and hardly above.

The law is moved to a lattice, convolved with itself by a Fourier transform and read off. Before the
transform it is tilted by exp(tilt score) so that the statistic lies near the middle of the sum's
law; the tail then has full relative precision however small it is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["ScoreLaw"]

Floats = NDArray[np.float64]

# Step of the grid of ln(x / (1 - x)) that a continuous law is represented on, and its ends: x is
# followed down to 1e-304, 1 - x to 1e-17.
_LOGIT_STEP: Final = 0.04
_LOGIT_ENDS: Final = (-700.0, 40.0)
# The cost of the lattice: a statistic is lowered by about so many units of ln p.
_COARSENESS: Final = 0.05
# Moving n scores to the lattice lowers their sum by more than _SLACK step sqrt(n) with at most the
# chance exp(-2 _SLACK^2) = 0.4 %, by Hoeffding's inequality.
_SLACK: Final = 1.65
# How far from its mean, in standard deviations, the law of a tilted sum is followed.
_SPREAD: Final = 7.0
# From one tilt to the next the mean of the sum moves by about so many of its standard deviations,
# and by at most twice as many of those after the move.
_STRIDE: Final = 2.0
# Values of smaller tilted probability, and lattice points whose weight in a tail is below
# exp(-_DEPTH), change nothing.
_NEGLIGIBLE: Final = 1e-20
_DEPTH: Final = 46.0
# Rounding of a sum of scores, relative to the largest score, for each score.
_ROUNDING: Final = 1e-12


@dataclass(frozen=True, slots=True)
class _TiltedLaw:
    """A law with the weight exp(tilt value); its values are counted from the highest, down."""

    values: Floats  # [A], from -something to 0
    probabilities: Floats  # [A]
    tilt: float
    log_factor: float
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True, eq=False)
class ScoreLaw:
    """The law of one score by its values and their probabilities.

    Args:
        values: ascending, at least two different ones.
        probabilities: positive, of sum 1.
    """

    values: Floats  # [A]
    probabilities: Floats  # [A]
    _log_probabilities: Floats = field(init=False, repr=False)  # [A]

    def __post_init__(self) -> None:
        values, probabilities = self.values, self.probabilities
        if values.ndim != 1 or values.shape != probabilities.shape or values.size == 0:
            raise ValueError(
                f"a law needs one probability for each value, got shapes {values.shape} and "
                f"{probabilities.shape}"
            )
        if not np.isfinite(values).all() or (np.diff(values) < 0).any() or values[0] == values[-1]:
            raise ValueError("the values of a law must be finite, ascending and not all the same")
        if not (probabilities > 0).all() or abs(probabilities.sum() - 1) > 1e-9:  # noqa: PLR2004
            raise ValueError("the probabilities of a law must be positive and have the sum 1")
        object.__setattr__(self, "_log_probabilities", np.log(probabilities))

    @classmethod
    def of_score(cls, score: Callable[[Floats, Floats], Floats]) -> Self:
        """The law of score(x, 1 - x) for x uniform on (0, 1).

        The grid in ln(x / (1 - x)) gives every exponential moment of a smooth score to rounding
        (the trapezoidal rule for an analytic integrand) and the tail of a single score to 2 %.

        Args:
            score: vectorised; it gets x and 1 - x, each exact to the last digit near its zero.
        """
        logit = np.arange(*_LOGIT_ENDS, _LOGIT_STEP)
        odds = np.exp(-np.abs(logit))
        smaller, larger = odds / (1 + odds), 1 / (1 + odds)
        x, complement = np.where(logit < 0, (smaller, larger), (larger, smaller))
        values, probabilities = score(x, complement), x * complement
        order = np.argsort(values, kind="stable")
        return cls(values[order], probabilities[order] / probabilities.sum())

    @classmethod
    def of_levels(cls, levels: int) -> Self:
        """The law of -ln(1 - r / levels) for r uniform on 0, ..., levels - 1: Exp(1) in steps."""
        left = np.arange(levels, 0, -1)
        return cls(np.log(levels / left), np.full(levels, 1 / levels))

    def log_tail(self, n: int, statistic: float) -> float:
        """ln P[sum of n scores >= statistic].

        The true tail is at most the stated one. For n >= 5 it is at least 0.9 of it, at a few
        scores near their median at least 0.6, unless single sums just below the statistic carry
        much of the probability: a statistic is lowered by about 0.07 / tilt before it is compared.

        >>> law = ScoreLaw(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
        >>> round(math.exp(law.log_tail(10, 10.0)) * 1024, 9)
        1.0
        """
        return float(self.log_tails(n, np.array([statistic]))[0])

    def log_tails(self, n: int, statistics: Floats) -> Floats:
        """log_tail for many statistics of the same number of scores; the same values as one by one.

        The tilts form a ladder that depends on the law and n alone: each statistic is read off the
        law of the sum at the first tilt whose mean reaches it.

        Raises:
            ValueError: a statistic is not a number.
        """
        if np.isnan(statistics).any():
            raise ValueError("a statistic is NaN; sums of scores are numbers")
        result = np.zeros(statistics.shape)
        if n == 0:
            return result
        top = float(self.values[-1])
        tolerance = n * _ROUNDING * (1 + abs(top))
        lowered = statistics - tolerance
        highest = lowered >= n * top - 2 * tolerance
        # To reach the highest sum but for rounding, every score must be the highest but for that.
        chance = self.probabilities[self.values >= top - 3 * tolerance].sum()
        result[highest] = n * math.log(chance)
        pending = ~highest
        tilted = self._tilted(0.0)
        scale = tilted.deviation
        while pending.any():
            here = pending & (lowered - n * top <= n * tilted.mean)
            if here.any():
                result[here] = _log_tails_at(tilted, n, lowered[here] - n * top, scale)
                pending &= ~here
            if pending.any():
                tilted = self._next_tilted(tilted, n)
        return result

    def _next_tilted(self, law: _TiltedLaw, n: int) -> _TiltedLaw:
        stride = _STRIDE / (math.sqrt(n) * law.deviation)
        while True:
            following = self._tilted(law.tilt + stride)
            # The deviation may grow or shrink on the way: what lies between must be near for both.
            if math.sqrt(n) * (following.mean - law.mean) <= 2 * _STRIDE * following.deviation:
                return following
            stride /= 2

    def _tilted(self, tilt: float) -> _TiltedLaw:
        values = self.values - self.values[-1]
        exponents = self._log_probabilities + tilt * values
        highest = exponents.max()
        weights = np.exp(exponents - highest)
        total = weights.sum()
        weights /= total
        mean = float((weights * values).sum())
        return _TiltedLaw(
            values=values,
            probabilities=weights,
            tilt=tilt,
            log_factor=float(highest + np.log(total)),
            mean=mean,
            deviation=math.sqrt(float((weights * (values - mean) ** 2).sum())),
        )


def _log_tails_at(law: _TiltedLaw, n: int, statistics: Floats, scale: float) -> Floats:
    """The untilted tails at statistics that the tilted sum has about at its mean.

    Args:
        law: of one score.
        n: number of scores.
        statistics: counted from the highest possible sum.
        scale: the standard deviation of a score that is not tilted.
    """
    step = _COARSENESS / (2 / scale + law.tilt * math.sqrt(n))
    masses, lowest, log_factor = _on_lattice(law, step, n)
    support = n * (masses.size - 1) + 1
    spread = 2 * (_SPREAD * law.deviation * math.sqrt(n) / step + masses.size)
    size = _transform_size(min(spread, support))
    convolved = np.fft.irfft(_power(np.fft.rfft(masses, size), n), size)
    # The transform knows the sum modulo the size; it lies within half a size of its mean.
    start = n * lowest if support <= size else math.floor(n * law.mean / step) - size // 2
    convolved = np.roll(convolved, -((start - n * lowest) % size))
    reach = size if law.tilt == 0 else min(size, math.ceil(_DEPTH / (law.tilt * step)))
    decay = np.exp(-law.tilt * step * np.arange(reach))
    cells = np.maximum(np.floor(statistics / step - _SLACK * math.sqrt(n)), start)
    tails = np.empty(statistics.size)
    for index, cell in enumerate(cells.astype(np.int64) - start):
        part = convolved[cell : cell + reach]
        tails[index] = (part * decay[: part.size]).sum()
    log_tails = n * log_factor - law.tilt * step * cells
    log_tails += np.log(np.maximum(tails, 1e-300)) - math.log1p(-math.exp(-2 * _SLACK**2))
    return np.minimum(log_tails, 0.0)


def _on_lattice(law: _TiltedLaw, step: float, n: int) -> tuple[Floats, int, float]:
    """Tilted probabilities of lattice points, the index of the lowest, and ln of the factor.

    Each value is split between its two neighbours so that its mean stays; that is done before the
    tilt, which weighs the two differently.
    """
    kept = law.probabilities > _NEGLIGIBLE / n
    cells, probabilities = law.values[kept] / step, law.probabilities[kept]
    below = np.floor(cells)
    above_share = cells - below
    tilt = law.tilt * step
    lower = probabilities * (1 - above_share) * np.exp(-tilt * above_share)
    upper = probabilities * above_share * np.exp(tilt * (1 - above_share))
    lowest = int(below[0])
    index = below.astype(np.int64) - lowest
    masses = np.bincount(index, lower, index[-1] + 2) + np.bincount(index + 1, upper, index[-1] + 2)
    total = float(masses.sum())
    return masses / total, lowest, law.log_factor + math.log(total)


def _transform_size(least: float) -> int:
    """A size without large prime factors, at most a quarter above the least."""
    granule = 1 << max(0, math.floor(math.log2(least)) - 2)
    return granule * math.ceil(least / granule)


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """The power by repeated squaring, which is several times faster than by logarithms."""
    result = base if exponent % 2 else np.ones_like(base)
    while exponent := exponent // 2:
        base = base * base
        if exponent % 2:
            result = result * base
    return result
