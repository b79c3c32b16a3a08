"""Attention over a paged key-value cache. Knows nothing of layers, requests or schedulers.

A step has T rows of queries, which belong to S sequences, each with consecutive rows. Keys and
values lie in blocks; a sequence names its blocks in order, and its token i is in block i // size.
What depends on these positions alone is planned once a step and used by every layer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["AttentionPath", "AttentionPlan", "paged_attention", "plan_attention", "write_kv"]

# Sequences of one call are padded to the longest. The bound keeps what that wastes small, and what
# was gathered in the processor's cache until it is used.
_TOKENS_PER_CALL: Final = 4096


class AttentionPath(StrEnum):
    """Which implementation computes a plan."""

    GATHER = "gather"
    """Copies blocks together and calls PyTorch's scaled dot product attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The rows of one sequence: its last `n_queries` of `n_keys` tokens."""

    first_row: int
    n_queries: int
    n_keys: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """N sequences of n rows each that share one call; L is a whole number of blocks."""

    rows: Tensor  # [N * n] int64
    block_ids: Tensor  # [N * L / block_size] int64
    mask: Tensor  # [N, 1, n, L], 0 where a query sees a key, else -inf


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPlan:
    """What all layers of one step share; made by `plan_attention`."""

    path: AttentionPath
    groups: tuple[_Group, ...]


def plan_attention(
    *,
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> AttentionPlan:
    """The plan of one step; the three sequences have one entry a sequence of tokens.

    Args:
        query_lengths: how many rows each sequence has; their sum is T.
        context_lengths: how many tokens each attends to in the end, its own rows included.
        block_tables: blocks that hold at least `context_lengths` tokens.
        block_size: tokens a block.
        dtype: of the queries.
        device: where queries and cache are.
    """
    spans = [
        _Span(
            first_row=first_row,
            n_queries=n_queries,
            n_keys=n_keys,
            block_ids=tuple(block_ids[: -(-n_keys // block_size)]),
        )
        for first_row, n_queries, n_keys, block_ids in zip(
            accumulate(query_lengths, initial=0),
            query_lengths,
            context_lengths,
            block_tables,
            # The first row behind the last sequence belongs to none.
            strict=False,
        )
    ]
    groups = tuple(
        _group(members, block_size, dtype, device) for members in _grouped(spans, block_size)
    )
    return AttentionPlan(path=AttentionPath.GATHER, groups=groups)


def _grouped(spans: Sequence[_Span], block_size: int) -> Iterator[list[_Span]]:
    """Sequences with one row together, in order of length and bounded; all others alone."""
    yield from ([span] for span in spans if span.n_queries > 1)
    group: list[_Span] = []
    for span in sorted(
        (span for span in spans if span.n_queries == 1), key=lambda span: len(span.block_ids)
    ):
        # The newest member is the longest, so it alone decides how far the others are padded.
        if group and (len(group) + 1) * len(span.block_ids) * block_size > _TOKENS_PER_CALL:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _group(
    spans: Sequence[_Span], block_size: int, dtype: torch.dtype, device: torch.device
) -> _Group:
    n_queries = spans[0].n_queries
    n_blocks = max(len(span.block_ids) for span in spans)
    rows = [span.first_row + i for span in spans for i in range(n_queries)]
    # Padding repeats a block of the same sequence: its values are finite whatever others computed.
    block_ids = [
        block_id
        for span in spans
        for block_id in span.block_ids + span.block_ids[-1:] * (n_blocks - len(span.block_ids))
    ]
    first_query = torch.tensor([span.n_keys - n_queries for span in spans])
    query = first_query[:, None, None, None] + torch.arange(n_queries)[:, None]
    unseen = torch.arange(n_blocks * block_size) > query
    mask = torch.zeros(unseen.shape, dtype=dtype).masked_fill_(unseen, float("-inf"))
    return _Group(
        rows=torch.tensor(rows, device=device),
        block_ids=torch.tensor(block_ids, device=device),
        mask=mask.to(device),
    )


def write_kv(
    keys: Tensor,  # [T, n_kv_heads, head_dim]
    values: Tensor,  # [T, n_kv_heads, head_dim]
    key_cache: Tensor,  # [n_blocks, block_size, n_kv_heads, head_dim]
    value_cache: Tensor,  # [n_blocks, block_size, n_kv_heads, head_dim]
    slot_mapping: Tensor,  # [T] int64: block_id * block_size + offset, no slot twice
) -> None:
    """Store the keys and values of T tokens in the cache, in place."""
    key_cache.flatten(0, 1).index_copy_(0, slot_mapping, keys)
    value_cache.flatten(0, 1).index_copy_(0, slot_mapping, values)


def paged_attention(
    queries: Tensor,  # [T, n_heads, head_dim]
    key_cache: Tensor,  # [n_blocks, block_size, n_kv_heads, head_dim]
    value_cache: Tensor,  # [n_blocks, block_size, n_kv_heads, head_dim]
    plan: AttentionPlan,
) -> Tensor:  # [T, n_heads, head_dim]
    """Causal attention of every row to its own sequence, the row's own token included.

    Query head i uses key-value head i // (n_heads / n_kv_heads) (Ainslie et al., 2023); logits are
    scaled by 1 / sqrt(head_dim). The cache already holds the tokens of this step.
    """
    attended = torch.empty_like(queries)
    for group in plan.groups:
        n_sequences, _, n_queries, _ = group.mask.shape
        of_group = queries.index_select(0, group.rows)
        result = functional.scaled_dot_product_attention(
            of_group.view(n_sequences, n_queries, *queries.shape[1:]).transpose(1, 2),
            _gathered(key_cache, group.block_ids, n_sequences),
            _gathered(value_cache, group.block_ids, n_sequences),
            attn_mask=group.mask,
            enable_gqa=True,
        )
        attended.index_copy_(0, group.rows, result.transpose(1, 2).flatten(0, 1))
    return attended


def _gathered(
    cache: Tensor,  # [n_blocks, block_size, n_kv_heads, head_dim]
    block_ids: Tensor,  # [N * L / block_size]
    n_sequences: int,
) -> Tensor:  # [N, n_kv_heads, L, head_dim]
    # Whole blocks as rows: one contiguous copy a block is several times faster than one a token.
    blocks = cache.flatten(1).index_select(0, block_ids)
    return blocks.view(n_sequences, -1, *cache.shape[2:]).transpose(1, 2)
