"""The mean of ratios that were measured pair by pair, and how well it is known.

Knows nothing of what was measured.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["MIN_PAIRS", "RatioInterval", "ratio_interval"]

MIN_PAIRS: Final = 20
"""Of fewer pairs no interval is made."""

# Student's quantile of 19 degrees of freedom at 97.5 % is 2.0931; of more it is less.
_QUANTILE: Final = 2.1


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """A geometric mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of what lies between the two ends."""
        return (self.high - self.low) / 2


def ratio_interval(ratios: Sequence[float]) -> RatioInterval:
    """The geometric mean of positive ratios; the interval is Student's, over their logarithms.

    Raises:
        ValueError: there are fewer than `MIN_PAIRS` ratios.

    >>> ratio_interval([0.5, 2.0] * 10).mean
    1.0
    """
    if len(ratios) < MIN_PAIRS:
        raise ValueError(f"an interval needs at least {MIN_PAIRS} ratios, got {len(ratios)}")
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    margin = _QUANTILE * statistics.stdev(logs) / math.sqrt(len(logs))
    return RatioInterval(math.exp(mean), math.exp(mean - margin), math.exp(mean + margin))
