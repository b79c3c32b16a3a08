import math

import numpy as np
import pytest
from scipy.special import digamma, gammainccinv, gammaincinv, polygamma

from tokenmark.detector.power import (
    LOW_ENTROPY,
    OPEN,
    PROSE,
    TextKind,
    detection_power,
    smallest_decisive_length,
)
from tokenmark.detector.power import _moments as moments
from tokenmark.detector.power import _threshold as threshold
from tokenmark.detector.pvalue import log_gamma_tail
from tokenmark.watermark.null_law import BitLaw, CountLaw, DualLaw, ExponentialLaw

LAW = ExponentialLaw(largest_score=16.0)


def zipf_laws() -> tuple[np.ndarray, np.ndarray]:
    """Zipf laws on 1,000 ids from nearly certain to flat, and their entropies in nats."""
    exponents = np.concatenate([np.geomspace(40, 4.1, 60), np.linspace(4, 0, 161)])
    weights = np.arange(1, 1001) ** -exponents[:, None]
    laws = np.maximum(weights / weights.sum(axis=1, keepdims=True), 1e-15)
    return laws, -(laws * np.log(laws)).sum(axis=1)


def kind_of(mean_entropy: float) -> TextKind:
    """The moments from their definition."""
    laws, entropies = zipf_laws()
    mean = digamma(1 + 1 / laws) - digamma(1)
    square = math.pi**2 / 6 - polygamma(1, 1 + 1 / laws) + mean**2
    quantiles = (np.arange(2000) + 0.5) / 2000
    per_token = gammaincinv(0.5, quantiles) * 2 * mean_entropy
    first = np.interp(per_token, entropies, (laws * mean).sum(axis=1)).mean()
    second = np.interp(per_token, entropies, (laws * square).sum(axis=1)).mean()
    return TextKind(mean_entropy, float(first), float(second - first**2))


@pytest.mark.parametrize("kind", [LOW_ENTROPY, PROSE, OPEN])
def test_the_moments_follow_from_their_definition(kind: TextKind) -> None:
    computed = kind_of(kind.mean_entropy)
    assert kind.score_mean == pytest.approx(computed.score_mean, rel=5e-3)
    assert kind.score_variance == pytest.approx(computed.score_variance, rel=5e-3)


def test_the_mean_score_at_published_probabilities() -> None:
    probability = np.array([1, 0.999, 0.99, 0.9, 0.5, 0.1, 0.01])
    published = [1.000, 1.0006, 1.0065, 1.069, 1.5, 2.929, 5.187]
    assert np.allclose(digamma(1 + 1 / probability) - digamma(1), published, atol=6e-4)


@pytest.mark.parametrize(
    ("nats", "n", "power"),
    [(0.5, 120, 0.29), (0.5, 240, 0.79), (1.0, 93, 0.90), (0.5, 300, 0.90)],
)
def test_power_agrees_with_published_simulations(nats: float, n: int, power: float) -> None:
    assert detection_power(n, math.log(1e-6), kind_of(nats), LAW) == pytest.approx(power, abs=0.03)


@pytest.mark.parametrize("n", [1, 10, 200, 5000])
@pytest.mark.parametrize("level", [0.5, 1e-3, 1e-12, 1e-200])
def test_the_threshold_is_the_quantile(n: int, level: float) -> None:
    assert threshold(n, math.log(level), LAW) == pytest.approx(gammainccinv(n, level), rel=1e-6)


@pytest.mark.stat
@pytest.mark.parametrize("kind", [LOW_ENTROPY, PROSE, OPEN])
def test_the_moments_agree_with_simulated_draws(kind: TextKind) -> None:
    """False-alarm rate 1e-8: six standard errors of the mean of 200,000 simulated tokens."""
    generator = np.random.default_rng(7)
    laws, entropies = zipf_laws()
    wanted = generator.gamma(0.5, 2 * kind.mean_entropy, 200_000)
    index = np.interp(wanted, entropies, np.arange(entropies.size)).round().astype(int)
    cumulative = laws.cumsum(axis=1)
    drawn = np.array(
        [
            np.searchsorted(cumulative[i], u)
            for i, u in zip(index, generator.random(index.size), strict=True)
        ]
    )
    probability = laws[index, np.minimum(drawn, 999)]
    scores = -np.log1p(-np.exp(-probability * generator.exponential(size=index.size)))
    error = 6 * scores.std() / math.sqrt(scores.size)
    # The table of laws has steps, which cost at most half a percent.
    assert abs(scores.mean() - kind.score_mean) < error + 0.005 * kind.score_mean


def test_power_grows_with_length_and_entropy() -> None:
    level = math.log(1e-3)
    by_length = [detection_power(n, level, PROSE, LAW) for n in (0, 10, 40, 100, 1000)]
    assert by_length == sorted(by_length)
    assert by_length[0] == 0.0
    by_entropy = [detection_power(50, level, kind, LAW) for kind in (LOW_ENTROPY, PROSE, OPEN)]
    assert by_entropy == sorted(by_entropy)


def test_smallest_decisive_length_is_the_first_that_can_reach_the_level() -> None:
    for log_level in (math.log(1e-3), -30.0, -100.0):
        n = smallest_decisive_length(log_level, LAW)
        assert log_gamma_tail(n, 16.0 * n) <= log_level
        assert n == 1 or log_gamma_tail(n - 1, 16.0 * (n - 1)) > log_level


def test_two_keys_show_less_than_one_and_a_weight_of_nothing_shows_as_much() -> None:
    level = math.log(1e-6)
    single = detection_power(120, level, PROSE, LAW)
    by_weight = [detection_power(120, level, PROSE, DualLaw(w, 16.0)) for w in (0.0, 0.1, 0.5)]
    assert by_weight[0] == pytest.approx(single)
    assert by_weight == sorted(by_weight, reverse=True)
    assert by_weight[2] < single - 0.1


@pytest.mark.stat
@pytest.mark.parametrize("weight", [0.1, 0.4])
def test_the_moments_of_two_keys_agree_with_simulated_draws(weight: float) -> None:
    """False-alarm rate 1e-8: six standard errors of the mean of 400,000 simulated tokens."""
    generator, n = np.random.default_rng(8), 400_000
    marked = np.sqrt(PROSE.score_variance) * generator.standard_normal(n) + PROSE.score_mean
    null = generator.exponential(size=n)
    is_second = generator.random(n) < weight
    first, second = np.where(is_second, null, marked), np.where(is_second, marked, null)
    scores = (1 - weight) * first + weight * second
    mean, variance = moments(PROSE, DualLaw(weight, 16.0))
    assert abs(scores.mean() - mean) < 6 * scores.std() / math.sqrt(n)
    assert scores.var() == pytest.approx(variance, rel=0.02)


def test_the_power_of_marks_of_bits_is_not_known() -> None:
    assert detection_power(500, -7.0, PROSE, BitLaw(1, 0.25)) is None
    assert detection_power(500, -7.0, PROSE, CountLaw((0.25, 0.5, 0.25))) is None
    assert smallest_decisive_length(math.log(1e-6), BitLaw(1, 0.25)) == 10
