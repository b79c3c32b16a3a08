"""Floors found by the Triton kernel, against sorting in float64."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.kernels.on_triton import DEVICE, ON_GPU, on_device, random_logits
from tokenmark.kernels.rows import Filters

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from tokenmark.kernels.filters_triton import (  # noqa: E402 - not where triton is missing
    _exponential,
    _logit_of_rank,
    _rank,
    find_floors,
)

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

# Closer to the bound of top-p, roundings decide.
EDGE = 1e-6
ALL = 2**63 - 1
# NumPy, which the interpreter computes with, says where float32 ends.
overflowing = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")


@dataclass(frozen=True)
class Case:
    """One row and what is done to it."""

    logits: Floats
    temperature: float = 1.0
    top_k: int = ALL
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def scaled(self) -> Floats:
        with np.errstate(over="ignore"):
            return self.logits / np.float32(self.temperature)


def filters_of(cases: list[Case]) -> Filters:
    return Filters(
        temperatures=np.array([case.temperature for case in cases], dtype=np.float32),
        top_k=np.array([case.top_k for case in cases], dtype=np.int64),
        top_p=np.array([case.top_p for case in cases]),
        min_p=np.array([case.min_p for case in cases]),
    )


def floors_of(logits: torch.Tensor, filters: Filters, *, width: int | None = None) -> Floats:
    if width is None:
        width = 4096 if ON_GPU else min(2**18, 1 << max(logits.shape[1] - 1, 0).bit_length())
    floors = find_floors(
        logits.to(DEVICE),
        on_device(filters.temperatures),
        on_device(filters.top_k),
        on_device(filters.top_p),
        on_device(filters.min_p),
        width=width,
    )
    assert floors.dtype == torch.float32
    return floors.cpu().numpy()


def floors(cases: list[Case]) -> Floats:
    return floors_of(torch.from_numpy(np.stack([c.logits for c in cases])), filters_of(cases))


def kept(case: Case) -> tuple[Mask, Mask]:
    """Which candidates stay, and of which top-p decides so closely that roundings may."""
    scaled = case.scaled
    stays = scaled > -math.inf
    is_edge = np.zeros_like(stays)
    ascending = np.sort(scaled[stays])
    n_larger = ascending.size - np.searchsorted(ascending, scaled, side="right")
    stays &= n_larger < case.top_k
    if case.top_p < 1:
        descending = np.sort(scaled[stays].astype(np.float64))[::-1]
        masses = np.exp(descending - descending[0])
        mass_before = np.append(0.0, masses.cumsum())[np.minimum(n_larger, masses.size)]
        share_before = mass_before / masses.sum()
        is_edge = stays & (np.abs(share_before - case.top_p) < EDGE) & (n_larger > 0)
        # However small p is, nothing comes before the likeliest.
        stays &= (share_before < case.top_p) | (n_larger == 0)
    if case.min_p > 0:
        stays &= scaled >= scaled.max() + np.float32(math.log(case.min_p))
    return stays, is_edge


def n_edges_after_check(case: Case, floor: np.float32) -> int:
    """Compares with the oracle, but for logits at the edge, whose number is returned."""
    stays, is_edge = kept(case)
    scaled = case.scaled
    by_floor = (scaled >= floor) & (scaled > -math.inf)
    assert np.array_equal(by_floor[~is_edge], stays[~is_edge])
    assert by_floor[scaled == scaled.max()].all()
    # Ties stay together, also at the edge, and -inf says that all do.
    assert (floor == -math.inf) == np.array_equal(by_floor, scaled > -math.inf)
    return np.unique(scaled[is_edge]).size


@pytest.mark.parametrize("vocabulary_size", [1, 2, 127, 128, 129, 2049, 6000])
def test_what_stays_is_what_sorting_keeps(vocabulary_size: int) -> None:
    logits = random_logits(8, vocabulary_size, seed=vocabulary_size)
    cases = [
        Case(logits[0], top_k=1),
        Case(logits[1], top_k=50, temperature=0.7),
        Case(logits[2], top_k=max(1, vocabulary_size - 1)),
        Case(logits[3], top_p=0.95),
        Case(logits[4], top_p=0.3, temperature=1.6),
        Case(logits[5], top_p=0.9, top_k=40),
        Case(logits[6], min_p=0.05),
        Case(logits[7], min_p=0.02, top_p=0.99, top_k=1000, temperature=1.3),
    ]
    found = floors(cases)
    assert sum(n_edges_after_check(*pair) for pair in zip(cases, found, strict=True)) == 0
    # Without ties top-k keeps exactly k.
    n_kept = [int((case.scaled >= floor).sum()) for case, floor in zip(cases, found, strict=True)]
    expected = [min(k, vocabulary_size) for k in (1, 50, max(1, vocabulary_size - 1))]
    assert n_kept[:3] == expected


@pytest.mark.slow
def test_a_large_vocabulary_is_filtered_as_sorting_does() -> None:
    logits = random_logits(4, 151_936)
    cases = [
        Case(logits[0], top_k=50),
        Case(logits[1], top_p=0.95),
        Case(logits[2], top_k=1000, top_p=0.9, min_p=0.001, temperature=0.7),
        Case(logits[3] * np.float32(1e-4), top_p=0.5),
    ]
    found = floors(cases)
    # About one row in three has a candidate so close to the bound.
    assert sum(n_edges_after_check(*pair) for pair in zip(cases, found, strict=True)) <= 3


def test_the_width_of_steps_changes_a_floor_at_edges_only() -> None:
    logits = random_logits(2, 1500)
    cases = [Case(logits[0], top_p=0.8), Case(logits[1], top_k=77, top_p=0.8)]
    for width in (128, 512):
        found = floors_of(torch.from_numpy(logits), filters_of(cases), width=width)
        assert sum(n_edges_after_check(*pair) for pair in zip(cases, found, strict=True)) == 0


def test_a_row_that_nothing_filters_has_no_floor() -> None:
    logits = random_logits(6, 300)
    logits[4, 7:] = -math.inf
    # The filters are there, but remove nothing.
    lenient = [Case(logits[1], top_k=300), Case(logits[2], min_p=1e-300)]
    cases = [Case(logits[0]), *lenient, Case(logits[3], top_k=ALL, top_p=1.0, temperature=0.1)]
    cases += [Case(logits[4], top_k=7), Case(np.zeros(300, dtype=np.float32), top_k=1, top_p=0.1)]
    assert floors(cases).tolist() == [-math.inf] * 6


@overflowing
def test_a_row_that_cannot_be_drawn_has_no_floor_and_spoils_no_other() -> None:
    logits = random_logits(5, 300)
    logits[0] = -math.inf
    logits[1, 4] = math.nan
    logits[2, 299] = math.inf
    logits[3, 0] = 3e38
    cases = [Case(row, top_k=9, top_p=0.5, min_p=0.1, temperature=0.5) for row in logits]
    found = floors(cases)
    assert found[:4].tolist() == [-math.inf] * 4
    assert found[4] > -math.inf
    assert n_edges_after_check(cases[4], found[4]) == 0


def test_an_empty_batch_and_an_empty_vocabulary_have_nothing_to_filter() -> None:
    assert floors_of(torch.zeros(0, 9), filters_of([])).size == 0
    case = Case(np.zeros(0, dtype=np.float32), top_k=3, top_p=0.5)
    assert floors([case]).tolist() == [-math.inf]


def test_both_zeros_tie() -> None:
    row = np.array([0.0, -0.0, -1.0, -0.0, 0.0, 1.0, 1e-45, -1e-45], dtype=np.float32)
    cases = [Case(row, top_k=k) for k in range(1, 9)] + [Case(-row, top_k=k) for k in range(1, 9)]
    found = floors(cases)
    assert sum(n_edges_after_check(*pair) for pair in zip(cases, found, strict=True)) == 0
    n_kept = [int((case.scaled >= floor).sum()) for case, floor in zip(cases, found, strict=True)]
    assert n_kept == 2 * [1, 2, 6, 6, 6, 6, 7, 8]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_of_every_type_and_layout_are_read_as_they_are(dtype: torch.dtype) -> None:
    logits = torch.from_numpy(random_logits(2, 900)).to(dtype)
    cases = [Case(row, top_k=20, top_p=0.9, temperature=0.7) for row in logits.float().numpy()]
    expected = floors(cases).tolist()
    padded = torch.full((2, 1000), 9.0, dtype=dtype)
    padded[:, :900] = logits
    spread = torch.full((2, 1800), 9.0, dtype=dtype)
    spread[:, ::2] = logits
    for strided in (logits, logits.T.contiguous().T, padded[:, :900], spread[:, ::2]):
        assert floors_of(strided, filters_of(cases)).tolist() == expected


def test_a_floor_is_found_again_whoever_the_neighbours_are() -> None:
    logits = random_logits(3, 700)
    cases = [Case(row, top_p=0.9, temperature=0.7) for row in logits]
    found = floors(cases)
    assert floors(cases[1:])[0] == found[1]
    assert np.array_equal(floors(cases), found)


@st.composite
def adversarial_cases(draw: st.DrawFn) -> Case:
    n_ids = draw(st.sampled_from([1, 2, 3, 127, 128, 129, 500]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    normal = rng.normal(size=n_ids)
    shape = draw(st.sampled_from(["normal", "flat", "ties", "spikes", "zeros", "wide", "masked"]))
    logits = {
        "normal": 3 * normal,
        "flat": 5 + 1e-5 * normal,
        "ties": np.round(2 * normal) / 2,
        "spikes": np.where(rng.random(n_ids) < 0.02, 30.0, -30.0) + normal,
        "zeros": np.where(rng.random(n_ids) < 0.5, -0.0, 0.0) + np.where(normal > 1.5, 1e-40, 0),
        "wide": normal * 10.0 ** rng.uniform(-30, 30, n_ids),
        "masked": np.where(rng.random(n_ids) < 0.95, -math.inf, normal),
    }[shape]
    logits[rng.integers(n_ids)] = draw(st.sampled_from([0.0, -1.0, 2.5]))
    return Case(
        logits.astype(np.float32),
        temperature=draw(st.sampled_from([1e-4, 0.3, 0.7, 1.0, 2.0])),
        top_k=draw(st.sampled_from([1, 2, 50, max(1, n_ids - 1), n_ids, n_ids + 1, ALL])),
        top_p=draw(st.sampled_from([1e-300, 1e-9, 1 - 2.0**-53, 1.0]) | st.floats(0.01, 0.99)),
        min_p=draw(st.sampled_from([0.0, 0.0, 1e-300, 1e-3, 0.2, 1.0])),
    )


@overflowing
@settings(max_examples=150)
@given(adversarial_cases())
def test_adversarial_rows_are_filtered_as_sorting_does(case: Case) -> None:
    n_edges = n_edges_after_check(case, floors([case])[0])
    # Each of those to come has at least its share of 1 - p.
    assert n_edges <= 1 or case.top_p > 0.99


@triton.jit
def exponential_kernel(arguments, powers, lanes: tl.constexpr) -> None:  # noqa: ANN001
    place = tl.program_id(0) * lanes + tl.arange(0, lanes)
    tl.store(powers + place, _exponential(tl.load(arguments + place)))


@triton.jit
def rank_kernel(logits, ranks, back, lanes: tl.constexpr) -> None:  # noqa: ANN001
    lane = tl.arange(0, lanes)
    rank = _rank(tl.load(logits + lane))
    tl.store(ranks + lane, rank)
    tl.store(back + lane, _logit_of_rank(rank))


def test_the_exponential_is_accurate_and_that_of_zero_exact() -> None:
    arguments = -np.append(np.linspace(0, 87, 2**18 - 2**10), np.geomspace(1e-9, 1, 2**10))
    arguments = arguments.astype(np.float32)
    powers = torch.empty(2**18, device=DEVICE)
    lanes = 1024 if ON_GPU else 2**18
    exponential_kernel[(2**18 // lanes,)](on_device(arguments), powers, lanes=lanes)
    error = powers.cpu().numpy() / np.exp(arguments.astype(np.float64)) - 1
    assert np.abs(error).max() < 2e-7
    assert powers[0] == 1.0


def test_far_below_the_likeliest_the_exponential_is_zero() -> None:
    arguments = np.array([-87.5, -1e30, -math.inf, -87.0], dtype=np.float32)
    powers = torch.empty(4, device=DEVICE)
    exponential_kernel[(1,)](on_device(arguments), powers, lanes=4)
    assert powers[:3].tolist() == [0.0] * 3
    assert powers[3] > 0


def test_ranks_are_ordered_as_floats_are_and_lead_back() -> None:
    largest = np.finfo(np.float32).max
    positive = np.array([0.0, 1e-45, 1e-38, 0.5, 1.0, 3.0, largest], dtype=np.float32)
    logits = np.concatenate([[-math.inf], -positive[::-1], positive, [math.inf]])
    logits = logits.astype(np.float32)
    ranks = torch.empty(16, dtype=torch.int32, device=DEVICE)
    back = torch.empty(16, device=DEVICE)
    rank_kernel[(1,)](on_device(logits), ranks, back, lanes=16)
    steps = np.diff(ranks.cpu().numpy().astype(np.int64))
    assert np.array_equal(steps > 0, logits[1:] > logits[:-1])
    assert np.array_equal(back.cpu().numpy(), logits)


@pytest.mark.gpu
def test_captured_filters_follow_their_logits() -> None:
    cases = [Case(row, top_k=70, top_p=0.9, min_p=0.01) for row in random_logits(3, 5000)]
    filters = filters_of(cases)
    of_rows = [
        on_device(array)
        for array in (filters.temperatures, filters.top_k, filters.top_p, filters.min_p)
    ]
    logits = torch.zeros(3, 5000, device=DEVICE)
    find_floors(logits, *of_rows)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = find_floors(logits, *of_rows)
    logits.copy_(on_device(np.stack([case.logits for case in cases])))
    graph.replay()
    assert np.array_equal(found.cpu().numpy(), floors(cases))
