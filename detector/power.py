"""How likely a mark of given length is found, and the shortest text that can decide anything.

Knows nothing of a particular text: it describes kinds of text by the mean entropy of the law that
each token was drawn from. The laws are Zipf's over 1,000 ids, with an entropy per position from a
Gamma law of shape 1/2: many nearly certain tokens, few open ones, as language models write. The
power is a normal approximation of the sum of scores, within about 0.03 of simulation from 40
tokens on; it informs the wording of a verdict and never a p-value.
"""

from dataclasses import dataclass
from functools import cache
from math import erfc, exp, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammainccinv, gammaincinv, polygamma

from tokenmark.detector.pvalue import log_gamma_tail

__all__ = [
    "LOW_ENTROPY_NATS",
    "OPEN_NATS",
    "PROSE_NATS",
    "ScoreMoments",
    "detection_power",
    "expected_score",
    "score_moments",
    "smallest_decisive_length",
]

PROSE_NATS: Final = 1.0
"""Mean entropy of typical prose, in nats a token."""
LOW_ENTROPY_NATS: Final = 0.25
"""Mean entropy of code, lists and template-like text."""
OPEN_NATS: Final = 3.0
"""Mean entropy of the most open text that a model plausibly writes."""

_VOCABULARY: Final = 1000


@dataclass(frozen=True, slots=True)
class ScoreMoments:
    """Mean and variance of the score of one marked token."""

    mean: float
    variance: float


def expected_score(
    probability: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Mean score of a token that was drawn with the given probability: H(1/p).

    A winner's 1 - x is the p-th power of a uniform, so that -ln x has the mean
    digamma(1 + 1/p) + 0.5772...
    """
    return digamma(1 + 1 / probability) - digamma(1.0)


def _score_variance(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    return polygamma(1, 1.0) - polygamma(1, 1 + 1 / probability)


@cache
def _zipf_table() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Entropy, mean score and mean squared score of Zipf laws, from flat to nearly certain."""
    exponents = np.concatenate([np.linspace(0, 4, 81), np.geomspace(4.1, 40, 60)])
    log_rank = np.log(np.arange(1, _VOCABULARY + 1))
    weights = np.exp(-exponents[:, None] * log_rank)
    laws = weights / weights.sum(axis=1, keepdims=True)
    # Ids too rare to matter would overflow 1/p; their share of every sum is below 1e-12.
    bounded = np.maximum(laws, 1e-15)
    entropy = -(laws * np.log(bounded)).sum(axis=1)
    mean = expected_score(bounded)
    square = _score_variance(bounded) + mean**2
    return entropy[::-1], (laws * mean).sum(axis=1)[::-1], (laws * square).sum(axis=1)[::-1]


@cache
def score_moments(mean_entropy_nats: float) -> ScoreMoments:
    """Moments of a marked token's score in text of the given mean entropy."""
    entropy, mean, square = _zipf_table()
    quantiles = (np.arange(400) + 0.5) / 400
    per_position = gammaincinv(0.5, quantiles) * 2 * mean_entropy_nats
    first = float(np.interp(per_position, entropy, mean).mean())
    second = float(np.interp(per_position, entropy, square).mean())
    return ScoreMoments(mean=first, variance=second - first**2)


def detection_power(n_scored: int, log_level: float, *, mean_entropy_nats: float) -> float:
    """Probability that marked text of this length and kind reaches the level."""
    if n_scored == 0:
        return 0.0
    threshold = float(gammainccinv(n_scored, exp(log_level)))
    moments = score_moments(mean_entropy_nats)
    excess = (threshold - n_scored * moments.mean) / sqrt(n_scored * moments.variance)
    return 0.5 * erfc(excess / sqrt(2))


def smallest_decisive_length(log_level: float, *, largest_score: float) -> int:
    """The smallest number of scored tokens at which the best possible score reaches the level."""
    n = 1
    while log_gamma_tail(n, n * largest_score) > log_level:
        n += 1
    return n
