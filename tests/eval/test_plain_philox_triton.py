"""The plain kernel against the NumPy reference: compiled on a GPU, else interpreted."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.kernels.on_triton import DEVICE, on_device
from tokenmark.eval.plain_philox_triton import plain_draw, words_of_ids
from tokenmark.eval.reference_draw import check_ids, reference_draws
from tokenmark.kernels.rows import Filters, RowKeys
from tokenmark.watermark.prf import philox
from tokenmark.watermark.prf.family import Family

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

# The reference takes its logarithms elsewhere; closer races may end otherwise.
NEAR_TIE = 1e-4


@triton.jit
def words_kernel(state, words, n_words: tl.constexpr) -> None:  # noqa: ANN001
    ids = tl.arange(0, n_words)
    tl.store(words + ids, words_of_ids(state, ids).to(tl.int32, bitcast=True))


def keys_of(n_rows: int) -> RowKeys:
    contexts = np.arange(4 * n_rows, dtype=np.int64).reshape(n_rows, 4) - 1
    stream_key = np.array([42, 7], dtype=np.uint32)
    return RowKeys.of_family(Family.PHILOX, philox.row_states(stream_key, contexts))


def test_its_words_are_those_of_the_recipe() -> None:
    keys = keys_of(1)
    words = torch.empty(4096, dtype=torch.int32, device=DEVICE)
    words_kernel[(1,)](on_device(keys.states), words, n_words=4096)
    expected = philox.words(keys.states[:, : philox.ROW_STATE_WORDS], 4096)[0]
    assert (words.cpu().numpy().view(np.uint32) == expected).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_ids", [1, 6, 1023, 1024, 1025, 5000])
def test_its_winners_are_those_of_the_reference(n_ids: int, dtype: torch.dtype) -> None:
    keys = keys_of(5)
    generator = torch.Generator().manual_seed(n_ids)
    logits = (2 * torch.randn(5, n_ids, generator=generator)).to(dtype)
    ids = plain_draw(logits.to(DEVICE), on_device(keys.states)).cpu().numpy()
    wanted = reference_draws(logits.float().numpy(), keys, Filters.none(5))
    assert (wanted.gaps > NEAR_TIE).sum() >= 4
    check_ids(ids, wanted, near_tie=NEAR_TIE)


def test_a_tie_goes_to_the_lowest_id() -> None:
    # With logits so large nothing of the noise is left.
    logits = torch.full((1, 3000), 2.0**40, device=DEVICE)
    logits[0, :1500] = 0
    assert plain_draw(logits, on_device(keys_of(1).states)).tolist() == [1500]


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tokenmark.eval.plain_philox_triton import _block_kernel, _empty_kernel, _row_kernel

def compile(kernel, types, constants):
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    signature |= {name: "constexpr" for name in constants}
    triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32))

types = dict(logits="*bf16", states="*i32", values="*fp32", winners="*i64")
types |= dict(winners_of_blocks="*i64")
compile(_block_kernel, types, dict(block=1024))
compile(_row_kernel, types, dict(width=128))
compile(_empty_kernel, {}, {})
"""


@pytest.mark.slow
def test_its_kernels_compile_without_a_device(tmp_path: Path) -> None:
    # The interpreter runs what Triton refuses.
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
