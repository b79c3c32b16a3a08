"""How the scores of a mark are distributed in text that does not bear it. Knows nothing of keys.

A statistic is the sum of the scores of n positions. A law is of one position, and positions are
independent once repeated contexts are masked. Tails are the detector's business.
"""

import math
from dataclasses import dataclass, field

__all__ = ["BitLaw", "CountLaw", "DualLaw", "ExponentialLaw", "LevelLaw", "NullLaw"]


@dataclass(frozen=True, slots=True)
class ExponentialLaw:
    """Exp(1): the sum is Gamma(n, 1)."""

    largest_score: float
    """What the most convincing word gives."""

    mean: float = 1.0


@dataclass(frozen=True, slots=True)
class DualLaw:
    """(1 - weight) X + weight Y with independent X and Y of Exp(1): two keys score a position."""

    weight: float
    largest_score: float
    mean: float = 1.0


@dataclass(frozen=True, slots=True)
class LevelLaw:
    """-ln(1 - r / levels) with r uniform on 0, ..., levels - 1: Exp(1) in steps."""

    levels: int

    @property
    def largest_score(self) -> float:
        """That of the highest level."""
        return math.log(self.levels)

    @property
    def mean(self) -> float:
        """Of one position; a little below 1."""
        # Stirling: the sum of ln(levels / k) over k = 1, ..., levels.
        return math.log(self.levels) - math.lgamma(self.levels + 1) / self.levels


@dataclass(frozen=True, slots=True)
class BitLaw:
    """How many of so many independent bits are set: the sum is binomial."""

    trials: int
    probability: float

    @property
    def largest_score(self) -> float:
        """All bits are set."""
        return float(self.trials)

    @property
    def mean(self) -> float:
        """Of one position."""
        return self.trials * self.probability


@dataclass(frozen=True, slots=True)
class CountLaw:
    """A count from 0 on with given probabilities: bits that are not independent."""

    probabilities: tuple[float, ...] = field(repr=False)

    @property
    def largest_score(self) -> float:
        """The largest count that has a probability."""
        return float(max(count for count, p in enumerate(self.probabilities) if p > 0))

    @property
    def mean(self) -> float:
        """Of one position."""
        return sum(count * p for count, p in enumerate(self.probabilities))


NullLaw = ExponentialLaw | DualLaw | LevelLaw | BitLaw | CountLaw
