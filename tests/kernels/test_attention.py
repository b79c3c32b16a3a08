import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tokenmark.kernels import attention
from tokenmark.kernels.attention import (
    AttentionPath,
    AttentionPlan,
    paged_attention,
    plan_attention,
    write_kv,
)

N_HEADS, N_KV_HEADS, HEAD_DIM, N_BLOCKS = 6, 2, 4, 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """Sequences in scattered blocks of a cache whose other slots hold huge values."""

    plan: AttentionPlan
    queries: Tensor  # [T, n_heads, head_dim]
    key_cache: Tensor
    value_cache: Tensor
    expected: Tensor  # [T, n_heads, head_dim] by the definition, in float64

    def attended(self) -> Tensor:
        return paged_attention(self.queries, self.key_cache, self.value_cache, self.plan)


def reference(
    queries: Tensor,  # [n, n_heads, head_dim]
    keys: Tensor,  # [L, n_kv_heads, head_dim]
    values: Tensor,  # [L, n_kv_heads, head_dim]
) -> Tensor:  # [n, n_heads, head_dim] float64
    """Softmax attention row by row and head by head."""
    result = torch.empty(queries.shape, dtype=torch.float64)
    for i, row in enumerate(queries.double()):
        n_seen = len(keys) - len(queries) + i + 1
        for head, query in enumerate(row):
            kv_head = head // (N_HEADS // N_KV_HEADS)
            weights = (keys[:n_seen, kv_head].double() @ query / HEAD_DIM**0.5).softmax(0)
            result[i, head] = weights @ values[:n_seen, kv_head].double()
    return result


def make_case(
    lengths: Sequence[tuple[int, int]],  # queries and context of each sequence
    *,
    block_size: int = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    free = list(range(N_BLOCKS))
    random.Random(seed).shuffle(free)  # noqa: S311 - only an order
    cache_shape = (N_BLOCKS, block_size, N_KV_HEADS, HEAD_DIM)
    key_cache, value_cache = torch.full((2, *cache_shape), 1e4, dtype=dtype)
    queries, expected, tables = [], [], []
    for n_queries, n_keys in lengths:
        query = torch.randn(n_queries, N_HEADS, HEAD_DIM, generator=generator).to(dtype)
        key, value = torch.randn(2, n_keys, N_KV_HEADS, HEAD_DIM, generator=generator).to(dtype)
        # One block more than needed: a table may reach further than the context.
        tables.append([free.pop() for _ in range(n_keys // block_size + 1)])
        slots = [tables[-1][i // block_size] * block_size + i % block_size for i in range(n_keys)]
        write_kv(key, value, key_cache, value_cache, torch.tensor(slots))
        queries.append(query)
        expected.append(reference(query, key, value))
    plan = plan_attention(
        query_lengths=[n_queries for n_queries, _ in lengths],
        context_lengths=[n_keys for _, n_keys in lengths],
        block_tables=tables,
        block_size=block_size,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    return Case(
        plan=plan,
        queries=torch.cat(queries),
        key_cache=key_cache,
        value_cache=value_cache,
        expected=torch.cat(expected),
    )


lengths = st.integers(1, 20).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n)))


@given(st.lists(lengths, min_size=1, max_size=8), st.sampled_from([1, 3, 16]), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_any_mixture_of_sequences_follows_the_definition(
    sequences: list[tuple[int, int]], block_size: int, seed: int
) -> None:
    case = make_case(sequences, block_size=block_size, seed=seed)
    torch.testing.assert_close(case.attended().double(), case.expected, atol=1e-5, rtol=0)


def test_bfloat16_follows_the_definition_to_its_precision() -> None:
    case = make_case([(1, 9), (5, 7), (1, 1)], dtype=torch.bfloat16)
    assert case.attended().dtype == torch.bfloat16
    torch.testing.assert_close(case.attended().double(), case.expected, atol=2e-2, rtol=0)


def test_the_path_is_told() -> None:
    assert make_case([(1, 1)]).plan.path is AttentionPath.GATHER


def test_single_rows_share_calls_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_TOKENS_PER_CALL", 24)
    # Padded to blocks of four: 8 + 8 + 8 fill a call, 20 exceeds it with any other, 32 alone.
    case = make_case([(1, 30), (1, 8), (1, 17), (1, 5), (1, 7)])
    shapes = [(group.mask.shape[0], group.mask.shape[3]) for group in case.plan.groups]
    assert shapes == [(3, 8), (1, 20), (1, 32)]
    torch.testing.assert_close(case.attended().double(), case.expected, atol=1e-5, rtol=0)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    alone = make_case([(1, 11)])
    among = make_case([(1, 11), (4, 9), (1, 20), (1, 1), (1, 11)])
    torch.testing.assert_close(among.attended()[:1], alone.attended(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("wrong", ["no mask", "sees one ahead", "misses itself"])
def test_wrong_masks_are_caught(wrong: str) -> None:
    case = make_case([(5, 8)])
    (group,) = case.plan.groups
    mask = {
        "no mask": torch.zeros_like(group.mask),
        "sees one ahead": group.mask.roll(1, dims=3),
        "misses itself": group.mask.roll(-1, dims=3),
    }[wrong]
    plan = dataclasses.replace(case.plan, groups=(dataclasses.replace(group, mask=mask),))
    error = (dataclasses.replace(case, plan=plan).attended() - case.expected).abs().max()
    assert error > 1e-2


def test_wrong_head_groups_are_caught() -> None:
    case = make_case([(3, 8)])
    # Head i with key-value head i % 2 instead of i // 3.
    interleaved = case.queries.view(3, 3, 2, HEAD_DIM).transpose(1, 2).reshape(case.queries.shape)
    other = dataclasses.replace(case, queries=interleaved).attended()
    other = other.view(3, 2, 3, HEAD_DIM).transpose(1, 2).reshape(case.queries.shape)
    assert (other - case.expected).abs().max() > 1e-2


def test_writing_touches_only_the_slots_named() -> None:
    key_cache, value_cache = torch.zeros(2, 3, 2, N_KV_HEADS, HEAD_DIM)
    keys, values = torch.ones(2, N_KV_HEADS, HEAD_DIM), torch.full((2, N_KV_HEADS, HEAD_DIM), 2.0)
    write_kv(keys, values, key_cache, value_cache, torch.tensor([5, 2]))
    written = [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    assert key_cache[..., 0, 0].flatten().tolist() == written
    assert value_cache[..., 1, 3].flatten().tolist() == [2 * value for value in written]
