import math
from functools import cache

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammainccinv

from tokenmark.detector.exponential_sums import (
    log_weighted_exponential_tail,
    log_weighted_exponential_tails,
)
from tokenmark.detector.tail_integrals import log_gamma_tails

LEVELS = [0.99, 0.6, 0.5, 0.4, 1e-2, 1e-6, 1e-50, 1e-300]


def matched_threshold(n: int, share: float, level: float) -> float:
    """The statistic whose tail is the level under the Gamma law of the same two moments."""
    variance = (1 - share) ** 2 + share**2
    return float(gammainccinv(n / variance, level) * variance)


@cache
def exact_tail(n: int, share: float, statistic: float) -> mpmath.mpf:
    """P[(1 - share) X + share Y >= statistic] with fifty digits.

    A Gamma variable of the larger weight is one of the smaller weight with a shape that is larger
    by a negative binomial count, so that the tail is a positive series of Gamma tails.
    """
    with mpmath.workdps(50):
        small, large = sorted((mpmath.mpf(share), 1 - mpmath.mpf(share)))
        if small in (0, large):
            shape = n if small == 0 else 2 * n
            return mpmath.gammainc(shape, statistic / large, mpmath.inf, regularized=True)
        ratio, mean, shape = small / large, statistic / small, 2 * n
        tail = mpmath.gammainc(shape, mean, mpmath.inf, regularized=True)
        step = mpmath.exp(shape * mpmath.log(mean) - mean - mpmath.loggamma(shape + 1))
        weight, total, count = ratio**n, mpmath.mpf(0), 0
        # Past the mode of the weights each is smaller than the one before, and tails are at most 1.
        while count * ratio <= n * (1 - ratio) or weight > mpmath.mpf(10) ** -35 * total * ratio:
            total += weight * tail
            tail += step
            step *= mean / (shape + count + 1)
            weight *= (1 - ratio) * (n + count) / (count + 1)
            count += 1
        return total


def relative_error(n: int, share: float, statistic: float) -> float:
    log_tail = log_weighted_exponential_tail(n, (1 - share, share), statistic)
    with mpmath.workdps(50):
        return abs(float(mpmath.exp(mpmath.mpf(log_tail)) / exact_tail(n, share, statistic) - 1))


@pytest.mark.parametrize("n", [1, 2, 10, 50])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.4999, 0.5, 0.7, 1.0])
def test_the_tail_agrees_with_fifty_digits(n: int, share: float) -> None:
    for level in LEVELS:
        assert relative_error(n, share, matched_threshold(n, share, level)) < 1e-11


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 10, 50, 200, 1000, 5000])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.4, 0.5, 0.9, 1.0])
def test_the_tail_agrees_with_fifty_digits_for_long_texts(n: int, share: float) -> None:
    for level in LEVELS:
        assert relative_error(n, share, matched_threshold(n, share, level)) < 1e-9 / 50


@pytest.mark.parametrize(
    ("n", "share", "ratios"),
    [
        (50, 0.1, (1.035, 1.156, 1.340, 1.930)),
        (50, 0.2, (1.049, 1.225, 1.516, 2.589)),
        (200, 0.1, (1.019, 1.085, 1.183, 1.475)),
        (500, 0.1, (1.013, 1.056, 1.119, 1.301)),
    ],
)
def test_moment_matching_is_too_small_by_the_published_ratio(
    n: int, share: float, ratios: tuple[float, ...]
) -> None:
    for level, ratio in zip((1e-2, 1e-4, 1e-6, 1e-10), ratios, strict=True):
        statistic = matched_threshold(n, share, level)
        log_tail = log_weighted_exponential_tail(n, (1 - share, share), statistic)
        assert math.exp(log_tail) / level == pytest.approx(ratio, abs=6e-4)


def test_nearly_equal_weights_join_the_gamma_law_up_to_a_million() -> None:
    # The path of integration on one side, the integer Gamma tail on the other.
    for n in (1, 31, 5000, 10**6):
        for level in LEVELS:
            statistic = float(gammainccinv(2 * n, level))
            near = log_weighted_exponential_tail(n, (1.0, 1 - 2e-15), statistic)
            gamma = float(log_gamma_tails(np.array(2 * n), np.array(statistic)))
            assert abs(near - gamma) < 1e-9


def test_many_statistics_agree_with_single_ones() -> None:
    n = np.array([[20], [300]])
    statistics = np.array([[1.0, 15.0, 20.0, 30.0, 90.0], [200.0, 290.0, 300.0, 350.0, 900.0]])
    table = log_weighted_exponential_tails(n, (0.9, 0.1), statistics)
    assert table.shape == statistics.shape
    for row in range(2):
        for column in range(5):
            single = log_weighted_exponential_tail(
                int(n[row, 0]), (0.9, 0.1), float(statistics[row, column])
            )
            assert table[row, column] == pytest.approx(single, rel=1e-12)


@given(
    st.integers(1, 10**6),
    st.floats(0, 1),
    st.floats(0, 1e9),
    st.floats(1.0001, 10),
)
def test_the_tail_is_finite_and_falls(
    n: int, share: float, statistic: float, factor: float
) -> None:
    weights = (1 - share, share)
    near = log_weighted_exponential_tail(n, weights, statistic)
    far = log_weighted_exponential_tail(n, weights, statistic * factor)
    assert -math.inf < far <= near <= 0.0


def test_order_and_unit_of_the_weights_do_not_matter() -> None:
    tail = log_weighted_exponential_tail(40, (0.8, 0.2), 61.0)
    assert log_weighted_exponential_tail(40, (0.2, 0.8), 61.0) == tail
    assert log_weighted_exponential_tail(40, (1.6, 0.4), 122.0) == pytest.approx(tail, rel=1e-13)


def test_no_score_is_no_evidence() -> None:
    assert log_weighted_exponential_tail(0, (0.9, 0.1), 3.0) == 0.0
    assert log_weighted_exponential_tail(5, (0.9, 0.1), 0.0) == 0.0
    assert log_weighted_exponential_tail(5, (0.9, 0.1), 1e-300) == 0.0


@pytest.mark.parametrize("weights", [(0.0, 0.0), (1.1, -0.1), (math.inf, 1.0), (math.nan, 1.0)])
def test_weights_outside_their_range_are_refused(weights: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        log_weighted_exponential_tail(5, weights, 3.0)
