"""Removes candidates from rows of logits: temperature, top-k, top-p, min-p, forbidden ids.

Knows nothing of how an id is drawn. All filters keep ties: candidates of equal logit stay or go
together, so that which of them is left never depends on an order of sorting.
"""

import torch
from torch import Tensor

from tokenmark.engine.request import SamplingParams

__all__ = ["apply_filters"]


def apply_filters(
    logits: Tensor,  # [V] float32, finite or -inf
    params: SamplingParams,
) -> Tensor:  # [V] float32
    """Logits after temperature, -inf where top-k, then top-p, then min-p remove a candidate.

    top-p keeps the likeliest candidates until their probability reaches `top_p`, the one that
    reaches it included; probabilities are those among what top-k left. min-p keeps candidates at
    least `min_p` times as likely as the likeliest one.
    """
    scaled = logits / params.temperature
    if params.top_k is not None and params.top_k < scaled.numel():
        smallest_kept = torch.topk(scaled, params.top_k).values[-1]
        scaled = scaled.masked_fill(scaled < smallest_kept, -torch.inf)
    if params.top_p < 1:
        ordered = scaled.sort(descending=True).values
        mass_before = ordered.softmax(dim=0).cumsum(dim=0).roll(1)
        mass_before[0] = 0
        # The likeliest candidate stays, also where `top_p` is nothing in float32.
        n_kept = max(1, int((mass_before < params.top_p).sum()))
        scaled = scaled.masked_fill(scaled < ordered[n_kept - 1], -torch.inf)
    if params.min_p > 0:
        floor = scaled.max() + torch.log(torch.tensor(params.min_p))
        scaled = scaled.masked_fill(scaled < floor, -torch.inf)
    return scaled
