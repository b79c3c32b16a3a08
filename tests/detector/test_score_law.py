import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import gammainccinv

from tokenmark.detector.score_law import ScoreLaw
from tokenmark.detector.tail_integrals import log_binomial_tails, log_gamma_tails

Floats = NDArray[np.float64]

LEVELS = [0.9, 0.6, 0.4, 0.1, 1e-2, 1e-4, 1e-6, 1e-12, 1e-30, 1e-60, 1e-100]


def exponential_score(x: Floats, _complement: Floats) -> Floats:
    return -np.log(x)


@pytest.fixture(scope="module")
def exponential() -> ScoreLaw:
    return ScoreLaw.of_score(exponential_score)


@pytest.fixture(scope="module")
def levels() -> ScoreLaw:
    return ScoreLaw.of_levels(8191)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 60, 240, 1000, 20_000])
def test_an_exponential_score_has_the_gamma_tail(exponential: ScoreLaw, n: int) -> None:
    statistics = np.array([float(gammainccinv(n, level)) for level in LEVELS])
    stated = exponential.log_tails(n, statistics)
    ratio = np.exp(log_gamma_tails(np.array(n), statistics) - stated)  # true / stated
    assert 0.9 < ratio.min() < ratio.max() < 1.0


def test_a_score_that_falls_and_rises_is_a_law_too() -> None:
    # |ln(x / (1 - x))| is the logistic law folded at 0: P[one score >= s] = 2 / (1 + exp(s)).
    law = ScoreLaw.of_score(lambda x, complement: np.abs(np.log(x) - np.log(complement)))
    statistics = np.linspace(0.5, 20, 40)
    ratio = 2 / (1 + np.exp(statistics)) / np.exp(law.log_tails(1, statistics))
    assert 0.9 < ratio.min() < ratio.max() < 1.0


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_a_law_of_three_values_is_never_understated(n: int) -> None:
    values, probabilities = (0.0, 1.0, 2.7), (0.7, 0.25, 0.05)
    law = ScoreLaw(np.array(values), np.array(probabilities))
    exact: dict[float, float] = {}
    for drawn in itertools.combinations_with_replacement(range(3), n):
        counts = [drawn.count(index) for index in range(3)]
        ways = math.factorial(n) / math.prod(math.factorial(count) for count in counts)
        chance = ways * math.prod(p**count for p, count in zip(probabilities, counts, strict=True))
        total = sum(values[index] for index in drawn)
        exact[total] = exact.get(total, 0.0) + chance
    sums = np.array(sorted(exact))
    tails = np.array([sum(p for value, p in exact.items() if value >= total) for total in sums])
    ratio = tails / np.exp(law.log_tails(n, sums))
    assert 0.9 < ratio.min() < ratio.max() < 1 + 1e-9


@pytest.mark.parametrize(("n", "share"), [(7, 0.5), (200, 0.25), (200, 0.01), (5000, 0.5)])
def test_counts_have_the_binomial_tail(n: int, share: float) -> None:
    law = ScoreLaw(np.array([0.0, 1.0]), np.array([1 - share, share]))
    k = np.unique(np.linspace(1, n, 50).astype(int))
    ratio = np.exp(log_binomial_tails(np.array(n), k, share) - law.log_tails(n, k.astype(float)))
    assert 0.9 < ratio.min() < ratio.max() < 1 + 1e-9


def level_pairs_at_least(statistic: float) -> int:
    """Pairs of levels r, q with -ln((1 - r / 8191) (1 - q / 8191)) >= statistic."""
    largest_product = math.floor(8191**2 * math.exp(-statistic) * (1 + 1e-12))
    return sum(min(8191, largest_product // left) for left in range(1, 8192))


def test_tails_of_two_scores_in_levels_are_counted_ones(levels: ScoreLaw) -> None:
    for statistic in (0.5, 2.0, 6.0, 9.0, 12.0, 15.0, 16.0):
        exact = level_pairs_at_least(statistic) / 8191**2
        assert 0.9 < exact / math.exp(levels.log_tail(2, statistic)) < 1.0


@pytest.mark.parametrize("n", [1, 3, 50, 2000])
def test_the_highest_sums_of_levels_are_exact(levels: ScoreLaw, n: int) -> None:
    top, second = math.log(8191), math.log(8191 / 2)
    assert levels.log_tail(n, n * top) == pytest.approx(-n * top, rel=1e-12)
    # All at the top, or one of them a level lower.
    exact = math.log(n + 1) - n * top
    assert exact <= levels.log_tail(n, (n - 1) * top + second) < exact + 0.01


def test_the_levels_have_the_published_moments(levels: ScoreLaw) -> None:
    mean = (levels.probabilities * levels.values).sum()
    variance = (levels.probabilities * (levels.values - mean) ** 2).sum()
    assert mean == pytest.approx(0.999338, abs=1e-6)
    assert variance == pytest.approx(0.994101, abs=1e-6)


@pytest.mark.parametrize(
    ("n", "level", "ratio"),
    [
        (50, 1e-4, 0.92),
        (50, 1e-10, 0.53),
        (200, 1e-6, 0.87),
        (200, 1e-20, 0.38),
        (1000, 1e-6, 0.85),
    ],
)
def test_the_gamma_law_overstates_the_tail_of_levels(
    levels: ScoreLaw, n: int, level: float, ratio: float
) -> None:
    statistic = float(gammainccinv(n, level))
    stated = math.exp(levels.log_tail(n, statistic)) / level
    assert ratio <= stated <= ratio / 0.9


@pytest.mark.parametrize("n", [1, 2, 3, 10, 60, 240])
@pytest.mark.parametrize("name", ["exponential", "levels"])
def test_tails_fall_and_end_finite(n: int, name: str, request: pytest.FixtureRequest) -> None:
    law: ScoreLaw = request.getfixturevalue(name)
    tails = law.log_tails(n, n + math.sqrt(n) * np.linspace(-4, 15, 1000))
    assert (np.diff(tails) < 1e-12).all()
    assert tails[0] == 0.0
    assert -math.inf < law.log_tail(n, math.inf) == law.log_tail(n, 1e9) <= tails[-1]
    assert law.log_tail(n, -math.inf) == law.log_tail(n, -1e300) == 0.0


def test_many_statistics_agree_with_single_ones(levels: ScoreLaw) -> None:
    statistics = np.random.default_rng(4).uniform(150, 500, 40)
    together = levels.log_tails(200, statistics)
    assert together.tolist() == [levels.log_tail(200, float(s)) for s in statistics]


def test_no_score_is_no_evidence(levels: ScoreLaw) -> None:
    assert levels.log_tail(0, 0.0) == 0.0
    assert levels.log_tail(30, 0.0) == 0.0
    assert levels.log_tails(30, np.array([])).size == 0


def test_a_sum_that_is_no_number_is_refused(levels: ScoreLaw) -> None:
    with pytest.raises(ValueError, match="NaN"):
        levels.log_tails(30, np.array([20.0, math.nan]))


@pytest.mark.parametrize(
    ("values", "probabilities", "message"),
    [
        ([], [], "one probability for each"),
        ([0.0, 1.0], [1.0], "one probability for each"),
        ([1.0, 0.0], [0.5, 0.5], "ascending"),
        ([1.0, 1.0], [0.5, 0.5], "not all the same"),
        ([0.0, math.inf], [0.5, 0.5], "finite"),
        ([0.0, 1.0], [1.0, 0.0], "positive"),
        ([0.0, 1.0], [0.5, 0.4], "sum 1"),
    ],
)
def test_what_is_no_law_is_refused(
    values: list[float], probabilities: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ScoreLaw(np.array(values), np.array(probabilities))
