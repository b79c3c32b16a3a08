"""The Triton kernels of the draw against the NumPy reference."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.kernels.on_triton import DEVICE, ON_GPU, on_device, random_logits, row_states, wide
from tokenmark.kernels.rows import RowKeys, RowStatus
from tokenmark.watermark.gumbel import exponentials, race, race_large_u
from tokenmark.watermark.prf import chacha8, philox
from tokenmark.watermark.prf.family import Family

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from tokenmark.kernels.gumbel_triton import (  # noqa: E402 - not where triton is missing
    RowDraws,
    _log_exponential,
    _max_calls,
    _n_splits,
    draw_rows,
)

# The reference sums in float64 or by another logarithm; closer races may end otherwise.
NEAR_TIE = 1e-4
VOCABULARY_SIZES = [1, 7, 127, 128, 2047, 2048, 2049, 49_152, 65_537, 151_936, 262_144, 2**20]
# A state of zeros but for its first word, the index of a word, the word: found by search.
WORDS_AT_THE_ENDS = [
    (Family.CHACHA8, 49_572, 5616, 0),
    (Family.CHACHA8, 99_455, 3565, 2**32 - 1),
    (Family.PHILOX, 543_456, 8799, 0),
    (Family.PHILOX, 61_144, 14_484, 2**32 - 1),
]

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]


@triton.jit
def log_exponential_kernel(words, logs, family: tl.constexpr, lanes: tl.constexpr) -> None:  # noqa: ANN001
    place = tl.program_id(0) * lanes + tl.arange(0, lanes)
    of_lanes = tl.load(words + place).to(tl.uint32, bitcast=True)
    tl.store(logs + place, _log_exponential(of_lanes, family))


def keys_of(family: Family, n_rows: int, *, symbols: list[int] | None = None) -> RowKeys:
    states = row_states(family, n_rows)
    return RowKeys.of_family(family, states, np.array(symbols or [0] * n_rows, dtype=np.int64))


def mixed_keys(n_rows: int, *, chacha8_every: int = 2) -> RowKeys:
    families = np.full(n_rows, Family.PHILOX, dtype=np.uint8)
    families[::chacha8_every] = Family.CHACHA8
    states = row_states(Family.CHACHA8, n_rows)
    states[families == Family.PHILOX, Family.PHILOX.state_words :] = 0
    return RowKeys(states, np.where(families == Family.CHACHA8, 321, 0), families)


def words_of(keys: RowKeys, row: int, n_words: int) -> Words:  # [V]
    state = keys.states[row : row + 1]
    if keys.families[row] == Family.PHILOX:
        return philox.words(state[:, : Family.PHILOX.state_words], n_words)[0]
    return chacha8.keystream(state, n_words, first=int(keys.symbols[row]))[0]


def drawn(
    logits: torch.Tensor,
    keys: RowKeys,
    *,
    temperatures: list[float] | None = None,
    floors: list[float] | None = None,
    lanes: int | None = None,
) -> RowDraws:
    n_rows, vocabulary_size = logits.shape
    present = [Family(number) for number in np.unique(keys.families)] or [Family.CHACHA8]
    n_calls = max(_max_calls(vocabulary_size, family) for family in present)
    return draw_rows(
        logits.to(DEVICE),
        on_device(keys.states),
        on_device(keys.symbols),
        on_device(keys.families),
        torch.tensor(temperatures or [1.0] * n_rows, device=DEVICE),
        torch.tensor(floors or [-math.inf] * n_rows, device=DEVICE),
        present=present,
        detailed=True,
        lanes=lanes or wide(n_calls, 128),
    )


def near_ties_after_check(
    logits: Floats,
    keys: RowKeys,
    *,
    temperatures: list[float] | None = None,
    floors: list[float] | None = None,
) -> int:
    """Draws all rows, compares with the reference, and counts the races too close to compare."""
    draws = drawn(torch.from_numpy(logits), keys, temperatures=temperatures, floors=floors)
    assert draws.words is not None
    assert draws.gaps is not None
    assert (draws.ids.dtype, draws.status.dtype) == (torch.int64, torch.int32)
    assert draws.status.tolist() == [RowStatus.DRAWN] * len(logits)
    n_near_ties = 0
    for row, row_logits in enumerate(logits):
        scaled = row_logits / np.float32((temperatures or [1.0] * len(logits))[row])
        scaled[scaled < (floors or [-math.inf] * len(logits))[row]] = -math.inf
        words = words_of(keys, row, scaled.size)
        values = (
            race_large_u(scaled, philox.uniform_f32(words)).astype(np.float64)
            if keys.families[row] == Family.PHILOX
            else race(scaled, words)
        )
        token_id = int(draws.ids[row])
        assert draws.words[row].cpu().numpy().view(np.uint32) == words[token_id]
        gap = values.max() - np.append(np.delete(values, values.argmax()), -math.inf).max()
        rounding = 1e-5 + 2.0**-22 * abs(values.max())
        assert float(draws.gaps[row]) == pytest.approx(gap, abs=rounding)
        assert bool(draws.has_choice[row]) is bool(gap < math.inf)
        if gap < NEAR_TIE:
            n_near_ties += 1
        else:
            assert token_id == values.argmax()
    return n_near_ties


@pytest.mark.parametrize("vocabulary_size", VOCABULARY_SIZES)
@pytest.mark.parametrize("family", Family)
def test_any_vocabulary_is_drawn_from_as_the_reference_does(
    family: Family, vocabulary_size: int
) -> None:
    assert near_ties_after_check(random_logits(1, vocabulary_size), keys_of(family, 1)) == 0


@pytest.mark.parametrize("vocabulary_size", [2049, 49_152])
def test_a_symbol_shifts_the_words_of_its_row_alone(vocabulary_size: int) -> None:
    keys = keys_of(Family.CHACHA8, 4, symbols=[0, 1, 2**16 - 1, 2**20 - 1])
    assert near_ties_after_check(random_logits(4, vocabulary_size), keys) == 0


@pytest.mark.parametrize(
    "n_rows", [0, 1, pytest.param(17, marks=pytest.mark.slow)], ids=lambda n_rows: f"{n_rows}-rows"
)
@pytest.mark.parametrize("family", Family)
def test_any_batch_is_drawn_as_the_reference_does(family: Family, n_rows: int) -> None:
    assert near_ties_after_check(random_logits(n_rows, 2049), keys_of(family, n_rows)) == 0


def test_families_live_in_one_batch() -> None:
    keys = mixed_keys(5)
    assert near_ties_after_check(random_logits(5, 2049), keys) == 0
    assert np.unique(keys.families).size == 2


@pytest.mark.slow
def test_a_large_batch_is_drawn_as_the_reference_does() -> None:
    keys = mixed_keys(257, chacha8_every=4)
    # About one race in 10,000 is a near-tie.
    assert near_ties_after_check(random_logits(257, 2049), keys) <= 2


def test_temperature_and_floor_are_those_of_the_row() -> None:
    near_ties = near_ties_after_check(
        random_logits(6, 2049),
        mixed_keys(6),
        temperatures=[0.01, 0.3, 1.0, 1.7, 0.7, 100.0],
        floors=[-math.inf, 0.0, 3.0, 1.0, 4.5, 0.05],
    )
    assert near_ties == 0


def test_a_logit_at_the_floor_stays_and_the_next_below_goes() -> None:
    temperature, floor = 0.7, np.float32(1.1) / np.float32(0.7)
    logits = torch.full((2, 300), 0.5)
    logits[:, 40] = 1.1
    floors = [float(floor), float(np.nextafter(floor, np.float32(9)))]
    draws = drawn(logits, keys_of(Family.PHILOX, 2), temperatures=[temperature] * 2, floors=floors)
    assert draws.status.tolist() == [RowStatus.DRAWN, RowStatus.NO_CANDIDATE]
    assert draws.ids.tolist() == [40, 0]
    assert draws.has_choice.tolist() == [False, False]


def same(left: RowDraws, right: RowDraws) -> bool:
    assert left.words is not None
    assert left.gaps is not None
    assert right.words is not None
    assert right.gaps is not None
    return (
        torch.equal(left.ids, right.ids)
        and torch.equal(left.status, right.status)
        and torch.equal(left.has_choice, right.has_choice)
        and torch.equal(left.words, right.words)
        and torch.equal(left.gaps, right.gaps)
    )


@pytest.mark.slow
def test_neither_lanes_nor_splits_change_a_draw() -> None:
    logits, keys = torch.from_numpy(random_logits(2, 9000)), mixed_keys(2)
    assert same(drawn(logits, keys, lanes=1024), drawn(logits, keys, lanes=128))


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits, states = torch.from_numpy(random_logits(3, 300)), row_states(Family.PHILOX, 3)
    logits[0, 5] = math.nan
    together = drawn(logits, RowKeys.of_family(Family.PHILOX, states))
    alone = drawn(logits[2:], RowKeys.of_family(Family.PHILOX, states[2:]))
    assert together.ids[2] == alone.ids[0]


def test_without_details_the_same_ids_are_drawn() -> None:
    logits, keys = on_device(random_logits(2, 4100)), mixed_keys(2)
    brief = draw_rows(
        logits,
        on_device(keys.states),
        # These may be of any integers.
        on_device(keys.symbols.astype(np.int32)),
        on_device(keys.families.astype(np.int32)),
        torch.ones(2, device=DEVICE),
        torch.full((2,), -math.inf, device=DEVICE),
        present=Family,
        lanes=wide(1100, 128),
    )
    expected = drawn(logits, keys)
    assert (brief.words, brief.gaps) == (None, None)
    assert torch.equal(brief.ids, expected.ids)
    assert torch.equal(brief.has_choice, expected.has_choice)


def test_logits_may_have_any_strides() -> None:
    logits, keys = torch.from_numpy(random_logits(2, 3000)), keys_of(Family.PHILOX, 2)
    expected = drawn(logits, keys)
    padded = torch.full((2, 3100), 1e9)
    padded[:, :3000] = logits
    spread = torch.full((2, 6000), 1e9)
    spread[:, ::2] = logits
    for strided in (logits.T.contiguous().T, padded[:, :3000], spread[:, ::2]):
        assert same(drawn(strided, keys), expected)
    repeated = drawn(logits[:1].expand(2, -1), keys)
    assert repeated.ids[0] == expected.ids[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened_before_anything_else(dtype: torch.dtype) -> None:
    logits, keys = torch.from_numpy(random_logits(2, 3000)).to(dtype), mixed_keys(2)
    logits[:, ::3] = -math.inf
    scale = {"temperatures": [0.3, 1.9], "floors": [2.1, -math.inf]}
    assert same(drawn(logits, keys, **scale), drawn(logits.float(), keys, **scale))


# NumPy, which the interpreter computes with, says so where a quotient is too large for float32.
@pytest.mark.filterwarnings("ignore:overflow encountered in divide:RuntimeWarning")
@pytest.mark.parametrize("family", Family)
def test_a_row_that_cannot_be_drawn_says_why_and_fails_alone(family: Family) -> None:
    logits = torch.full((7, 300), -math.inf)
    logits[1, 299] = -3e38
    logits[2, 7] = math.nan
    logits[3, 290] = math.inf
    logits[3, 3] = 1.0
    logits[4, 0] = 0.0
    logits[5, 9] = 3e38
    logits[6, 9] = -3e38
    draws = drawn(logits, keys_of(family, 7), temperatures=[1.0] * 5 + [0.5] * 2)
    assert draws.gaps is not None
    assert draws.status.tolist() == [
        RowStatus.NO_CANDIDATE,
        RowStatus.DRAWN,
        RowStatus.NOT_FINITE,
        RowStatus.NOT_FINITE,
        RowStatus.DRAWN,
        RowStatus.NOT_FINITE,
        RowStatus.NO_CANDIDATE,
    ]
    assert draws.ids.tolist() == [0, 299, 0, 0, 0, 0, 0]
    assert draws.has_choice.tolist() == [False] * 7
    assert draws.gaps[[1, 4]].tolist() == [math.inf, math.inf]


@pytest.mark.parametrize(("family", "first_word", "index", "word"), WORDS_AT_THE_ENDS)
def test_a_sole_candidate_wins_whatever_its_word_and_loses_as_it_should(
    family: Family, first_word: int, index: int, word: int
) -> None:
    states = np.zeros((2, 8), dtype=np.uint32)
    states[:, 0] = first_word
    # The lower ids are masked, of which an infinite value of any candidate would make the winner.
    logits = torch.full((2, 16_384), -math.inf)
    logits[:, index] = -60.0
    logits[1, index + 1 :] = 0.0
    draws = drawn(logits, RowKeys.of_family(family, states))
    assert draws.words is not None
    assert draws.ids[0] == index
    assert draws.words[0].item() % 2**32 == word
    assert draws.ids[1] > index
    assert draws.status.tolist() == [RowStatus.DRAWN] * 2
    assert draws.has_choice.tolist() == [False, True]


@pytest.mark.slow
def test_every_split_reaches_the_ends_of_its_tiles() -> None:
    # With this symbol id 0 has the last word of a tile, and so has the last id.
    symbol, vocabulary_size = 2047, 3 * 2048 + 1
    sole = [0, 1, 2 * 2048, vocabulary_size - 1]
    logits = torch.full((4, vocabulary_size), -math.inf)
    logits[range(4), sole] = -50.0
    keys = keys_of(Family.CHACHA8, 4, symbols=[symbol] * 4)
    assert drawn(logits, keys, lanes=128).ids.tolist() == sole


def test_no_vocabulary_has_no_candidate() -> None:
    draws = drawn(torch.zeros(2, 0), mixed_keys(2))
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
    states, vocabulary_size = row_states(Family.CHACHA8, 1).repeat(2, axis=0), 6000
    keys = RowKeys.of_family(Family.CHACHA8, states, np.array([2000, 2000]))
    logits = torch.from_numpy(
        log_exponentials(Family.CHACHA8, words_of(keys, 0, vocabulary_size))
    ).repeat(2, 1)
    logits[1, :4321] = -math.inf
    draws = drawn(logits, keys, lanes=lanes)
    assert draws.gaps is not None
    assert draws.ids.tolist() == [0, 4321]
    assert draws.gaps.tolist() == [0.0, 0.0]
    assert draws.has_choice.tolist() == [True, True]


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
    n_splits = _n_splits(n_rows, n_steps)
    steps_per_split = -(-n_steps // n_splits)
    assert 1 <= n_splits <= 512
    assert (n_splits - 1) * steps_per_split < n_steps <= n_splits * steps_per_split


@given(vocabulary_size=st.integers(1, 2**20), symbol=st.integers(0, 2**20 - 1))
def test_calls_suffice_for_any_symbol(vocabulary_size: int, symbol: int) -> None:
    first_tile, last_tile = symbol // 2048, (symbol + vocabulary_size - 1) // 2048
    assert 128 * (last_tile - first_tile + 1) <= _max_calls(vocabulary_size, Family.CHACHA8)


@pytest.mark.gpu
def test_a_captured_draw_follows_its_keys() -> None:
    logits, keys = on_device(random_logits(4, 5000)), mixed_keys(4)
    states = torch.zeros(4, 8, dtype=torch.int32, device=DEVICE)
    of_rows = [on_device(keys.symbols), on_device(keys.families), torch.ones(4, device=DEVICE)]
    of_rows.append(torch.full((4,), -math.inf, device=DEVICE))
    draw_rows(logits, states, *of_rows, present=Family)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        draws = draw_rows(logits, states, *of_rows, present=Family)
    states.copy_(on_device(keys.states))
    graph.replay()
    assert torch.equal(draws.ids, drawn(logits, keys).ids)
