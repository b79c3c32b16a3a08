import random
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.steps import all_logits
from tests.tiny_model import TINY, tiny_llama
from tokenmark.engine.config import EngineConfig
from tokenmark.engine.model_runner import (
    ModelRunner,
    cache_blocks,
    cache_memory,
    default_dtype,
)
from tokenmark.engine.scheduler import ScheduledChunk, SchedulerOutput
from tokenmark.watermark.errors import CapacityError

MODEL = tiny_llama(tied=False)
BLOCK_SIZE, N_BLOCKS = 4, 160
TINY_BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, dimensions, float32


def make_runner() -> ModelRunner:
    config = EngineConfig(max_model_len=128, n_blocks=N_BLOCKS, block_size=BLOCK_SIZE)
    runner = ModelRunner(MODEL, config)
    # What earlier sequences left in the blocks must never be seen.
    runner._kv_cache.fill_(100.0)
    return runner


def block_tables(lengths: list[int], seed: int) -> Iterator[tuple[int, ...]]:
    free = list(range(N_BLOCKS))
    random.Random(seed).shuffle(free)  # noqa: S311 - only an order
    return (tuple(free.pop() for _ in range(-(-length // BLOCK_SIZE))) for length in lengths)


def token_ids(seed: int, n_tokens: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(TINY.vocab_size, (n_tokens,), generator=generator).tolist()


def output_of(*chunks: ScheduledChunk) -> SchedulerOutput:
    return SchedulerOutput(chunks=chunks, preempted=())


@st.composite
def splits(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Borders (start, stop) of the chunks in which one sequence is computed."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    borders = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return list(pairwise(borders))


@given(st.lists(splits(), min_size=1, max_size=6), st.integers(0, 2**20))
@settings(max_examples=40, deadline=None)
def test_chunks_in_any_mixture_give_the_logits_of_a_full_recompute(
    sequences: list[list[tuple[int, int]]], seed: int
) -> None:
    runner = make_runner()
    lengths = [chunks[-1][1] for chunks in sequences]
    prompts = [token_ids(seed + i, length) for i, length in enumerate(lengths)]
    tables = list(block_tables(lengths, seed))
    expected = [all_logits(MODEL, prompt) for prompt in prompts]
    for step in range(max(map(len, sequences))):
        # A step takes the next chunk of every sequence that has one, so all kinds of chunks meet.
        borders = {i: chunks[step] for i, chunks in enumerate(sequences) if step < len(chunks)}
        chunks = [
            ScheduledChunk(str(i), start, tuple(prompts[i][start:stop]), tables[i], samples=True)
            for i, (start, stop) in borders.items()
        ]
        result = runner.run(output_of(*chunks))
        assert result.request_ids == tuple(str(i) for i in borders)
        rows = torch.stack([expected[i][stop - 1] for i, (_, stop) in borders.items()])
        torch.testing.assert_close(result.logits, rows, atol=1e-5, rtol=0)
        assert result.logits.is_contiguous()


def test_decoding_one_by_one_gives_the_logits_of_a_full_recompute() -> None:
    runner, prompt = make_runner(), token_ids(1, 40)
    (table,) = block_tables([40], seed=1)
    rows = [
        runner.run(output_of(ScheduledChunk("0", i, (token_id,), table, samples=True))).logits
        for i, token_id in enumerate(prompt)
    ]
    torch.testing.assert_close(torch.cat(rows), all_logits(MODEL, prompt), atol=1e-5, rtol=0)


def decoded(lengths: list[int], *, of: int) -> torch.Tensor:
    """Logits of sequence number `of` in a step in which all sequences decode."""
    runner, tables = make_runner(), list(block_tables(lengths, seed=2))
    prompts = [token_ids(length, length) for length in lengths]
    for start, samples in ((0, False), (-1, True)):
        chunks = (
            ScheduledChunk(
                str(len(ids)),
                start % len(ids),
                tuple(ids[start:] if samples else ids[:-1]),
                blocks,
                samples=samples,
            )
            for ids, blocks in zip(prompts, tables, strict=True)
        )
        result = runner.run(output_of(*chunks))
    return result.logits[of]


@pytest.mark.parametrize("place", [0, 7, 15])
def test_a_sequence_has_the_same_logits_alone_and_among_others(place: int) -> None:
    others = [2 + 4 * i for i in range(15)]
    among = decoded([*others[:place], 33, *others[place:]], of=place)
    torch.testing.assert_close(among, decoded([33], of=0), atol=1e-5, rtol=0)


def test_blocks_of_another_sequence_are_caught() -> None:
    runner, tables = make_runner(), list(block_tables([9, 9], seed=3))
    prompts = [token_ids(seed, 9) for seed in (3, 4)]
    for prompt, table in zip(prompts, tables, strict=True):
        runner.run(output_of(ScheduledChunk("0", 0, tuple(prompt[:8]), table, samples=False)))
    expected = all_logits(MODEL, prompts[0])[-1]
    # Negative control first: it writes only to the last block of the other sequence.
    errors = [
        (runner.run(output_of(chunk)).logits[0] - expected).abs().max()
        for chunk in (
            ScheduledChunk("0", 8, (prompts[0][8],), table, samples=True) for table in tables[::-1]
        )
    ]
    assert errors[0] > 1e-2
    assert errors[1] < 1e-5


def test_a_step_without_samples_gives_no_rows() -> None:
    chunk = ScheduledChunk("0", 0, (1, 2), (0,), samples=False)
    result = make_runner().run(output_of(chunk))
    assert result.request_ids == ()
    assert result.logits.shape == (0, TINY.vocab_size)


def test_more_positions_than_the_model_has_are_refused() -> None:
    with pytest.raises(CapacityError, match=r"max_model_len=129 .* 128 positions; .* smaller"):
        ModelRunner(MODEL, EngineConfig(max_model_len=129, n_blocks=9))


def test_a_new_cache_is_zero_and_takes_no_memory_before_it_is_used() -> None:
    config = EngineConfig(max_model_len=128, n_blocks=2**16)
    before = psutil.Process().memory_info().rss
    runner = ModelRunner(MODEL, config)
    taken = psutil.Process().memory_info().rss - before
    assert runner._kv_cache.nbytes == 2**16 * 16 * TINY_BYTES_PER_TOKEN
    assert taken < runner._kv_cache.nbytes / 4
    assert not runner._kv_cache[0, 0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_fill_the_memory_and_no_more(dtype: torch.dtype) -> None:
    memory_bytes = 10**6 + 123
    n_blocks = cache_blocks(TINY, block_size=16, dtype=dtype, memory_bytes=memory_bytes)
    config = EngineConfig(max_model_len=128, n_blocks=n_blocks)
    n_bytes = ModelRunner(tiny_llama(dtype=dtype), config)._kv_cache.nbytes
    assert n_bytes <= memory_bytes < n_bytes + n_bytes // n_blocks


def memory_for(max_model_len: int) -> int:
    return cache_memory(
        TINY,
        max_model_len=max_model_len,
        max_running=3,
        block_size=16,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        (10**9, 3 * 112 * TINY_BYTES_PER_TOKEN),  # never more than three whole sequences can use
        (400 * TINY_BYTES_PER_TOKEN, 200 * TINY_BYTES_PER_TOKEN),  # never more than half
        (224 * TINY_BYTES_PER_TOKEN, 112 * TINY_BYTES_PER_TOKEN),  # just enough for one
    ],
)
def test_memory_for_the_cache(
    monkeypatch: pytest.MonkeyPatch, available: int, expected: int
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    assert memory_for(100) == expected
    n_blocks = cache_blocks(TINY, block_size=16, dtype=torch.float32, memory_bytes=expected)
    assert EngineConfig(max_model_len=100, n_blocks=n_blocks).n_blocks_of(100) <= n_blocks


def test_too_little_memory_for_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    available = 224 * TINY_BYTES_PER_TOKEN - 2
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    message = "max_model_len=100 needs 1 MiB, and 0 MiB .* smaller --max-model-len"
    with pytest.raises(CapacityError, match=message):
        memory_for(100)


@pytest.mark.parametrize(
    ("avx512_bf16", "amx", "expected"),
    [
        (False, False, torch.float32),
        (True, False, torch.bfloat16),
        (False, True, torch.bfloat16),
    ],
)
def test_bfloat16_where_the_processor_has_it(
    monkeypatch: pytest.MonkeyPatch, *, avx512_bf16: bool, amx: bool, expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert default_dtype(torch.device("cpu")) == expected
    assert default_dtype(torch.device("cuda")) == torch.bfloat16
