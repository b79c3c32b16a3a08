"""The Triton kernels against the NumPy reference: compiled on a GPU, else interpreted."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tokenmark.watermark.gumbel import exponentials, race, race_large_u
from tokenmark.watermark.prf import chacha8, philox

ON_GPU = torch.cuda.is_available()
# Before triton is imported: it decides when a kernel is defined.
os.environ.setdefault("TRITON_INTERPRET", "0" if ON_GPU else "1")

triton = pytest.importorskip("triton", reason="Triton has no release for this platform")
tl = pytest.importorskip("triton.language")

from tokenmark.kernels.gumbel_triton import (  # noqa: E402 - not where triton is missing
    RowDraws,
    RowStatus,
    _log_exponential,
    _max_calls,
    _splits,
    draw_rows,
)
from tokenmark.kernels.words_triton import (  # noqa: E402 - not where triton is missing
    Family,
    row_state,
    words_of_calls,
)

if not ON_GPU:
    interpreted = pytest.importorskip("triton.runtime.interpreter").InterpretedFunction
    if not all(isinstance(f, interpreted) for f in (tl.max, words_of_calls, _log_exponential)):
        raise RuntimeError(
            "triton was imported too early; set TRITON_INTERPRET=1 for the whole run"
        )

DEVICE = torch.device("cuda" if ON_GPU else "cpu")
STATE_WORDS = {Family.CHACHA8: 8, Family.PHILOX: philox.ROW_STATE_WORDS}
CALL_WORDS = {Family.CHACHA8: 16, Family.PHILOX: 4}
# The reference sums in float64 or by another logarithm; closer races may end otherwise.
NEAR_TIE = 1e-4
VOCABULARY_SIZES = [1, 7, 127, 128, 2047, 2048, 2049, 49_152, 65_537, 151_936, 262_144, 2**20]

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]


@triton.jit
def words_kernel(states, words, family: tl.constexpr, lanes: tl.constexpr) -> None:  # noqa: ANN001
    """The words of all calls of one row, in order of their indices."""
    n_words: tl.constexpr = 4 if family == "philox" else 16
    step: tl.constexpr = 1 if family == "philox" else 128
    state = row_state(states, 0, family)
    calls = tl.program_id(0) * lanes + tl.arange(0, lanes)
    of_calls, first_index = words_of_calls(state, calls, family)
    for j in tl.static_range(n_words):
        tl.store(words + first_index + j * step, of_calls[j].to(tl.int32, bitcast=True))


@triton.jit
def log_exponential_kernel(words, logs, family: tl.constexpr, lanes: tl.constexpr) -> None:  # noqa: ANN001
    place = tl.program_id(0) * lanes + tl.arange(0, lanes)
    of_lanes = tl.load(words + place).to(tl.uint32, bitcast=True)
    tl.store(logs + place, _log_exponential(of_lanes, family))


def on_device(array: NDArray[np.generic]) -> torch.Tensor:
    signed = array.view(np.int32) if array.dtype == np.uint32 else array
    return torch.from_numpy(signed).to(DEVICE)


def wide(n_calls: int) -> int:
    """Lanes for that many calls: an interpreted operation costs the same at any width."""
    return 128 if ON_GPU else min(2**16, 1 << max(n_calls - 1, 0).bit_length())


def row_states(family: Family, n_rows: int, *, seed: int = 1) -> Words:
    shape = (n_rows, STATE_WORDS[family])
    return np.random.default_rng(seed).integers(2**32, size=shape, dtype=np.uint32)


def random_logits(n_rows: int, vocabulary_size: int, *, seed: int = 2) -> Floats:
    shape = (n_rows, vocabulary_size)
    return 2 * np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def reference_words(
    family: Family, states: Words, vocabulary_size: int, symbols: list[int]
) -> Words:
    rows = [
        chacha8.keystream(states[i : i + 1], vocabulary_size, first=symbol)
        if family is Family.CHACHA8
        else philox.words(states[i : i + 1], vocabulary_size)
        for i, symbol in enumerate(symbols)
    ]
    return np.concatenate(rows) if rows else np.zeros((0, vocabulary_size), dtype=np.uint32)


def drawn(
    family: Family,
    logits: torch.Tensor,
    states: Words,
    *,
    symbols: list[int] | None = None,
    lanes: int | None = None,
) -> RowDraws:
    n_rows, vocabulary_size = logits.shape
    of_rows = torch.tensor(symbols or [0] * n_rows, dtype=torch.int64, device=DEVICE)
    return draw_rows(
        logits.to(DEVICE),
        on_device(states),
        of_rows if family is Family.CHACHA8 else None,
        family=family,
        detailed=True,
        lanes=lanes or wide(_max_calls(vocabulary_size, family)),
    )


def near_ties_after_check(family: Family, logits: Floats, states: Words, symbols: list[int]) -> int:
    """Draws all rows, compares with the reference, and counts the races too close to compare."""
    n_rows, vocabulary_size = logits.shape
    words = reference_words(family, states, vocabulary_size, symbols)
    values = (
        race(logits, words)
        if family is Family.CHACHA8
        else race_large_u(logits, philox.uniform_f32(words)).astype(np.float64)
    )
    draws = drawn(family, torch.from_numpy(logits), states, symbols=symbols)
    assert draws.words is not None
    assert draws.gaps is not None
    assert draws.ids.dtype == torch.int64
    assert draws.status.tolist() == [RowStatus.DRAWN] * n_rows
    if vocabulary_size == 1:
        assert draws.gaps.tolist() == [math.inf] * n_rows
        runners_up = np.full(n_rows, -math.inf)
    else:
        runners_up = np.partition(values, -2, axis=1)[:, -2]
        gaps = draws.gaps.cpu().numpy()
        np.testing.assert_allclose(gaps, values.max(axis=1) - runners_up, atol=1e-5)
    ids = draws.ids.cpu().numpy()
    assert np.array_equal(draws.words.cpu().numpy().view(np.uint32), words[np.arange(n_rows), ids])
    is_near_tie = values.max(axis=1) - runners_up < NEAR_TIE
    assert np.array_equal(ids[~is_near_tie], values.argmax(axis=1)[~is_near_tie])
    return int(is_near_tie.sum())


@pytest.mark.parametrize("family", Family)
def test_every_word_is_the_reference_word(family: Family) -> None:
    n_calls = 2**20 // CALL_WORDS[family]
    states = row_states(family, 1)
    words = torch.zeros(2**20, dtype=torch.int32, device=DEVICE)
    lanes = wide(n_calls)
    words_kernel[(n_calls // lanes,)](on_device(states), words, family=family.value, lanes=lanes)
    expected = reference_words(family, states, 2**20, [0])
    assert np.array_equal(words.cpu().numpy().view(np.uint32), expected[0])


@pytest.mark.parametrize("vocabulary_size", VOCABULARY_SIZES)
@pytest.mark.parametrize("family", Family)
def test_any_vocabulary_is_drawn_from_as_the_reference_does(
    family: Family, vocabulary_size: int
) -> None:
    logits, states = random_logits(1, vocabulary_size), row_states(family, 1)
    assert near_ties_after_check(family, logits, states, [0]) == 0


@pytest.mark.parametrize("vocabulary_size", [2049, 49_152])
def test_a_symbol_shifts_the_words_of_its_row_alone(vocabulary_size: int) -> None:
    symbols = [0, 1, 2**16 - 1, 2**20 - 1]
    logits, states = random_logits(4, vocabulary_size), row_states(Family.CHACHA8, 4)
    assert near_ties_after_check(Family.CHACHA8, logits, states, symbols) == 0


@pytest.mark.parametrize(
    ("family", "n_rows"),
    [
        (Family.CHACHA8, 0),
        pytest.param(Family.CHACHA8, 17, marks=pytest.mark.slow),
        (Family.PHILOX, 0),
        (Family.PHILOX, 17),
        pytest.param(Family.PHILOX, 257, marks=pytest.mark.slow),
    ],
)
def test_any_batch_is_drawn_as_the_reference_does(family: Family, n_rows: int) -> None:
    logits, states = random_logits(n_rows, 2049), row_states(family, n_rows)
    # About one race in 10,000 is a near-tie.
    assert near_ties_after_check(family, logits, states, [0] * n_rows) <= n_rows // 100


def same(left: RowDraws, right: RowDraws) -> bool:
    assert left.words is not None
    assert left.gaps is not None
    assert right.words is not None
    assert right.gaps is not None
    return (
        torch.equal(left.ids, right.ids)
        and torch.equal(left.status, right.status)
        and torch.equal(left.words, right.words)
        and torch.equal(left.gaps, right.gaps)
    )


@pytest.mark.slow
def test_neither_lanes_nor_splits_change_a_draw() -> None:
    logits = torch.from_numpy(random_logits(2, 9000))
    states = row_states(Family.CHACHA8, 2)
    together = drawn(Family.CHACHA8, logits, states, symbols=[0, 777], lanes=1024)
    narrow = drawn(Family.CHACHA8, logits, states, symbols=[0, 777], lanes=128)
    assert same(together, narrow)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.from_numpy(random_logits(3, 300))
    logits[0, 5] = math.nan
    states = row_states(Family.PHILOX, 3)
    together = drawn(Family.PHILOX, logits, states)
    alone = drawn(Family.PHILOX, logits[2:], states[2:])
    assert together.ids[2] == alone.ids[0]


@pytest.mark.parametrize("family", Family)
def test_without_details_the_same_ids_are_drawn(family: Family) -> None:
    logits = torch.from_numpy(random_logits(2, 4100)).to(DEVICE)
    states = row_states(family, 2)
    symbols = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    brief = draw_rows(
        logits,
        on_device(states),
        symbols if family is Family.CHACHA8 else None,
        family=family,
        lanes=wide(1000),
    )
    assert brief.words is None
    assert brief.gaps is None
    assert torch.equal(brief.ids, drawn(family, logits, states).ids)


def test_logits_may_have_any_strides() -> None:
    logits = torch.from_numpy(random_logits(2, 3000))
    states = row_states(Family.PHILOX, 2)
    expected = drawn(Family.PHILOX, logits, states)
    padded = torch.full((2, 3100), 1e9)
    padded[:, :3000] = logits
    spread = torch.full((2, 6000), 1e9)
    spread[:, ::2] = logits
    for strided in (logits.T.contiguous().T, padded[:, :3000], spread[:, ::2]):
        assert same(drawn(Family.PHILOX, strided, states), expected)
    repeated = drawn(Family.PHILOX, logits[:1].expand(2, -1), states)
    assert repeated.ids[0] == expected.ids[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened_and_nothing_else(dtype: torch.dtype) -> None:
    logits = torch.from_numpy(random_logits(2, 3000)).to(dtype)
    logits[:, ::3] = -math.inf
    states = row_states(Family.PHILOX, 2)
    expected = drawn(Family.PHILOX, logits.float(), states)
    assert same(drawn(Family.PHILOX, logits, states), expected)


@pytest.mark.parametrize("family", Family)
def test_a_row_that_cannot_be_drawn_says_why(family: Family) -> None:
    logits = torch.full((5, 300), -math.inf)
    logits[1, 299] = -3e38
    logits[2, 7] = math.nan
    logits[3, 290] = math.inf
    logits[3, 3] = 1.0
    logits[4, 0] = 0.0
    draws = drawn(family, logits, row_states(family, 5))
    assert draws.gaps is not None
    assert draws.status.tolist() == [
        RowStatus.NO_CANDIDATE,
        RowStatus.DRAWN,
        RowStatus.NOT_A_NUMBER,
        RowStatus.NOT_A_NUMBER,
        RowStatus.DRAWN,
    ]
    assert draws.ids.tolist() == [0, 299, 0, 0, 0]
    assert draws.gaps[[1, 4]].tolist() == [math.inf, math.inf]


@pytest.mark.slow
def test_every_split_reaches_the_ends_of_its_tiles() -> None:
    # With this symbol id 0 has the last word of a tile, and so has the last id.
    symbol, vocabulary_size = 2047, 3 * 2048 + 1
    sole = [0, 1, 2 * 2048, vocabulary_size - 1]
    logits = torch.full((4, vocabulary_size), -math.inf)
    logits[range(4), sole] = -50.0
    states = row_states(Family.CHACHA8, 4)
    draws = drawn(Family.CHACHA8, logits, states, symbols=[symbol] * 4, lanes=128)
    assert draws.ids.tolist() == sole


@pytest.mark.parametrize("family", Family)
def test_no_vocabulary_has_no_candidate(family: Family) -> None:
    draws = drawn(family, torch.zeros(2, 0), row_states(family, 2))
    assert draws.status.tolist() == [RowStatus.NO_CANDIDATE] * 2


def log_exponentials(family: Family, words: Words) -> Floats:
    lanes = 1024 if ON_GPU else 2**16
    padded = np.zeros(-(-words.size // lanes) * lanes, dtype=np.uint32)
    padded[: words.size] = words
    logs = torch.empty(padded.size, dtype=torch.float32, device=DEVICE)
    grid = (padded.size // lanes,)
    log_exponential_kernel[grid](on_device(padded), logs, family=family.value, lanes=lanes)
    return logs.cpu().numpy()[: words.size]


@pytest.mark.parametrize("lanes", [pytest.param(128, marks=pytest.mark.slow), 2048])
def test_ties_go_to_the_lowest_id(lanes: int) -> None:
    # Each logit is its own ln E, so that all values are zero.
    states, symbol, vocabulary_size = row_states(Family.CHACHA8, 1), 2000, 6000
    words = chacha8.keystream(states, vocabulary_size, first=symbol)[0]
    logits = torch.from_numpy(log_exponentials(Family.CHACHA8, words))[None]
    rows = logits.repeat(2, 1)
    rows[1, :4321] = -math.inf
    draws = drawn(
        Family.CHACHA8, rows, np.repeat(states, 2, axis=0), symbols=[symbol] * 2, lanes=lanes
    )
    assert draws.gaps is not None
    assert draws.ids.tolist() == [0, 4321]
    assert draws.gaps.tolist() == [0.0, 0.0]


def words_of_every_size() -> Words:
    rng = np.random.default_rng(3)
    ends = np.arange(2**15, dtype=np.uint32)
    # The kernel changes its formula near the first, the scheme's text at the second.
    turns = [int((1 - math.sqrt(0.5)) * 2**32), 2**31]
    near_turns = [np.arange(turn - 999, turn + 999, dtype=np.uint32) for turn in turns]
    uniform = rng.integers(2**32, size=150_000, dtype=np.uint32)
    small = (2 ** rng.uniform(0, 32, size=50_000)).astype(np.uint32)
    return np.concatenate([ends, ~ends, *near_turns, uniform, small, ~small])


def test_the_logarithm_of_every_exponential_is_accurate() -> None:
    words = words_of_every_size()
    exact = np.log(exponentials(words))
    assert np.abs(log_exponentials(Family.CHACHA8, words) - exact).max() < 1.3e-6


def test_the_logarithm_of_an_exponential_has_the_published_values() -> None:
    words = np.array([0, 1, 2**31, 2**32 - 129, 2**32 - 1], dtype=np.uint32)
    published = [-22.873857, -21.775245, -0.366513, 2.852138, 3.129995]
    np.testing.assert_allclose(log_exponentials(Family.CHACHA8, words), published, atol=1.5e-6)


def test_the_logarithm_for_philox_is_that_of_its_float32_uniform() -> None:
    words = words_of_every_size()
    exact = np.log(-np.log(philox.uniform_f32(words).astype(np.float64)))
    assert np.abs(log_exponentials(Family.PHILOX, words) - exact).max() < 1.3e-6


@given(n_rows=st.integers(1, 10_000), n_steps=st.integers(1, 10_000))
def test_splits_cover_all_steps_and_none_is_empty(n_rows: int, n_steps: int) -> None:
    steps_per_split, n_splits = _splits(n_rows, n_steps)
    assert 1 <= n_splits <= 512
    assert (n_splits - 1) * steps_per_split < n_steps <= n_splits * steps_per_split


@given(vocabulary_size=st.integers(1, 2**20), symbol=st.integers(0, 2**20 - 1))
def test_calls_suffice_for_any_symbol(vocabulary_size: int, symbol: int) -> None:
    first_tile, last_tile = symbol // 2048, (symbol + vocabulary_size - 1) // 2048
    assert 128 * (last_tile - first_tile + 1) <= _max_calls(vocabulary_size, Family.CHACHA8)


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tokenmark.kernels.gumbel_triton import _race_kernel, _winner_kernel

POINTERS = dict(states="*i32", symbols="*i64", bests="*i32", drawn_ids="*i64")
POINTERS |= dict(status="*i32", drawn_words="*i32", gaps="*fp32")
target = GPUTarget("cuda", 90, 32)

def compile(kernel, logits, **constants):
    types = POINTERS | {"logits": logits}
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32")
        for name in kernel.arg_names
    }
    compiled = triton.compile(ASTSource(kernel, signature, constants), target=target)
    assert ".local" not in compiled.asm["ptx"], f"{kernel}: {constants} spills registers"

compile(_race_kernel, "*fp32", id_stride=1, family="chacha8", detailed=True, lanes=128)
compile(_race_kernel, "*bf16", symbols=None, family="philox", detailed=False, lanes=128)
compile(_winner_kernel, "", detailed=True, width=512)
compile(_winner_kernel, "", drawn_words=None, gaps=None, detailed=False, width=512)
"""


@pytest.mark.slow
def test_the_kernels_compile_without_a_device(tmp_path: Path) -> None:
    # The interpreter runs what the compiler refuses.
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_a_captured_draw_follows_its_keys() -> None:
    logits = torch.from_numpy(random_logits(4, 5000)).to(DEVICE)
    states = row_states(Family.CHACHA8, 4)
    captured_states = on_device(row_states(Family.CHACHA8, 4, seed=9))
    symbols = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    draw_rows(logits, captured_states, symbols, family=Family.CHACHA8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        draws = draw_rows(logits, captured_states, symbols, family=Family.CHACHA8)
    captured_states.copy_(on_device(states))
    graph.replay()
    assert torch.equal(draws.ids, drawn(Family.CHACHA8, logits, states).ids)
