"""How a framework draws an id without a mark: in torch, over the whole row, filters by sorting.

Knows nothing of keys.
"""

import torch
from torch import Tensor

__all__ = ["draw_by_division", "filter_by_sorting"]


def draw_by_division(
    logits: Tensor,  # [B, V]; -inf where removed
    generator: torch.Generator,
) -> Tensor:  # [B] int64
    """An id of each row, by an exponential race over its probabilities."""
    probabilities = logits.softmax(dim=-1, dtype=torch.float32)
    noise = torch.empty_like(probabilities).exponential_(generator=generator)
    return probabilities.div_(noise).argmax(dim=-1)


def filter_by_sorting(
    logits: Tensor,  # [B, V]
    *,
    top_k: int | None,
    top_p: float,
) -> Tensor:  # [B, V]
    """The logits, -inf for those that top-k, and then top-p of what it left, remove."""
    ordered, order = logits.sort(dim=-1, descending=True)
    if top_k is not None:
        ordered[:, top_k:] = -torch.inf
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1).sub_(probabilities)
    ordered.masked_fill_(before >= top_p, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ordered)
