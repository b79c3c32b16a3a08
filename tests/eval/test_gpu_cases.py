"""The gates of the GPU cases: with kernels compiled on a GPU, else interpreted."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.kernels.on_triton import DEVICE, row_states
from tokenmark.eval.gpu_cases import GPU_CASES, check_draw, keyed_draw, philox_draw
from tokenmark.eval.measuring import GateError
from tokenmark.kernels.rows import RowKeys
from tokenmark.watermark.prf.family import Family

DRAWS = [
    (keyed_draw, Family.CHACHA8),
    (keyed_draw, Family.PHILOX),
    (philox_draw, Family.PHILOX),
]
Make = Callable[[Tensor, RowKeys], Callable[[], Tensor]]


def rows_and_keys(family: Family) -> tuple[Tensor, RowKeys]:
    generator = torch.Generator().manual_seed(0)
    logits = (2 * torch.randn(3, 2100, generator=generator)).bfloat16().to(DEVICE)
    no_symbols = np.zeros(3, dtype=np.int64)
    families = np.full(3, family, dtype=np.uint8)
    return logits, RowKeys(row_states(family, 3), no_symbols, families)


@pytest.mark.parametrize(("make", "family"), DRAWS)
def test_each_draw_passes_its_gate(make: Make, family: Family) -> None:
    logits, keys = rows_and_keys(family)
    check_draw(make(logits, keys), logits, keys)


@pytest.mark.parametrize(("make", "family"), DRAWS)
def test_no_draw_passes_with_other_keys(make: Make, family: Family) -> None:
    logits, keys = rows_and_keys(family)
    other = RowKeys(keys.states[::-1].copy(), keys.symbols, keys.families)
    with pytest.raises(GateError, match="drew id"):
        check_draw(make(logits, other), logits, keys)


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_CASES)
def test_every_case_runs(name: str, tmp_path: Path) -> None:
    run = GPU_CASES[name].prepare(tmp_path)()
    assert 1e-7 < run.seconds < 1e-2
