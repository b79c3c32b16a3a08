import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.statistics import g_test_log10_pvalue
from tokenmark.kernels import gumbel
from tokenmark.kernels.gumbel import Draws, Path, draw, path_of
from tokenmark.kernels.rows import Filters, RowKeys, RowStatus
from tokenmark.watermark.errors import ModelError
from tokenmark.watermark.gumbel import race, race_large_u, uniforms, winners
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.prf import chacha8, philox
from tokenmark.watermark.prf.family import Family
from tokenmark.watermark.profiles import PROFILES

PROFILE = PROFILES["tm1"]
STREAM_KEY = PROFILE.source.stream_key(WatermarkKey.from_hex("5e" * 32), 2)


@pytest.fixture(params=[Path.NUMBA, pytest.param(Path.TRITON, marks=pytest.mark.slow)])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each path in turn; where no GPU is, Triton runs under its interpreter."""
    chosen: Path = request.param
    monkeypatch.setattr(gumbel, "path_of", lambda _device: chosen)
    return chosen


def row_states(n_rows: int) -> NDArray[np.uint32]:
    contexts = np.stack([np.arange(n_rows), np.arange(n_rows) // 7], axis=1)
    return PROFILE.source.row_states(STREAM_KEY, contexts)


def row_keys(n_rows: int, symbol: int = 0) -> RowKeys:
    return RowKeys.of_family(Family.CHACHA8, row_states(n_rows), np.full(n_rows, symbol))


def mixed_keys(n_rows: int) -> RowKeys:
    """ChaCha8 rows and Philox rows in turn."""
    keys = row_keys(n_rows)
    odd = np.arange(n_rows) % 2 == 1
    keys.families[odd] = Family.PHILOX
    keys.states[odd, Family.PHILOX.state_words :] = 0
    return keys


def words_of(keys: RowKeys, row: int, n_words: int) -> NDArray[np.uint32]:  # [1, V]
    state = keys.states[row : row + 1]
    if keys.families[row] == Family.PHILOX:
        return philox.words(state[:, : Family.PHILOX.state_words], n_words)
    return chacha8.keystream(state, n_words, first=int(keys.symbols[row]))


def race_of(keys: RowKeys, row: int, logits: NDArray[np.float32]) -> NDArray[np.floating]:  # [1, V]
    words = words_of(keys, row, logits.size)
    if keys.families[row] == Family.PHILOX:
        return race_large_u(logits[None], philox.uniform_f32(words))
    return race(logits[None], words)


def test_the_path_follows_the_device() -> None:
    assert path_of(torch.device("cpu")) is Path.NUMBA
    assert path_of(torch.device("cuda", 1)) is Path.TRITON


@pytest.mark.parametrize("vocabulary_size", [1, 7, 127, 2048, 2049, 49_152])
@pytest.mark.parametrize("symbol", [0, 1, 2**20 - 1])
def test_the_path_draws_what_the_reference_draws(vocabulary_size: int, symbol: int) -> None:
    logits = np.random.default_rng(1).normal(size=(3, vocabulary_size)).astype(np.float32)
    keys = row_keys(3, symbol)
    drawn = draw(torch.from_numpy(logits), keys)
    assert drawn.path is Path.NUMBA
    expected = [winners(race_of(keys, row, logits[row]))[0] for row in range(3)]
    assert drawn.ids.tolist() == expected
    assert drawn.has_choice.tolist() == [vocabulary_size > 1] * 3


def test_families_live_in_one_batch(path: Path) -> None:
    logits = np.random.default_rng(2).normal(size=(6, 3000)).astype(np.float32)
    keys = mixed_keys(6)
    drawn = draw(torch.from_numpy(logits), keys, wants_race=True)
    assert drawn.path is path
    assert drawn.race is not None
    for row in range(6):
        values = race_of(keys, row, logits[row])
        token_id = winners(values)[0]
        assert drawn.ids[row] == token_id
        word = words_of(keys, row, 3000)[:, token_id]
        is_philox = keys.families[row] == Family.PHILOX
        assert drawn.race.x[row] == (philox.uniform_f32(word) if is_philox else uniforms(word))[0]
        second, first = np.sort(values[0])[-2:]
        assert drawn.race.gaps[row].item() == pytest.approx(first - second, abs=2e-5)


def test_the_race_is_told_only_on_request(path: Path) -> None:
    drawn = draw(torch.zeros(2, 40), row_keys(2))
    assert (drawn.path, drawn.race) == (path, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_of_every_type_and_layout_are_read_as_they_are(
    dtype: torch.dtype, path: Path
) -> None:
    generator = torch.Generator().manual_seed(3)
    wide = (torch.randn(2, 700, 5, generator=generator) * 3).to(dtype)
    keys = mixed_keys(5)
    # Columns of a tensor that is read across; then rows that lie apart.
    for logits in (wide[0].t(), wide[:, :, :].permute(2, 0, 1)[:, 1, 20:]):
        drawn = draw(logits, keys)
        assert drawn.path is path
        values = logits.float().numpy()
        expected = [winners(race_of(keys, row, values[row]))[0] for row in range(5)]
        assert drawn.ids.tolist() == expected


def filtered(logits: NDArray[np.float32], filters: Filters, row: int) -> NDArray[np.float32]:
    """A row after the filters, by sorting."""
    scaled = logits / filters.temperatures[row]
    order = np.sort(scaled)[::-1]
    floor = order[min(filters.top_k[row], order.size) - 1]
    left = order[order >= floor].astype(np.float64)
    mass = np.exp(left - left[0]) / np.exp(left - left[0]).sum()
    floor = left[(np.cumsum(mass) - mass) < filters.top_p[row]][-1]
    with np.errstate(divide="ignore"):
        floor = max(floor, left[0] + np.log(filters.min_p[row]))
    return np.where(scaled < floor, np.float32(-np.inf), scaled)


def test_filters_leave_the_same_on_every_path(path: Path) -> None:
    rng = np.random.default_rng(4)
    logits = (rng.normal(size=(8, 2500)) * 3).astype(np.float32)
    filters = Filters(
        temperatures=np.array([1, 0.7, 1.3, 1, 0.5, 1, 1, 2], dtype=np.float32),
        top_k=np.array([2**63 - 1, 50, 1, 2**62, 7, 2**62, 3, 2**62]),
        top_p=np.array([1, 0.95, 1, 0.9, 0.5, 1, 1, 0.999]),
        min_p=np.array([0, 0, 0, 0, 0.01, 0.05, 1, 0]),
    )
    keys = mixed_keys(8)
    drawn = draw(torch.from_numpy(logits), keys, filters)
    assert drawn.path is path
    for row in range(8):
        left = filtered(logits[row], filters, row)
        assert drawn.ids[row] == winners(race_of(keys, row, left))[0]
        kept = logits[row] / filters.temperatures[row] >= drawn.floors[row].item()
        assert np.array_equal(kept, left > -np.inf)
        assert drawn.has_choice[row] == (kept.sum() > 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probabilities_are_those_among_what_the_filters_left(
    dtype: torch.dtype, path: Path
) -> None:
    rng = np.random.default_rng(6)
    logits = torch.from_numpy(rng.normal(size=(5, 5000)) * 4).to(dtype)
    logits[4] = torch.nan
    filters = Filters.none(5)
    filters.temperatures[:] = [1, 0.7, 1.5, 1, 1]
    filters.top_k[:] = [2**62, 40, 2**62, 1, 9]
    filters.top_p[:] = [1, 0.9, 0.95, 1, 1]
    wanted = np.array([True, True, True, True, True])
    drawn = draw(logits, mixed_keys(5), filters, wants_log_probability=wanted)
    assert drawn.path is path
    assert drawn.log_probabilities is not None
    for row in range(4):
        left = filtered(logits[row].float().numpy(), filters, row).astype(np.float64)
        top = left.max()
        expected = left[drawn.ids[row]] - top - np.log(np.exp(left - top).sum())
        assert drawn.log_probabilities[row].item() == pytest.approx(expected, abs=2e-6)
    only_one = draw(logits, mixed_keys(5), filters, wants_log_probability=np.arange(5) == 1)
    assert only_one.log_probabilities is not None
    assert only_one.log_probabilities.isnan().tolist() == [True, False, True, True, True]
    assert draw(logits, mixed_keys(5), filters).log_probabilities is None


def test_no_rows_is_no_draw(path: Path) -> None:
    drawn = draw(torch.zeros(0, 9), row_keys(0))
    assert drawn.ids.shape == drawn.status.shape == drawn.has_choice.shape == (0,)
    assert drawn.path is path


def test_a_sole_candidate_wins_whatever_its_word(path: Path) -> None:
    logits = torch.full((50, 300), -torch.inf)
    logits[:, 211] = -80.0
    drawn = draw(logits, mixed_keys(50), wants_race=True)
    assert set(drawn.ids.tolist()) == {211}
    assert not drawn.has_choice.any()
    assert drawn.race is not None
    assert drawn.race.gaps.tolist() == [np.inf] * 50
    assert drawn.path is path


def test_a_row_that_cannot_be_drawn_fails_alone(path: Path) -> None:
    logits = torch.from_numpy(np.random.default_rng(5).normal(size=(6, 500)).astype(np.float32))
    healthy: Draws = draw(logits, mixed_keys(6))
    logits[1, 3], logits[2], logits[3, 499], logits[4] = torch.nan, -torch.inf, torch.inf, torch.nan
    for filters in (
        None,
        Filters(np.ones(6, np.float32), np.full(6, 5), np.full(6, 0.9), np.zeros(6)),
    ):
        drawn = draw(logits, mixed_keys(6), filters, wants_race=True)
        assert drawn.path is path
        bad = RowStatus.NOT_FINITE
        expected = [RowStatus.DRAWN, bad, RowStatus.NO_CANDIDATE, bad, bad, RowStatus.DRAWN]
        assert drawn.status.tolist() == expected
        if filters is None:
            assert drawn.ids[[0, 5]].tolist() == healthy.ids[[0, 5]].tolist()


# Triton's interpreter computes with NumPy, which warns where a GPU is silent.
@pytest.mark.filterwarnings("ignore:overflow encountered in divide:RuntimeWarning")
def test_a_temperature_that_lifts_logits_out_of_range_fails_the_row_alone(path: Path) -> None:
    logits = torch.zeros(2, 100)
    logits[0, 7] = 1e36
    filters = Filters.none(2)
    filters.temperatures[:] = 1e-4
    drawn = draw(logits, row_keys(2), filters)
    assert drawn.status.tolist() == [RowStatus.NOT_FINITE, RowStatus.DRAWN]
    assert drawn.path is path


GOOD = {"states": np.zeros((2, 8), np.uint32), "symbols": np.zeros(2, np.int64)}
GOOD["families"] = np.zeros(2, np.uint8)


@pytest.mark.parametrize(
    ("logits", "change", "message"),
    [
        (torch.zeros(2, 9, dtype=torch.float64), {}, "float64"),
        (torch.zeros(9), {}, r"must be \[B, V\]"),
        (torch.zeros(2, 2**20 + 1), {}, "CHACHA8 has words for 1048576 ids"),
        (torch.zeros(3, 9), {}, r"row states must be uint32 \[3, 8\]"),
        (torch.zeros(2, 9), {"states": np.zeros((2, 8), np.int32)}, "int32"),
        (
            torch.zeros(2, 9),
            {"states": np.zeros((2, 5), np.uint32)},
            r"got uint32 \[2, 5\]",
        ),
        (torch.zeros(2, 9), {"symbols": np.zeros(1, np.int64)}, r"symbols must be int64 \[2\]"),
        (torch.zeros(2, 9), {"symbols": np.zeros(2, np.int32)}, "int32"),
        (torch.zeros(2, 9), {"symbols": np.array([0, 2**20])}, r"CHACHA8 lie in \[0, 1048576\)"),
        (torch.zeros(2, 9), {"symbols": np.array([-1, 0])}, "got -1 in row 0"),
        (
            torch.zeros(2, 9),
            {"families": np.array([0, 2], np.uint8)},
            "below 2, got 2",
        ),
        (
            torch.zeros(2, 9),
            {"families": np.array([0, 1], np.uint8), "symbols": np.array([5, 1])},
            r"PHILOX lie in \[0, 1\)",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    logits: torch.Tensor, change: dict[str, NDArray[np.generic]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        draw(logits, RowKeys(**GOOD | change))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperatures", np.zeros(2, np.float32), "temperatures must be above 0, got 0.0 in row 0"),
        ("temperatures", np.ones(2), "temperatures must be float32"),
        ("top_k", np.array([1, 0]), "top_k must be at least 1, got 0 in row 1"),
        ("top_p", np.array([1, np.nan]), "top_p must be above 0 and at most 1, got nan in row 1"),
        ("min_p", np.array([1.5, 0]), "min_p must be from 0 to 1, got 1.5 in row 0"),
        ("min_p", np.zeros(3), r"min_p must be float64 \[2\]"),
    ],
)
def test_filters_that_do_not_fit_are_refused(
    field: str, value: NDArray[np.generic], message: str
) -> None:
    none = Filters.none(2)
    fields = {name: getattr(none, name) for name in Filters.__slots__}
    with pytest.raises(ValueError, match=message):
        draw(torch.zeros(2, 9), row_keys(2), Filters(**fields | {field: value}))


def test_a_device_whose_kernel_is_not_installed_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gumbel, "find_spec", lambda _name: None)
    with pytest.raises(ModelError, match=r"needs Triton.*tokenmark\[gpu\].*--device cpu"):
        gumbel.warm_up(torch.device("cuda"), torch.bfloat16)


@pytest.mark.stat
def test_draws_follow_the_softmax_law_over_contexts() -> None:
    """False-alarm rate 1e-8: a G-test over 20,000 contexts, candidates from 0.07 down to 8e-4.

    Words cut to their top eight bits, the negative control, are caught.
    """
    n_draws, vocabulary_size = 20_000, 64
    logits = np.linspace(0, -4.5, vocabulary_size).astype(np.float32)
    law = np.exp(logits.astype(np.float64))
    law /= law.sum()
    keys = row_keys(n_draws)
    rows = torch.from_numpy(logits).expand(n_draws, -1)
    counts = np.bincount(draw(rows, keys).ids.numpy(), minlength=vocabulary_size)
    assert g_test_log10_pvalue(counts, law) > -8
    words = np.concatenate(
        [chacha8.keystream(part, vocabulary_size) for part in np.split(keys.states, 20)]
    )
    coarse = winners(race(rows.numpy(), words & np.uint32(0xFF000000)))
    assert g_test_log10_pvalue(np.bincount(coarse, minlength=vocabulary_size), law) < -8


def ids_by_coarse_words(
    heavy: NDArray[np.uint32], rare: NDArray[np.uint32], n_rare: int, bits: int
) -> NDArray[np.bool_]:
    """Whether the rare ids win where uniforms are the upper bits of words, as m / 2^bits."""
    uniform = [(words >> np.uint32(32 - bits)) / 2.0**bits for words in (heavy, rare)]
    heavy_time, rare_time = (-np.log1p(-x) for x in uniform)
    return rare_time * n_rare <= heavy_time


@pytest.mark.stat
@pytest.mark.slow
def test_ids_of_one_in_a_million_win_as_often_as_they_should() -> None:
    """False-alarm rate 1e-8: a G-test over 20,000 contexts.

    One id has half of the probability and 2^20 - 1 ids have 4.8e-7 each. Uniforms of 23 or 13 bits,
    the negative controls, are caught: their small values come in steps as wide as such an id is.
    """
    n_draws, vocabulary_size, heavy = 20_000, 2**20, 700_001
    n_rare = vocabulary_size - 1
    logits = torch.zeros(1, vocabulary_size)
    logits[0, heavy] = np.log(n_rare)
    keys = row_keys(n_draws)
    ids = draw(logits.expand(n_draws, -1), keys).ids.numpy()
    edges = np.linspace(0, vocabulary_size, 9).astype(np.int64)
    counts = np.histogram(ids[ids != heavy], bins=edges)[0]
    sizes = np.diff(edges) - np.histogram([heavy], bins=edges)[0]
    weight = np.exp(logits[0, heavy].double().item())
    law = np.append(sizes, weight) / (n_rare + weight)
    assert g_test_log10_pvalue(np.append(counts, (ids == heavy).sum()), law) > -8

    logits[0, heavy] = -torch.inf
    rare_only = draw(logits.expand(n_draws, -1), keys, wants_race=True)
    assert rare_only.race is not None
    rare_words = (rare_only.race.x.numpy() * 2.0**32).astype(np.uint32)
    heavy_words = chacha8.words_at(keys.states, np.full(n_draws, heavy))
    halves = np.array([0.5, 0.5])
    exact = ids_by_coarse_words(heavy_words, rare_words, n_rare, bits=32)
    # The control is the same race: with all its bits it agrees with the draws.
    assert (exact == (ids != heavy)).mean() > 0.999
    for bits in (13, 23):
        won = ids_by_coarse_words(heavy_words, rare_words, n_rare, bits).sum()
        assert g_test_log10_pvalue(np.array([won, n_draws - won]), halves) < -8
