"""The words of Triton kernels, bit for bit those of the reference."""

import numpy as np
import pytest
import torch

from tests.kernels.on_triton import DEVICE, on_device, row_states, wide
from tokenmark.watermark.prf import chacha8, philox
from tokenmark.watermark.prf.family import Family

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from tokenmark.kernels.contexts_triton import row_state  # noqa: E402 - not where triton is missing
from tokenmark.kernels.words_triton import (  # noqa: E402 - not where triton is missing
    PHILOX,
    words_of_calls,
)


@triton.jit
def words_kernel(states, words, family: tl.constexpr, lanes: tl.constexpr) -> None:  # noqa: ANN001
    """The words of all calls of one row, in order of their indices."""
    n_words: tl.constexpr = 4 if family == PHILOX else 16
    step: tl.constexpr = 1 if family == PHILOX else 128
    state = row_state(states, 0, family)
    calls = tl.program_id(0) * lanes + tl.arange(0, lanes)
    of_calls, first_index = words_of_calls(state, calls, family)
    for j in tl.static_range(n_words):
        tl.store(words + first_index + j * step, of_calls[j].to(tl.int32, bitcast=True))


@pytest.mark.parametrize("family", Family)
def test_every_word_is_the_reference_word(family: Family) -> None:
    n_words = 2**20
    n_calls = n_words // (4 if family is Family.PHILOX else 16)
    states, lanes = row_states(family, 1), wide(n_calls, 128)
    words = torch.zeros(n_words, dtype=torch.int32, device=DEVICE)
    words_kernel[(n_calls // lanes,)]((on_device(states),), words, family=family.value, lanes=lanes)
    if family is Family.PHILOX:
        expected = philox.words(states[:, : family.state_words], n_words)
    else:
        expected = chacha8.keystream(states, n_words)
    assert np.array_equal(words.cpu().numpy().view(np.uint32), expected[0])
