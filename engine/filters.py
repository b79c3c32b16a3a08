"""The filters of a batch as kernels take them. Knows nothing of logits or of how an id is drawn."""

from collections.abc import Sequence

from tokenmark.engine.request import SamplingParams
from tokenmark.kernels.rows import Filters

__all__ = ["filters_of"]


def filters_of(params: Sequence[SamplingParams]) -> Filters:
    """What each row's parameters ask for; of a greedy row only the likeliest candidates stay."""
    filters = Filters.none(len(params))
    for row, wanted in enumerate(params):
        if wanted.is_greedy:
            filters.top_k[row] = 1
            continue
        filters.temperatures[row] = wanted.temperature
        if wanted.top_k is not None:
            # No vocabulary is as large as what an int64 may not hold.
            filters.top_k[row] = min(wanted.top_k, filters.top_k[row])
        filters.top_p[row] = wanted.top_p
        filters.min_p[row] = wanted.min_p
    return filters
