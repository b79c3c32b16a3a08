import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import bdtrc

from tokenmark.detector.pvalue import log_gamma_tail
from tokenmark.detector.tail_integrals import (
    log_binomial_tail,
    log_binomial_tails,
    log_gamma_tails,
)

RATIOS = [0.01, 0.5, 0.97, 0.999, 1.0, 1.001, 1.03, 1.5, 3.0, 30.0]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 20, 31, 32, 33, 200, 4000])
def test_gamma_tails_agree_with_many_digits(n: int) -> None:
    statistics = n * np.array(RATIOS)
    with mpmath.workdps(150):
        exact = [
            float(mpmath.log(mpmath.gammainc(n, statistic, mpmath.inf, regularized=True)))
            for statistic in statistics
        ]
    tails = log_gamma_tails(np.array(n), statistics)
    # Relative for the tail where it is small and for its complement where that is.
    assert tails == pytest.approx(exact, rel=1e-11, abs=1e-100)


def test_a_table_of_gamma_tails_agrees_with_single_ones() -> None:
    n = np.arange(1, 1001)
    statistics = (
        np.random.default_rng(1).gamma(n, size=(100, n.size))
        * np.linspace(0.5, 9, 100)[:, np.newaxis]
    )
    table = log_gamma_tails(n, statistics)
    assert table.shape == statistics.shape
    for row, column in np.random.default_rng(2).integers((100, 1000), size=(300, 2)):
        single = log_gamma_tail(int(n[column]), float(statistics[row, column]))
        assert table[row, column] == pytest.approx(single, rel=2e-11, abs=1e-300)


@given(st.integers(1, 10**6), st.floats(0, 1e9), st.floats(1.0001, 10))
def test_gamma_tails_are_finite_and_fall(n: int, statistic: float, factor: float) -> None:
    near, far = log_gamma_tails(np.array(n), np.array([statistic, statistic * factor]))
    assert -math.inf < far <= near <= 0.0


def test_no_score_is_no_evidence() -> None:
    assert log_gamma_tails(np.array([0, 0, 4]), np.array([0.0, 5.0, 0.0])).tolist() == [0.0] * 3
    assert log_gamma_tails(np.array([], dtype=np.int64), np.array([])).size == 0


def binomial_tail(n: int, k: int, probability: float) -> mpmath.mpf:
    """ln of the tail with fifty digits, summed from k outwards on the side that holds less."""
    with mpmath.workdps(50):
        hit = mpmath.mpf(probability)
        odds = hit / (1 - hit)
        term = mpmath.exp(
            mpmath.loggamma(n + 1)
            - mpmath.loggamma(k + 1)
            - mpmath.loggamma(n - k + 1)
            + k * mpmath.log(hit)
            + (n - k) * mpmath.log(1 - hit)
        )
        if k > n * probability:
            total = mpmath.mpf(0)
            while term > total * mpmath.mpf(10) ** -25:
                total += term
                term *= (n - k) * odds / (k + 1)
                k += 1
            return mpmath.log(total)
        total = mpmath.mpf(0)
        while k > 0 and term > total * mpmath.mpf(10) ** -25:
            term *= k / ((n - k + 1) * odds)
            total += term
            k -= 1
        return mpmath.log1p(-total)


@pytest.mark.parametrize(
    "n", [1, 2, 3, 10, 31, 32, 33, 500, 10**5, pytest.param(10**7, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("probability", [1e-9, 1e-3, 0.25, 0.5, 0.75, 0.999, 1 - 1e-7])
def test_a_binomial_tail_agrees_with_fifty_digits(n: int, probability: float) -> None:
    deviation = math.sqrt(n * probability * (1 - probability))
    for excess in (-6, -1, -0.3, 0, 0.01, 0.3, 1, 3, 30):
        k = min(n, max(1, round(n * probability + excess * deviation)))
        exact = float(binomial_tail(n, k, probability))
        error = abs(log_binomial_tail(n, k, probability) - exact)
        assert error < (1e-10 if exact > -1e5 else 1e-14 * abs(exact))


def test_a_certain_hit_count_has_its_plain_form() -> None:
    assert log_binomial_tail(20, 0, 0.3) == 0.0
    assert log_binomial_tail(20, 20, 0.3) == pytest.approx(20 * math.log(0.3), rel=1e-13)
    assert log_binomial_tail(20, 1, 0.3) == pytest.approx(math.log1p(-(0.7**20)), rel=1e-13)
    assert log_binomial_tail(20, 21, 0.3) == -math.inf
    assert log_binomial_tail(0, 0, 0.3) == 0.0


def test_binomial_tails_of_many_keys_agree_with_scipy() -> None:
    n = np.array([[300], [3000]])
    k = np.random.default_rng(3).binomial(n, 0.5, (2, 500)) + np.arange(500) // 5
    tails = log_binomial_tails(n, k, 0.5)
    assert tails == pytest.approx(np.log(bdtrc(k - 1, n, 0.5)), rel=1e-9, abs=1e-12)


@given(st.integers(1, 10**7), st.floats(1e-12, 1 - 1e-12), st.data())
def test_a_binomial_tail_falls_with_the_hits(
    n: int, probability: float, data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, n))
    near, far = log_binomial_tail(n, k, probability), log_binomial_tail(n, k + 1, probability)
    assert far <= near <= 0.0


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1, math.nan])
def test_a_probability_outside_its_range_is_refused(probability: float) -> None:
    with pytest.raises(ValueError, match="inside"):
        log_binomial_tail(10, 3, probability)
