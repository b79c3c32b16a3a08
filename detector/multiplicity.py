"""Corrects a p-value for everything that was tried. Knows nothing of what the tests were."""

import math

__all__ = ["bonferroni"]


def bonferroni(log_pvalue: float, n_tests: int) -> float:
    """ln of the p-value times the number of tests, at most 0.

    Holds whatever the dependence between the tests: the chance that any of them falls below the
    level by accident is at most the level.
    """
    return min(0.0, log_pvalue + math.log(n_tests))
