import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokenmark.engine.filters import filters_of
from tokenmark.engine.request import SamplingParams
from tokenmark.kernels.gumbel import draw
from tokenmark.kernels.rows import RowKeys
from tokenmark.watermark.prf.family import Family


def params(**options: float) -> SamplingParams:
    return SamplingParams(max_tokens=1, **options)  # type: ignore[arg-type]


def kept(logits: list[float], **options: float) -> list[int]:
    """The candidates that are left of a row, by the kernel that draws."""
    row = torch.tensor([logits], dtype=torch.float32)
    keys = RowKeys.of_family(Family.CHACHA8, np.zeros((1, 8), dtype=np.uint32))
    floor = draw(row, keys, filters_of([params(**options)])).floors
    temperature = options.get("temperature", 1.0)
    stays = (row / temperature >= floor) & (row > -math.inf)
    return stays[0].nonzero()[:, 0].tolist()


def test_each_row_has_what_its_parameters_ask_for() -> None:
    filters = filters_of(
        [params(), params(temperature=0.5, top_k=3), params(top_p=0.9, min_p=0.1), params(top_k=1)]
    )
    assert filters.temperatures.tolist() == [1, 0.5, 1, 1]
    assert filters.top_k[1:].tolist() == [3, filters.top_k[0], 1]
    assert filters.top_k[0] >= 2**62
    assert filters.top_p.tolist() == [1, 1, 0.9, 1]
    assert filters.min_p.tolist() == [0, 0, 0.1, 0]
    filters.check(4)


def test_a_greedy_row_keeps_its_likeliest_ids() -> None:
    filters = filters_of([params(temperature=0.0, top_p=0.1), params(temperature=9e-5)])
    assert filters.top_k.tolist() == [1, 1]
    assert filters.temperatures.tolist() == [1, 1]


def test_a_top_k_beyond_any_integer_type_keeps_all() -> None:
    assert kept([1.0, 2.0, 0.0], top_k=10**30) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"top_k": 2}, [0, 1, 2, 3]),
        ({"top_k": 1}, [1]),
        ({"top_p": 0.6}, [1]),
        ({"top_p": 0.9}, [0, 1, 2, 3]),
        ({"min_p": 0.1}, [0, 1, 2, 3]),
        ({"min_p": 0.2}, [1]),
        ({"min_p": 0.1, "temperature": 0.5}, [1]),
    ],
)
def test_ties_stay_or_go_together(options: dict[str, float], expected: list[int]) -> None:
    assert kept([1.0, 3.0, 1.0, 1.0, -2.0], **options) == expected


@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40),
    st.integers(1, 50),
    st.floats(1e-300, 1),
    st.floats(0, 1),
)
def test_the_likeliest_candidate_always_stays(
    logits: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    left = kept(logits, top_k=top_k, top_p=top_p, min_p=min_p)
    assert int(np.argmax(np.array(logits, dtype=np.float32))) in left


def test_masked_ids_stay_masked() -> None:
    left = kept([-math.inf, 1.0, -math.inf, 0.9], top_k=3, top_p=0.99, min_p=0.01)
    assert left == [1, 3]
