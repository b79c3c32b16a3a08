from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tokenmark.kernels import filters_cpu, masses_cpu
from tokenmark.kernels.compiled import compiled
from tokenmark.kernels.rows_cpu import BFLOAT16, FLOAT16, FLOAT32

Logits = NDArray[np.float32]
Mask = NDArray[np.bool_]
NO_LIMIT = 2**63 - 1
ENCODINGS = (FLOAT32, FLOAT16, BFLOAT16)
SIZES = (1, 2, 127, 128, 129, 2047, 2048, 2049, 6000)
# How far the mass before the edge of top-p may be from the bound where roundings may decide.
EDGE = 1e-6


@dataclass(frozen=True, slots=True)
class Limits:
    temperature: float = 1.0
    top_k: int = NO_LIMIT
    top_p: float = 1.0
    min_p: float = 0.0


def encode(logits: Logits, encoding: int) -> NDArray[np.uint32] | NDArray[np.uint16]:
    """The bits a model would store; of bfloat16 those that float32 is cut to."""
    if encoding == FLOAT16:
        return logits.astype(np.float16).view(np.uint16)
    bits = logits.view(np.uint32)
    return bits if encoding == FLOAT32 else (bits >> np.uint32(16)).astype(np.uint16)


def decode(bits: NDArray[np.uint32] | NDArray[np.uint16], encoding: int) -> Logits:
    if encoding == FLOAT16:
        return bits.view(np.float16).astype(np.float32)
    if encoding == BFLOAT16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(np.float32)


def scale(logits: Logits, temperature: float) -> Logits:
    with np.errstate(over="ignore", under="ignore"):
        return logits / np.float32(temperature)


def floors_of(
    logits: Logits,  # [B, V]
    limits: list[Limits],
    encoding: int = FLOAT32,
    *,
    gap: int = 0,
) -> Logits:  # [B]
    """What the compiled code finds in rows that have something else in the gaps between them."""
    n_rows, n_columns = logits.shape
    stored = encode(np.full((n_rows, n_columns + gap), np.nan, dtype=np.float32), encoding)
    stored[:, :n_columns] = encode(logits, encoding)
    wanted = (
        np.array([row.top_k for row in limits], dtype=np.int64),
        np.array([row.top_p for row in limits]),
        np.array([row.min_p for row in limits]),
    )
    floors = np.full(n_rows, np.nan, dtype=np.float32)
    filters_cpu.find_floors(
        stored.reshape(-1),
        (n_columns + gap, n_columns),
        encoding,
        np.array([row.temperature for row in limits], dtype=np.float32),
        wanted,
        floors,
    )
    return floors


def kept(scaled: Logits, floor: np.float32) -> Mask:
    return (scaled >= floor) & (scaled > -np.inf)


def kept_by_law(scaled: Logits, limits: Limits) -> tuple[Mask, Mask]:
    """Which candidates of a row stay by the text of `Filters`; for which roundings may decide."""
    values = scaled.astype(np.float64)
    stays, is_edge = values > -np.inf, np.zeros(values.size, dtype=np.bool_)
    descending = np.sort(values[stays])[::-1]
    n_larger = np.searchsorted(-descending, -values, side="left")
    stays &= n_larger < limits.top_k
    likeliest = descending[0]
    # Whatever top-k left is the front of what was sorted, also with ties.
    before = np.append(0.0, np.cumsum(np.exp(descending[: stays.sum()] - likeliest)))
    share = np.where(stays, before[np.minimum(n_larger, stays.sum())] / before[-1], 1.0)
    if limits.top_p < 1:
        # Nothing comes before the likeliest candidate, in any arithmetic.
        is_edge |= stays & (np.abs(share - limits.top_p) <= EDGE) & (n_larger > 0)
        stays &= share < limits.top_p
    if limits.min_p > 0:
        log_ratio, bound = values - likeliest, np.log(limits.min_p)
        is_edge |= np.abs(log_ratio - bound) <= 2.0**-23 * (abs(likeliest) + abs(bound))
        stays &= log_ratio >= bound
    is_edge &= n_larger > 0
    return stays, is_edge


ROW_KINDS = (
    "normal",
    "flat",
    "almost flat",
    "spikes",
    "ties",
    "zeros",
    "huge",
    "mostly forbidden",
    "sorted",
    "one octave after the other",
)


def row_of(kind: str, size: int, seed: int) -> Logits:
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=size)
    rows = {
        "normal": 2 * normal,
        "flat": np.full(size, normal[0]),
        "almost flat": 5 + 1e-3 * normal,
        "spikes": np.where(rng.random(size) < 0.01, 12 + normal, normal),
        "ties": np.round(2 * normal),
        "zeros": rng.choice([-0.0, 0.0, -0.0, 0.0, 1.0, -1.0, 1e-44, -1e-44], size=size),
        "huge": 1e30 * normal,
        "mostly forbidden": np.where(rng.random(size) < 0.97, -np.inf, 3 * normal),
        "sorted": np.sort(3 * normal),
        "one octave after the other": rng.choice([-1.0, 1.0], size=size) * np.exp(4 * normal),
    }
    row = rows[kind].astype(np.float32)
    if not (row > -np.inf).any():
        row[rng.integers(size)] = 1
    return row


def fitting(row: Logits, encoding: int) -> Logits:
    """The row as it reads once it is stored."""
    if encoding == FLOAT16:
        row = np.where(np.isfinite(row), np.clip(row, -60_000, 60_000), row)
    return decode(encode(row, encoding), encoding)


def assert_is_law(
    row: Logits, limits: Limits, encoding: int, seen: Counter[str], *, gap: int = 0
) -> None:
    scaled = scale(row, limits.temperature)
    (floor,) = floors_of(row[None], [limits], encoding, gap=gap)
    stays, is_edge = kept_by_law(scaled, limits)
    is_kept = kept(scaled, floor)
    np.testing.assert_array_equal(is_kept | is_edge, stays | is_edge)
    np.testing.assert_array_equal(is_kept & ~is_edge, stays & ~is_edge)
    assert is_kept[np.argmax(scaled)]
    if floor > -np.inf and limits.min_p == 0:
        assert floor in scaled
    seen["rows"] += 1
    seen["rows that lose candidates"] += not is_kept[scaled > -np.inf].all()
    seen["rows that keep several"] += is_kept.sum() > 1
    # Of a bound this close to all, whatever comes last is an edge.
    seen["rows with an edge"] += is_edge.any() and limits.top_p <= 1 - 10 * EDGE
    seen["rows where roundings decided"] += (is_kept != stays).any()


def assert_little_was_skipped(seen: Counter[str]) -> None:
    assert seen["rows"] >= 200
    assert seen["rows that lose candidates"] >= 0.3 * seen["rows"]
    assert seen["rows that keep several"] >= 0.2 * seen["rows"]
    assert seen["rows with an edge"] <= 0.02 * seen["rows"]
    assert seen["rows where roundings decided"] <= 0.01 * seen["rows"]


def top_ks(size: int) -> list[int]:
    return sorted({max(1, k) for k in (1, 2, 50, size - 1, size, size + 1, NO_LIMIT)})


top_ps = st.sampled_from([1e-300, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 2.0**-53, 1.0]) | st.floats(
    1e-300, 1, exclude_min=True
)
min_ps = st.sampled_from([0.0, 0.0, 0.0, 1e-300, 1e-3, 0.1, 1.0]) | st.floats(0, 1)
temperatures = st.sampled_from([1.0, 1e-4, 0.7, 2.0]) | st.floats(1e-4, 2)


def test_what_is_kept_follows_the_law_of_the_filters() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=600)
    @given(
        st.sampled_from(ROW_KINDS),
        st.sampled_from(SIZES),
        st.integers(0, 2**32 - 1),
        st.sampled_from(ENCODINGS),
        st.data(),
    )
    def check(kind: str, size: int, seed: int, encoding: int, data: st.DataObject) -> None:
        row = fitting(row_of(kind, size, seed), encoding)
        limits = Limits(
            temperature=data.draw(temperatures),
            top_k=data.draw(st.sampled_from(top_ks(size))),
            top_p=data.draw(top_ps),
            min_p=data.draw(min_ps),
        )
        assert_is_law(row, limits, encoding, seen, gap=data.draw(st.integers(0, 3)))

    check()
    assert_little_was_skipped(seen)


def test_what_is_kept_of_few_candidates_follows_the_law() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=400)
    @given(
        st.lists(st.floats(-20, 20, width=16) | st.just(-np.inf), min_size=1, max_size=12),
        st.floats(-20, 20, width=16),
        st.integers(1, 14),
        top_ps,
        min_ps,
    )
    def check(logits: list[float], last: float, top_k: int, top_p: float, min_p: float) -> None:
        row = np.array([*logits, last], dtype=np.float32)
        assert_is_law(row, Limits(top_k=top_k, top_p=top_p, min_p=min_p), FLOAT32, seen)

    check()
    assert_little_was_skipped(seen)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", ROW_KINDS)
def test_a_large_vocabulary_follows_the_law(kind: str, encoding: int) -> None:
    row = fitting(row_of(kind, 151_936, seed=1), encoding)
    seen: Counter[str] = Counter()
    for limits in (
        Limits(top_k=50),
        Limits(top_k=5000),
        Limits(top_k=50, top_p=0.95),
        Limits(top_p=0.95, temperature=0.7),
        Limits(top_p=0.3, min_p=0.01),
    ):
        assert_is_law(row, limits, encoding, seen)
    assert seen["rows with an edge"] <= 2
    assert seen["rows where roundings decided"] <= 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_top_k_keeps_k_candidates_and_their_ties(size: int, temperature: float) -> None:
    rng = np.random.default_rng(size)
    without_ties = rng.permutation(size).astype(np.float32)
    with_ties = np.floor(without_ties / 3)
    for k in top_ks(size):
        limits = [Limits(top_k=k, temperature=temperature)] * 2
        floors = floors_of(np.stack([without_ties, with_ties]), limits)
        assert kept(scale(without_ties, temperature), floors[0]).sum() == min(k, size)
        n_kept = kept(scale(with_ties, temperature), floors[1]).sum()
        assert min(k, size) <= n_kept <= min(k + 2, size)


def test_fewer_candidates_than_k_all_stay() -> None:
    row = np.full(3000, -np.inf, dtype=np.float32)
    row[[5, 2900]] = [-3.0, -300.0]
    assert floors_of(row[None], [Limits(top_k=3)]) == -np.inf
    assert kept(row, floors_of(row[None], [Limits(top_k=2)])[0]).sum() == 2


@pytest.mark.parametrize("limits", [Limits(top_k=1), Limits(top_p=0.2), Limits(min_p=1.0)])
@pytest.mark.parametrize("zeros", [[0.0, -0.0], [-0.0, 0.0]])
def test_both_zeros_tie(limits: Limits, zeros: list[float]) -> None:
    row = np.array([-1.0, *zeros, -1.0], dtype=np.float32)
    assert kept(row, floors_of(row[None], [limits])[0]).tolist() == [False, True, True, False]
    # A chunk whose largest logit is the other zero.
    row = np.full(4096, -30.0, dtype=np.float32)
    row[[5, 3000]] = zeros
    assert np.flatnonzero(kept(row, floors_of(row[None], [limits])[0])).tolist() == [5, 3000]


def test_zeros_that_top_k_left_count_for_top_p_whatever_their_sign() -> None:
    for zeros in ([0.0, *[-0.0] * 9], [*[-0.0] * 9, 0.0]):
        row = np.array([1.0, *zeros, -1.0], dtype=np.float32)
        # The first candidate has 73% of itself and one zero, but 21% of itself and all zeros.
        (floor,) = floors_of(row[None], [Limits(top_k=2, top_p=0.5)])
        assert kept(row, floor).tolist() == [True] * 11 + [False]


def test_the_smallest_top_p_keeps_the_likeliest_alone() -> None:
    row = row_of("normal", 3000, seed=3)
    for top_p in (5e-324, 1e-300, 1e-9):
        assert floors_of(row[None], [Limits(top_p=top_p)]) == row.max()


@pytest.mark.parametrize("kind", ROW_KINDS)
def test_min_p_1_keeps_exactly_the_likeliest_and_its_ties(kind: str) -> None:
    row = row_of(kind, 2049, seed=4)
    (floor,) = floors_of(row[None], [Limits(min_p=1.0)])
    np.testing.assert_array_equal(kept(row, floor), row == row.max())


def test_the_floor_of_min_p_is_rounded_as_float32_sums_are() -> None:
    rng = np.random.default_rng(5)
    min_p = rng.random(50)
    rows = rng.normal(size=(50, 300)).astype(np.float32) * 4
    expected = rows.max(axis=1) + np.log(min_p).astype(np.float32)
    floors = floors_of(rows, [Limits(min_p=fraction) for fraction in min_p])
    np.testing.assert_array_equal(floors, expected)


def test_the_strictest_filter_decides() -> None:
    row = np.linspace(-4, 4, 900, dtype=np.float32)
    single = [Limits(top_k=40), Limits(top_p=0.01), Limits(min_p=0.99)]
    joint = Limits(top_k=40, min_p=0.99)
    floors = floors_of(np.stack([row] * 4), [*single, joint])
    assert floors[3] == max(floors[0], floors[2])
    assert len(set(floors.tolist())) == 3


def test_top_p_counts_among_what_top_k_left() -> None:
    row = np.log(np.array([0.3, 0.25, 0.2, 0.15, 0.1], dtype=np.float32))
    limits = [Limits(top_p=0.5), Limits(top_p=0.5, top_k=2)]
    floors = floors_of(np.stack([row, row]), limits)
    assert [int(kept(row, floor).sum()) for floor in floors] == [2, 1]


def test_rows_without_filters_have_no_floor() -> None:
    rows = np.stack([row_of(kind, 129, seed=6) for kind in ROW_KINDS])
    for top_k in (129, 130, NO_LIMIT):
        floors = floors_of(rows, [Limits(top_k=top_k, temperature=0.5)] * len(rows))
        assert (floors == -np.inf).all()


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("limits", [Limits(top_k=2), Limits(top_p=0.5), Limits(min_p=0.5)])
def test_rows_that_cannot_be_drawn_have_no_floor_and_spoil_no_other(
    encoding: int, limits: Limits
) -> None:
    rows = np.stack([row_of("normal", 2049, seed=seed) for seed in range(6)])
    rows[1] = -np.inf
    rows[2, 2048] = np.nan
    rows[3, 7] = np.inf
    rows[4, 0] = -np.nan
    floors = floors_of(rows, [limits] * 6, encoding, gap=2)
    assert (floors[1:5] == -np.inf).all()
    for row in (0, 5):
        assert floors[row] == floors_of(rows[row : row + 1], [limits], encoding)
        assert floors[row] > -np.inf


def test_a_logit_that_overflows_when_divided_leaves_no_floor() -> None:
    row = np.array([[1.0, 3e38, 2.0]], dtype=np.float32)
    assert floors_of(row, [Limits(top_k=2, temperature=0.5)]) == -np.inf
    assert floors_of(row, [Limits(top_k=2, temperature=1.0)]) == 2.0


def test_a_row_has_its_floor_wherever_it_lies_and_however_often_it_is_asked() -> None:
    limits = [
        Limits(top_k=k, top_p=p, temperature=t)
        for k in (20, NO_LIMIT)
        for p in (0.3, 0.9, 0.99)
        for t in (1.0, 0.6)
    ]
    rows = np.stack([row_of("normal", 6000, seed=seed) for seed in range(len(limits))])
    together = floors_of(rows, limits)
    for gap in (0, 1, 37):
        np.testing.assert_array_equal(floors_of(rows, limits, gap=gap), together)
    for row, limit in enumerate(limits):
        assert floors_of(rows[row : row + 1], [limit]) == together[row]


@compiled
def exponentials(x: Logits, powers: Logits) -> None:
    for i in range(x.size):
        powers[i] = masses_cpu.exponential(x[i])


def test_the_exponential_is_within_its_bound() -> None:
    x = np.concatenate(
        [
            np.linspace(-87, 0, 2_000_001),
            -np.geomspace(1e-40, 87, 200_001),
            # Where the whole number of octaves changes.
            (-np.arange(0.5, 125)[:, None] * np.log(2) + np.linspace(-1e-5, 1e-5, 101)).reshape(-1),
        ]
    ).astype(np.float32)
    powers = np.empty_like(x)
    exponentials(x, powers)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(powers / exact - 1).max() <= 1e-7


def test_the_exponential_ends_exactly_at_1_and_as_good_as_0() -> None:
    x = np.array([0.0, -0.0, -87.0, -88.0, -1e30, -np.inf], dtype=np.float32)
    powers = np.empty_like(x)
    exponentials(x, powers)
    assert powers[:2].tolist() == [1.0, 1.0]
    assert (powers[2:] == powers[2]).all()
    assert 0 < powers[2] < 2e-38


@pytest.mark.parametrize("seed", range(20))
def test_filters_agree_with_the_reference_warpers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    none = torch.zeros(1, 0, dtype=torch.long)
    for size in (500, 5000):
        # More than are needed, as the warpers take ties apart.
        distinct = np.unique(4 * rng.normal(size=size + 100).astype(np.float32))
        row = rng.permutation(distinct)[None, :size]
        assert row.size == size
        for k, p, m in (
            (7, 1.0, 0.0),
            (size, 0.9, 0.0),
            (50, 0.5, 0.0),
            (50, 0.95, 0.2),
            (3, 1.0, 0.5),
        ):
            expected = TopKLogitsWarper(k)(none, torch.from_numpy(row))
            expected = TopPLogitsWarper(p)(none, expected) if p < 1 else expected
            expected = MinPLogitsWarper(m)(none, expected) if m else expected
            (floor,) = floors_of(row, [Limits(top_k=k, top_p=p, min_p=m)])
            np.testing.assert_array_equal(kept(row[0], floor), np.isfinite(expected[0].numpy()))
