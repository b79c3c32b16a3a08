import math

import numpy as np
import pytest
from scipy import stats

from tokenmark.eval.paired_ratio import MIN_PAIRS, ratio_interval


@pytest.mark.parametrize("n_pairs", [MIN_PAIRS, 100])
def test_the_interval_is_that_of_students_t(n_pairs: int) -> None:
    ratios = np.random.default_rng(0).lognormal(0.01, 0.03, size=n_pairs).tolist()
    logs = np.log(ratios)
    exact = stats.t.interval(
        0.95, n_pairs - 1, loc=logs.mean(), scale=logs.std(ddof=1) / math.sqrt(n_pairs)
    )
    found = ratio_interval(ratios)
    assert math.isclose(found.mean, math.exp(logs.mean()))
    # Wider by the quantile, which is rounded up and that of the fewest pairs.
    widening = math.log(found.high / found.low) / (exact[1] - exact[0])
    assert 1 < widening < 1.07
    assert math.isclose(found.half_width, (found.high - found.low) / 2)
    assert math.isclose(found.low * found.high, found.mean**2)


def test_equal_ratios_leave_no_doubt() -> None:
    found = ratio_interval([1.25] * MIN_PAIRS)
    assert math.isclose(found.mean, 1.25)
    assert found.half_width < 1e-12


def test_fewer_pairs_make_no_interval() -> None:
    with pytest.raises(ValueError, match="at least 20 ratios, got 19"):
        ratio_interval([1.0] * (MIN_PAIRS - 1))
