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

from tokenmark.kernels import gumbel_cpu, race_cpu, rows_cpu, words_cpu
from tokenmark.kernels.gumbel_cpu import RowDraws, draw_rows
from tokenmark.kernels.rows import Filters, RowKeys, RowStatus
from tokenmark.watermark.gumbel import race, race_large_u, winners
from tokenmark.watermark.prf import chacha8, philox
from tokenmark.watermark.prf.family import Family

TILE = 2048
LAST = 2**20 - 1
UNSCALED = (np.float32(1), np.float32(-np.inf))
# Around every branch of the draw: the ends, where log1p takes over, where float32 rounds to 1.
EDGE_WORDS = [0, 1, 127, 128, 2**31 - 1, 2**31, 2**32 - 129, 2**32 - 128, 2**32 - 1]


def states(n_rows: int, family: Family, seed: int = 7) -> NDArray[np.uint32]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**32, size=(n_rows, family.state_words), dtype=np.uint32)


def draw_of(
    logits: NDArray[np.generic],
    row_states: NDArray[np.uint32],
    symbols: NDArray[np.int64],
    *,
    family: Family,
    n_threads: int,
    filters: Filters | None = None,
) -> RowDraws:
    """Draws of rows that are all of one family, by default unfiltered."""
    keys = RowKeys.of_family(family, row_states, symbols)
    return draw_rows(logits, keys, filters or Filters.none(len(logits)), n_threads=n_threads)


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make threads share what is worth no sharing, so that rows are raced in parts."""
    monkeypatch.setattr(gumbel_cpu, "_MIN_WORDS_PER_TASK", 2**14)


def no_symbols(n_rows: int) -> NDArray[np.int64]:
    return np.zeros(n_rows, dtype=np.int64)


def reference_race(
    logits: NDArray[np.float32], state: NDArray[np.uint32], symbol: int, family: Family
) -> tuple[NDArray[np.uint32], NDArray[np.floating]]:
    """Words and race values of one row, [1, V] both."""
    n_words = logits.shape[-1]
    if family is Family.CHACHA8:
        words = chacha8.keystream(state[None], n_words, first=symbol)
        return words, race(logits.reshape(1, -1), words)
    words = philox.words(state[None], n_words)
    return words, race_large_u(logits.reshape(1, -1), philox.uniform_f32(words))


def assert_is_reference(
    draws: RowDraws,
    logits: NDArray[np.float32],
    row_states: NDArray[np.uint32],
    symbols: NDArray[np.int64],
    family: Family,
) -> None:
    assert (draws.status == RowStatus.DRAWN).all()
    for row, state in enumerate(row_states):
        words, values = reference_race(logits[row], state, int(symbols[row]), family)
        token_id = winners(values)[0]
        assert draws.ids[row] == token_id
        assert draws.words[row] == words[0, token_id]
        two_best = np.append(np.sort(values[0]), -np.inf)[[-2, -3]] if values.size > 1 else []
        np.testing.assert_allclose(
            draws.values[row, : len(two_best)], two_best, rtol=1e-6, atol=1e-5
        )


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize(
    "vocabulary_size",
    [1, 7, 127, 128, 2047, 2048, 2049, 49_152, 65_537, 151_936, 262_144, 1_048_576],
)
def test_ids_are_those_of_the_reference(vocabulary_size: int, family: Family) -> None:
    symbols = np.array([0, 1, 2**16 - 1, LAST] if family is Family.CHACHA8 else [0, 0, 0])
    rng = np.random.default_rng(vocabulary_size)
    logits = rng.normal(size=(symbols.size, vocabulary_size)).astype(np.float32) * 2
    row_states = states(symbols.size, family)
    draws = draw_of(logits, row_states, symbols, family=family, n_threads=1)
    assert_is_reference(draws, logits, row_states, symbols, family)


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("n_rows", [0, 1, 17, 257])
def test_rows_do_not_depend_on_their_neighbours(n_rows: int, family: Family) -> None:
    rng = np.random.default_rng(n_rows)
    logits = rng.normal(size=(n_rows, 300)).astype(np.float32) * 5
    row_states = states(n_rows, family)
    draws = draw_of(logits, row_states, no_symbols(n_rows), family=family, n_threads=3)
    assert draws.ids.shape == draws.words.shape == draws.status.shape == (n_rows,)
    assert_is_reference(draws, logits, row_states, no_symbols(n_rows), family)


@st.composite
def hard_logits(draw: st.DrawFn) -> NDArray[np.float32]:
    """Rows that are flat, spiked, spread, tied, masked or tiny, or several of these at once."""
    vocabulary_size = draw(st.sampled_from([1, 2, 127, 129, 2047, 2048, 2050, 6000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([0.0, 1e-42, 1e-3, 1.0, 8.0, 1e3, 1e30]))
    offset = draw(st.sampled_from([0.0, -50.0, 2.0**24, -3e38]))
    logits = (rng.normal(size=vocabulary_size) * scale + offset).astype(np.float32)
    if draw(st.booleans()):
        logits = np.round(logits)
    if draw(st.booleans()):
        logits[rng.integers(vocabulary_size)] += np.float32(draw(st.sampled_from([5, 23, 100])))
    share = draw(st.sampled_from([0.0, 0.0, 0.5, 0.99, 1.0]))
    removed = rng.random(vocabulary_size) < share
    removed[rng.integers(vocabulary_size)] = False
    return np.where(removed, np.float32(-np.inf), logits)


@given(
    logits=hard_logits(),
    seed=st.integers(0, 2**32 - 1),
    symbol=st.integers(0, LAST) | st.sampled_from([0, LAST]),
    family=st.sampled_from(Family),
)
def test_nothing_that_wins_is_left_out(
    logits: NDArray[np.float32], seed: int, symbol: int, family: Family
) -> None:
    symbols = np.array([symbol if family is Family.CHACHA8 else 0])
    row_state = states(1, family, seed)
    draws = draw_of(logits[None], row_state, symbols, family=family, n_threads=1)
    words, values = reference_race(logits, row_state[0], int(symbols[0]), family)
    assert draws.ids[0] == winners(values)[0]
    assert draws.words[0] == words[0, draws.ids[0]]
    assert draws.values[0, 0] == pytest.approx(values.max(), rel=1e-6, abs=1e-5)


@given(
    logit=st.floats(-60, 60, width=32),
    value=st.floats(-60, 60, width=32),
    word=st.integers(0, 2**32 - 1) | st.sampled_from(EDGE_WORDS) | st.integers(0, 2**12),
    family=st.sampled_from(Family),
)
def test_a_word_above_the_limit_cannot_reach_the_value(
    logit: float, value: float, word: int, family: Family
) -> None:
    bar = race_cpu._less(value, 0.0)
    limit = race_cpu._word_limit(np.float32(logit), np.float32(bar))
    reached = race_cpu._race_value(np.float32(logit), np.uint32(word), int(family))
    assert word <= limit or reached < value
    assert logit > race_cpu._less(value, race_cpu._LARGEST_GAIN) or reached < value


@pytest.mark.parametrize("gap", [3.0, 11.0, 20.0])
def test_the_limit_is_not_much_above_the_words_that_reach_the_value(gap: float) -> None:
    limit = race_cpu._word_limit(np.float32(0), race_cpu._less(gap, 0.0))
    value = race_cpu._race_value(np.float32(0), np.uint32(limit), words_cpu.CHACHA8)
    assert gap - 0.1 < value < gap


@pytest.mark.parametrize("word", EDGE_WORDS)
def test_values_at_the_ends_of_the_word_are_those_of_the_reference(word: int) -> None:
    words = np.array([[word]], dtype=np.uint32)
    logits = np.array([[-3.25]], dtype=np.float32)
    value = race_cpu._race_value(logits[0, 0], words[0, 0], words_cpu.CHACHA8)
    assert value == pytest.approx(race(logits, words)[0, 0], rel=1e-15)
    # Large words win in the other family, so its race word is the complement.
    large = race_cpu._race_value(logits[0, 0], ~words[0, 0], words_cpu.PHILOX)
    expected = race_large_u(logits, philox.uniform_f32(words))[0, 0]
    assert large == pytest.approx(expected, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("family", Family)
def test_no_word_gains_more_than_the_bound(family: Family) -> None:
    gains = [race_cpu._race_value(np.float32(0), np.uint32(w), int(family)) for w in EDGE_WORDS]
    assert max(gains) == gains[0] <= race_cpu._LARGEST_GAIN
    assert family is not Family.CHACHA8 or gains[0] > race_cpu._LARGEST_GAIN - 0.001


def race_of_words(
    words: NDArray[np.uint32], logits: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Values and winner of a tile whose words are given."""
    values, won = np.full(2, -np.inf), np.zeros(2, dtype=np.int64)
    tops = logits.reshape(16, 128).max(axis=1)
    row = logits.view(np.uint32)
    kind = ((rows_cpu.FLOAT32, *UNSCALED), int(Family.CHACHA8))
    race_cpu._race_tile(row, kind, 0, words, np.empty_like(words), tops, (values, won))
    return values, won


@pytest.mark.parametrize("word", EDGE_WORDS)
def test_a_sole_candidate_wins_with_every_word(word: int) -> None:
    words = np.zeros(TILE, dtype=np.uint32)
    words[1500] = word
    logits = np.full(TILE, -np.inf, dtype=np.float32)
    logits[1500] = -80
    values, won = race_of_words(words, logits)
    assert won.tolist() == [1500, word]
    assert values[0] == pytest.approx(race(logits[None, 1500:1501], words[None, 1500:1501])[0, 0])
    assert values[1] == -np.inf


def test_every_edge_word_races_as_in_the_reference() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        words = rng.choice(np.array(EDGE_WORDS, dtype=np.uint32), size=TILE)
        logits = rng.choice(np.array([0, 1, 22, 26], dtype=np.float32), size=TILE)
        values, won = race_of_words(words, logits)
        expected = race(logits[None], words[None])
        assert won[0] == winners(expected)[0]
        np.testing.assert_allclose(values, np.sort(expected[0])[:-3:-1], rtol=1e-14)


def test_ties_go_to_the_lowest_id_whatever_tile_is_raced_first() -> None:
    best = (np.full(2, -np.inf), np.zeros(2, dtype=np.int64))
    for token_id in (9, 4, 6):
        race_cpu._enter(best, np.float32(1), np.uint32(5), token_id, words_cpu.CHACHA8)
    assert best[1].tolist() == [4, 5]
    assert best[0][0] == best[0][1]


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("offset", [2.0**24, -1e30, 3e38])
def test_races_that_rounding_ties_go_to_the_lowest_id(offset: float, family: Family) -> None:
    logits = np.full((2, 5000), offset, dtype=np.float32)
    logits[:, :40] = -np.inf
    draws = draw_of(logits, states(2, family), no_symbols(2), family=family, n_threads=1)
    assert_is_reference(draws, logits, states(2, family), no_symbols(2), family)


def test_a_race_too_close_to_call_is_decided_by_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = np.zeros((400, 3000), dtype=np.float32)
    arguments = (logits, states(400, Family.PHILOX), no_symbols(400))
    draws = draw_of(*arguments, family=Family.PHILOX, n_threads=1)
    gaps = draws.values[:, 0] - draws.values[:, 1]
    close = np.flatnonzero(gaps < 0.02)
    assert 0 < close.size < 40
    monkeypatch.setattr(gumbel_cpu, "_NEAR_TIE", np.full(2, 0.02 / 32))
    asked = []
    decide = gumbel_cpu._reference_id
    monkeypatch.setattr(
        gumbel_cpu, "_reference_id", lambda *args: asked.append(args) or decide(*args)
    )
    again = draw_of(*arguments, family=Family.PHILOX, n_threads=1)
    assert close.size <= len(asked) < 60
    assert np.array_equal(again.ids, draws.ids)
    assert np.array_equal(again.words, draws.words)


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("tile", [0, 1, 510, 511])
def test_words_are_those_of_the_scheme(tile: int, family: Family) -> None:
    state = states(1, family)
    expected = (
        chacha8.keystream(state, TILE, first=tile * TILE)[0]
        if family is Family.CHACHA8
        else ~philox.words_at(np.repeat(state, TILE, axis=0), np.arange(TILE) + tile * TILE)
    )
    words = np.zeros(TILE, dtype=np.uint32)
    for lane in range(0, 128 if family is Family.CHACHA8 else 256, words_cpu.GROUP):
        words_cpu.fill(state[0], tile, int(family), lane, words)
    assert np.array_equal(words, expected)


@pytest.mark.parametrize("family", Family)
def test_few_candidates_have_the_words_that_they_have_among_many(family: Family) -> None:
    rng = np.random.default_rng(5)
    for n_left in (1, 2, 3, 4, 12):
        logits = np.full((20, 9000), -np.inf, dtype=np.float32)
        for row in logits:
            row[rng.permutation(9000)[:n_left]] = rng.normal(size=n_left)
        symbols = rng.integers(0, 2**20 if family is Family.CHACHA8 else 1, size=20)
        draws = draw_of(logits, states(20, family), symbols, family=family, n_threads=1)
        assert_is_reference(draws, logits, states(20, family), symbols, family)


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (np.inf, RowStatus.NOT_FINITE),
        (np.nan, RowStatus.NOT_FINITE),
        (-np.nan, RowStatus.NOT_FINITE),
        (-np.inf, RowStatus.NO_CANDIDATE),
    ],
)
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.usefixtures("small_tasks")
def test_a_row_that_cannot_be_drawn_says_why_and_spoils_no_other(
    value: float, status: RowStatus, n_threads: int
) -> None:
    logits = np.random.default_rng(2).normal(size=(3, 150_000)).astype(np.float32)
    healthy = draw_of(
        logits, states(3, Family.CHACHA8), no_symbols(3), family=Family.CHACHA8, n_threads=1
    )
    logits[1, 0 if status is RowStatus.NO_CANDIDATE else 149_990 :] = value
    for rows in (slice(0, 3), slice(1, 2)):
        arguments = (logits[rows], states(3, Family.CHACHA8)[rows], no_symbols(3)[rows])
        draws = draw_of(*arguments, family=Family.CHACHA8, n_threads=n_threads)
        expected = np.array([RowStatus.DRAWN, status, RowStatus.DRAWN])[rows]
        assert np.array_equal(draws.status, expected)
        good = expected == RowStatus.DRAWN
        assert np.array_equal(draws.ids[good], healthy.ids[rows][good])


def test_no_columns_are_no_candidates() -> None:
    logits = np.zeros((2, 0), dtype=np.float32)
    draws = draw_of(
        logits, states(2, Family.CHACHA8), no_symbols(2), family=Family.CHACHA8, n_threads=1
    )
    assert (draws.status == RowStatus.NO_CANDIDATE).all()


@pytest.mark.parametrize("flushes_subnormals", [False, True])
def test_every_16_bit_float_is_read_exactly(*, flushes_subnormals: bool) -> None:
    every = np.arange(2**16, dtype=np.uint16)
    halves = np.empty(2**16, dtype=np.uint32)
    bfloats = np.empty(2**16, dtype=np.uint32)
    kinds = {rows_cpu.FLOAT16: halves, rows_cpu.BFLOAT16: bfloats}
    torch.set_flush_denormal(flushes_subnormals)
    try:
        for encoding, bits in kinds.items():
            rows_cpu.unpack(every, (encoding, *UNSCALED), 0, bits)
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(
        halves.view(np.float32), every.view(np.float16).astype(np.float32)
    )
    exact = torch.from_numpy(every).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(bfloats.view(np.float32), exact)


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_are_taken_as_the_tensor_holds_them(dtype: torch.dtype, family: Family) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = (torch.randn(5, 3, 2100, generator=generator) * 4).to(dtype)
    rows = logits[:, 1, 30:]
    host = rows.view(torch.uint16).numpy() if dtype is torch.bfloat16 else rows.numpy()
    draws = draw_of(host, states(5, family), no_symbols(5), family=family, n_threads=1)
    assert_is_reference(draws, rows.float().numpy(), states(5, family), no_symbols(5), family)


def test_rows_that_share_their_memory_are_raced_with_their_own_words() -> None:
    logits = torch.linspace(0, 3, 700).expand(6, -1).numpy()
    row_states = states(6, Family.CHACHA8)
    row_states.flags.writeable = False
    draws = draw_of(logits, row_states, no_symbols(6), family=Family.CHACHA8, n_threads=2)
    assert_is_reference(draws, logits, row_states, no_symbols(6), Family.CHACHA8)
    assert len(set(draws.ids.tolist())) > 1


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("n_rows", [1, 3, 5])
@pytest.mark.usefixtures("small_tasks")
def test_threads_change_nothing(n_rows: int, family: Family) -> None:
    logits = np.random.default_rng(9).normal(size=(n_rows, 200_000)).astype(np.float32)
    symbols = np.full(n_rows, 77_777 if family is Family.CHACHA8 else 0)
    results = [
        draw_of(logits, states(n_rows, family), symbols, family=family, n_threads=n_threads)
        for n_threads in (1, 2, 4, 64)
    ]
    for other in results[1:]:
        assert np.array_equal(other.ids, results[0].ids)
        assert np.array_equal(other.words, results[0].words)
        assert np.array_equal(other.values, results[0].values)


def run_script(script: str, **environment: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


# Two threads draw while a third keeps torch's own threads at work.
BUSY_SCRIPT = """
import os, threading
import numpy as np, torch
from tokenmark.kernels.gumbel_cpu import draw_rows
from tokenmark.kernels.rows import Filters, RowKeys
from tokenmark.watermark.prf.family import Family
logits = np.random.default_rng(1).normal(size=(4, 151_936)).astype(np.float32)
states = np.arange(32, dtype=np.uint32).reshape(4, 8)
keys = RowKeys.of_family(Family.CHACHA8, states)
def ids(n_threads):
    return draw_rows(logits, keys, Filters.none(4), n_threads=n_threads).ids.tolist()
expected, found, stop = ids(1), [], threading.Event()
def multiply():
    matrix = torch.ones(300, 300)
    while not stop.is_set():
        matrix @ matrix
torch.set_num_threads(2)
workers = [threading.Thread(target=lambda: found.extend(ids(3) for _ in range(40))) for _ in "ab"]
other = threading.Thread(target=multiply)
other.start()
for worker in workers: worker.start()
for worker in workers: worker.join()
stop.set()
other.join()
assert found == [expected] * 80, len(found)
child = os.fork() if hasattr(os, "fork") else None
if child == 0:
    os._exit(0 if ids(3) == expected else 1)
assert child is None or os.waitpid(child, 0)[1] == 0
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["PASSIVE", "ACTIVE"])
def test_draws_and_torch_share_the_processor(policy: str) -> None:
    assert run_script(BUSY_SCRIPT, OMP_WAIT_POLICY=policy) == "done\n"


WARM_SCRIPT = """
import torch
from tokenmark.kernels import filters_cpu, masses_cpu, race_cpu
from tokenmark.kernels.gumbel import warm_up
for dtype in (torch.float32, torch.bfloat16):
    warm_up(torch.device("cpu"), dtype)
for entry in (filters_cpu.find_floors, masses_cpu.find_log_masses, race_cpu.race_rows):
    print(sum(entry.stats.cache_hits.values()), sum(entry.stats.cache_misses.values()))
"""


@pytest.mark.slow
def test_what_was_compiled_is_loaded_by_the_next_process(tmp_path: Path) -> None:
    assert run_script(WARM_SCRIPT, NUMBA_CACHE_DIR=str(tmp_path)) == "0 2\n" * 3
    assert run_script(WARM_SCRIPT, NUMBA_CACHE_DIR=str(tmp_path)) == "2 0\n" * 3


ENTRY_SCRIPT = """
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, {folder!r})
import caller
entered = caller.entered
print(entered(1), sum(entered.stats.cache_hits.values()), entered.stats.cache_path)
"""

CALLED = """
from tokenmark.kernels.compiled import compiled
@compiled
def add(x):
    return x + {addend}
"""

CALLER = """
import called
from tokenmark.kernels.compiled import entry
def _build(sources):
    def entered(x):
        _ = sources
        return called.add(x)
    return entered
entered = entry(_build, called)
"""


def test_an_entry_is_compiled_anew_when_what_it_calls_changes(tmp_path: Path) -> None:
    script = ENTRY_SCRIPT.format(folder=str(tmp_path))
    (tmp_path / "caller.py").write_text(CALLER, encoding="utf-8")
    outcomes = []
    for addend in (1, 1, 5):
        (tmp_path / "called.py").write_text(CALLED.format(addend=addend), encoding="utf-8")
        outcomes.append(run_script(script).split()[:2])
    assert outcomes == [["2", "0"], ["2", "1"], ["6", "0"]]


def test_without_a_folder_to_write_to_each_process_compiles(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER, encoding="utf-8")
    (tmp_path / "called.py").write_text(CALLED.format(addend=1), encoding="utf-8")
    # Beside the file and in the home no folder can be made: both names are taken by files.
    (tmp_path / "__pycache__").touch()
    (tmp_path / "home").touch()
    home = str(tmp_path / "home")
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"), home)
    script = ENTRY_SCRIPT.format(folder=str(tmp_path))
    assert run_script(script, **nowhere) == "2 0 None\n"
