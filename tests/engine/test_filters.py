import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tokenmark.engine.filters import apply_filters
from tokenmark.engine.request import SamplingParams


def kept(logits: list[float], **options: float) -> list[int]:
    params = SamplingParams(max_tokens=1, **options)  # type: ignore[arg-type]
    filtered = apply_filters(torch.tensor(logits, dtype=torch.float32), params)
    return torch.isfinite(filtered).nonzero()[:, 0].tolist()


def test_temperature_divides() -> None:
    logits = torch.tensor([1.0, -2.0, 0.5])
    filtered = apply_filters(logits, SamplingParams(max_tokens=1, temperature=0.5))
    assert filtered.tolist() == [2.0, -4.0, 1.0]


@pytest.mark.parametrize("seed", range(20))
def test_filters_agree_with_the_reference_warpers(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(1, 500, generator=generator)
    none = torch.zeros(1, 0, dtype=torch.long)
    for k, p, m in ((7, 1.0, 0.0), (500, 0.9, 0.0), (50, 0.5, 0.0), (50, 0.95, 0.2), (3, 1.0, 0.5)):
        expected = TopKLogitsWarper(k)(none, logits)
        expected = TopPLogitsWarper(p)(none, expected) if p < 1 else expected
        expected = MinPLogitsWarper(m)(none, expected) if m else expected
        params = SamplingParams(max_tokens=1, top_k=k, top_p=p, min_p=m)
        assert torch.equal(apply_filters(logits[0], params), expected[0])


def test_ties_stay_or_go_together() -> None:
    assert kept([1.0, 3.0, 1.0, 1.0, 0.0], top_k=2) == [0, 1, 2, 3]
    assert kept([0.0, 0.0, 0.0, 0.0], top_p=0.3) == [0, 1, 2, 3]
    assert kept([5.0, 0.0, 0.0], top_p=0.5) == [0]


@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40),
    st.integers(1, 50),
    st.floats(1e-6, 1),
    st.floats(0, 1),
)
def test_the_likeliest_candidate_always_stays(
    logits: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    left = kept(logits, top_k=top_k, top_p=top_p, min_p=min_p)
    assert int(np.argmax(np.array(logits, dtype=np.float32))) in left
    assert len(left) >= 1


def test_masked_ids_stay_masked() -> None:
    left = kept([-math.inf, 1.0, -math.inf, 0.9], top_k=3, top_p=0.99, min_p=0.01)
    assert left == [1, 3]


def test_a_top_p_that_is_nothing_in_float32_keeps_the_likeliest() -> None:
    assert kept([0.0, 2.0, 1.0], top_p=1e-300) == [1]
