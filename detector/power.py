"""How likely a mark of given length is found, and the shortest text that can decide anything.

Knows nothing of a particular text: it describes kinds of text by the mean entropy of the law that
each token was drawn from. The power is a normal approximation of the sum of scores, within about
0.03 of simulation from 40 tokens on; it informs the wording of a verdict and never a p-value.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tokenmark.detector.tails import log_tail
from tokenmark.watermark.null_law import BitLaw, CountLaw, DualLaw, NullLaw

__all__ = [
    "LOW_ENTROPY",
    "OPEN",
    "PROSE",
    "TextKind",
    "detection_power",
    "smallest_decisive_length",
]


@dataclass(frozen=True, slots=True)
class TextKind:
    """A kind of text by the entropy of its tokens, and what a marked token of it scores.

    A token drawn with probability p has the mean score digamma(1 + 1/p) + 0.5772... and the
    variance pi^2/6 - trigamma(1 + 1/p). The moments are taken over Zipf laws on 1,000 ids whose
    entropy varies from token to token by a Gamma law of shape 1/2: many nearly certain tokens, few
    open ones, as language models write.

    Args:
        mean_entropy: in nats a token.
        score_mean: mean score of a marked token.
        score_variance: its variance.
    """

    mean_entropy: float
    score_mean: float
    score_variance: float


LOW_ENTROPY: Final = TextKind(0.25, 1.2097, 1.6790)
"""Code, lists and template-like text."""

PROSE: Final = TextKind(1.0, 1.8620, 4.1980)
"""Typical prose."""

OPEN: Final = TextKind(3.0, 3.1424, 8.4847)
"""The most open text that a model plausibly writes."""


def detection_power(n_scored: int, log_level: float, kind: TextKind, law: NullLaw) -> float | None:
    """Probability that marked text of this length and kind reaches the level.

    None for marks of bits: how many they set depends on the engine's strength, not on the text
    alone.
    """
    if isinstance(law, BitLaw | CountLaw):
        return None
    if n_scored == 0:
        return 0.0
    mean, variance = _moments(kind, law)
    excess = (_threshold(n_scored, log_level, law) - n_scored * mean) / math.sqrt(
        n_scored * variance
    )
    return 0.5 * math.erfc(excess / math.sqrt(2))


def _moments(kind: TextKind, law: NullLaw) -> tuple[float, float]:
    """Mean and variance of the score of a marked token."""
    if not isinstance(law, DualLaw):
        return kind.score_mean, kind.score_variance
    # One of the two keys has drawn the token, the second with the probability of its weight.
    weights = (1 - law.weight, law.weight)
    means = [weight * (kind.score_mean - 1) + 1 for weight in weights]
    mean = sum(p * m for p, m in zip(weights, means, strict=True))
    within = sum(
        weight * (weight**2 * kind.score_variance + (1 - weight) ** 2) for weight in weights
    )
    between = sum(p * (m - mean) ** 2 for p, m in zip(weights, means, strict=True))
    return mean, within + between


@lru_cache(maxsize=1024)
def _threshold(n: int, log_level: float, law: NullLaw) -> float:
    """The statistic of n scores whose tail is the level, by bisection."""
    low, high = 0.0, float(n)
    while log_tail(law, n, high) > log_level:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if log_tail(law, n, middle) > log_level else (low, middle)
    return high


@lru_cache(maxsize=256)
def smallest_decisive_length(log_level: float, law: NullLaw) -> int:
    """The smallest number of scored tokens at which the best possible score reaches the level."""
    n = 1
    while log_tail(law, n, n * law.largest_score) > log_level:
        n += 1
    return n
