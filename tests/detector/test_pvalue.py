import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaincc

from tokenmark.detector.multiplicity import bonferroni
from tokenmark.detector.pvalue import log_gamma_tail


@pytest.mark.parametrize("n", [1, 2, 20, 200, 4000])
@pytest.mark.parametrize("ratio", [0.01, 0.5, 0.999, 1.0, 1.001, 1.5, 3.0, 10.0, 30.0])
def test_log_tail_agrees_with_fifty_digits(n: int, ratio: float) -> None:
    statistic = n * ratio
    with mpmath.workdps(50):
        exact = mpmath.log(mpmath.gammainc(n, statistic, mpmath.inf, regularized=True))
    assert log_gamma_tail(n, statistic) == pytest.approx(float(exact), rel=1e-11, abs=1e-300)


@given(st.integers(1, 10**6), st.floats(0, 1e9), st.floats(1.0001, 10))
def test_log_tail_is_finite_and_falls(n: int, statistic: float, factor: float) -> None:
    near, far = log_gamma_tail(n, statistic), log_gamma_tail(n, statistic * factor)
    assert -math.inf < far <= near <= 0.0


@pytest.mark.parametrize("n", [1, 31, 32, 33, 999, 10**6])
@pytest.mark.parametrize("ratio", [0.9, 0.999, 1.0, 1.001, 1.1])
def test_log_tail_agrees_with_scipy_near_the_mean(n: int, ratio: float) -> None:
    tail = gammaincc(n, n * ratio)
    if 0 < tail < 1:
        assert log_gamma_tail(n, n * ratio) == pytest.approx(math.log(tail), rel=1e-10, abs=1e-15)


def test_no_score_is_no_evidence() -> None:
    assert log_gamma_tail(0, 0.0) == 0.0
    assert log_gamma_tail(4, 0.0) == 0.0


def test_bonferroni_multiplies_and_stops_at_one() -> None:
    assert bonferroni(math.log(1e-6), 100) == pytest.approx(math.log(1e-4))
    assert bonferroni(math.log(0.5), 100) == 0.0
