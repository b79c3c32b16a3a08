"""The tail of a statistic under the law of its scheme. Knows nothing of keys or text."""

from functools import lru_cache

import numpy as np

from tokenmark.detector.exponential_sums import log_weighted_exponential_tail
from tokenmark.detector.pvalue import log_gamma_tail
from tokenmark.detector.score_law import ScoreLaw
from tokenmark.detector.tail_integrals import log_binomial_tail
from tokenmark.watermark.null_law import (
    BitLaw,
    CountLaw,
    DualLaw,
    ExponentialLaw,
    LevelLaw,
    NullLaw,
)

__all__ = ["log_tail"]


def log_tail(law: NullLaw, n: int, statistic: float) -> float:
    """ln P[a sum of n scores of the law >= statistic]; 0 where nothing was scored.

    Exact but for rounding; of laws in steps or by counts at most a tenth above the exact tail and
    never below it.

    >>> round(log_tail(ExponentialLaw(largest_score=20.0), 1, 5.0), 9)
    -5.0
    """
    if n == 0:
        return 0.0
    match law:
        case ExponentialLaw():
            return log_gamma_tail(n, statistic)
        case DualLaw(weight=weight):
            return log_weighted_exponential_tail(n, (1 - weight, weight), statistic)
        case BitLaw(trials=trials, probability=probability):
            return log_binomial_tail(n * trials, round(statistic), probability)
        case LevelLaw() | CountLaw():
            return _score_law(law).log_tail(n, statistic)


@lru_cache(maxsize=64)
def _score_law(law: LevelLaw | CountLaw) -> ScoreLaw:
    if isinstance(law, LevelLaw):
        return ScoreLaw.of_levels(law.levels)
    probabilities = np.array(law.probabilities)
    counts = np.flatnonzero(probabilities)
    return ScoreLaw(counts.astype(np.float64), probabilities[counts])
