"""What tests of Triton kernels share: compiled on a GPU, else interpreted, which takes Triton."""

import os

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tokenmark.kernels.rows import STATE_WORDS
from tokenmark.watermark.prf.family import Family

ON_GPU = torch.cuda.is_available()
# Before triton is imported: it decides when a kernel is defined.
os.environ.setdefault("TRITON_INTERPRET", "0" if ON_GPU else "1")

# Whatever imports this module is skipped where triton is missing.
tl = pytest.importorskip("triton.language", reason="Triton has no release for this platform")

if not ON_GPU:
    interpreted = pytest.importorskip("triton.runtime.interpreter").InterpretedFunction
    if not isinstance(tl.max, interpreted):
        raise RuntimeError(
            "triton was imported too early; set TRITON_INTERPRET=1 for the whole run"
        )

DEVICE = torch.device("cuda" if ON_GPU else "cpu")


def on_device(array: NDArray[np.generic]) -> torch.Tensor:
    signed = array.view(np.int32) if array.dtype == np.uint32 else array
    return torch.from_numpy(signed).to(DEVICE)


def wide(n_lanes: int, on_gpu: int) -> int:
    """Lanes for so many at once: an interpreted operation costs the same at any width."""
    return on_gpu if ON_GPU else min(2**16, 1 << max(n_lanes - 1, 0).bit_length())


def row_states(family: Family, n_rows: int, *, seed: int = 1) -> NDArray[np.uint32]:  # [B, 8]
    shape = (n_rows, STATE_WORDS)
    states = np.random.default_rng(seed).integers(2**32, size=shape, dtype=np.uint32)
    states[:, family.state_words :] = 0
    return states


def random_logits(n_rows: int, vocabulary_size: int, *, seed: int = 2) -> NDArray[np.float32]:
    shape = (n_rows, vocabulary_size)
    return 2 * np.random.default_rng(seed).normal(size=shape).astype(np.float32)
