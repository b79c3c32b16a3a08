"""The tensors of one step, made from what the scheduler decided. Knows nothing of models."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmark.engine.scheduler import ScheduledChunk, SchedulerOutput
from tokenmark.kernels.attention import AttentionPlan, plan_attention

__all__ = ["Batch", "build_batch"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """T tokens of S chunks, one chunk behind the other; R of the chunks sample."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64: block_id * block_size + offset
    attention: AttentionPlan
    sample_rows: Tensor  # [R] int64: the last token of every chunk that samples
    sample_ids: tuple[str, ...]  # R request ids, in the order of sample_rows


def build_batch(
    output: SchedulerOutput,
    *,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Batch:
    """The batch of one step, in the order of its chunks.

    Args:
        output: what to compute.
        block_size: tokens a block of the KV cache.
        dtype: what the model computes in.
        device: where the model is.
    """
    chunks = output.chunks
    sample_rows: list[int] = []
    n_rows = 0
    for chunk in chunks:
        n_rows += len(chunk.token_ids)
        if chunk.samples:
            sample_rows.append(n_rows - 1)

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return Batch(
        token_ids=tensor([token_id for chunk in chunks for token_id in chunk.token_ids]),
        positions=tensor([i for chunk in chunks for i in range(chunk.start, chunk.stop)]),
        slot_mapping=tensor([slot for chunk in chunks for slot in _slots(chunk, block_size)]),
        attention=plan_attention(
            query_lengths=[len(chunk.token_ids) for chunk in chunks],
            context_lengths=[chunk.stop for chunk in chunks],
            block_tables=[chunk.block_ids for chunk in chunks],
            block_size=block_size,
            dtype=dtype,
            device=device,
        ),
        sample_rows=tensor(sample_rows),
        sample_ids=tuple(chunk.request_id for chunk in chunks if chunk.samples),
    )


def _slots(chunk: ScheduledChunk, block_size: int) -> list[int]:
    return [
        chunk.block_ids[position // block_size] * block_size + position % block_size
        for position in range(chunk.start, chunk.stop)
    ]
