"""Steps of a model without an engine. Knows nothing of schedulers' decisions."""

import dataclasses

import torch
from torch import Tensor

from tokenmark.engine.batch import build_batch
from tokenmark.engine.models.llama import Llama
from tokenmark.engine.scheduler import ScheduledChunk, SchedulerOutput

__all__ = ["all_logits"]


def all_logits(model: Llama, token_ids: list[int]) -> Tensor:
    """Logits [T, V] behind every token of a sequence that is computed at once, in one block."""
    n_tokens, config = len(token_ids), model.config
    chunk = ScheduledChunk("0", start=0, token_ids=tuple(token_ids), block_ids=(0,), samples=True)
    batch = build_batch(
        SchedulerOutput(chunks=(chunk,), preempted=()),
        block_size=n_tokens,
        dtype=model.dtype,
        device=model.device,
    )
    every_row = dataclasses.replace(batch, sample_rows=torch.arange(n_tokens, device=model.device))
    shape = (config.n_layers, 2, 1, n_tokens, config.n_kv_heads, config.head_dim)
    return model.forward(every_row, torch.zeros(shape, dtype=model.dtype, device=model.device))
