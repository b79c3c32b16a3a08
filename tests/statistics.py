"""Statistical checks with a stated false-alarm rate."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

__all__ = ["g_test_log10_pvalue"]


def g_test_log10_pvalue(counts: NDArray[np.int64], law: NDArray[np.float64]) -> float:
    """Base ten logarithm of the p-value of the likelihood-ratio test of counts against a law.

    The chi-square limit is used, so every cell should expect at least about ten counts.
    """
    expected = law * counts.sum()
    assert expected.min() > 10, "cells must be merged first"
    seen = counts > 0
    statistic = 2 * float((counts[seen] * np.log(counts[seen] / expected[seen])).sum())
    return float(np.log10(max(chdtrc(law.size - 1, statistic), 1e-300)))
