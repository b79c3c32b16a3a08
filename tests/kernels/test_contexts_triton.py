"""States of rows that Triton kernels make, against those of the reference."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.kernels.on_triton import DEVICE, on_device, random_logits, row_states, wide
from tokenmark.watermark.prf import chacha8, philox
from tokenmark.watermark.prf.family import Family

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from tokenmark.kernels.contexts_triton import (  # noqa: E402 - not where triton is missing
    Contexts,
    row_state,
    sources_of,
)
from tokenmark.kernels.gumbel_triton import draw_rows  # noqa: E402 - not where triton is missing

LENGTHS = [0, 1, 3, 7, 8, 9, 30]
WIDTHS = range(1, 9)
Words = NDArray[np.uint32]


@triton.jit
def state_kernel(sources, states, family: tl.constexpr, n_words: tl.constexpr) -> None:  # noqa: ANN001
    row = tl.program_id(0).to(tl.int64)
    state = row_state(sources, row, family)
    for i in tl.static_range(n_words):
        tl.store(states + row * n_words + i, state[i].to(tl.int32, bitcast=True))


def history() -> NDArray[np.int32]:
    """Rows of ids; what follows the ids of a row must not be read."""
    ids = np.random.default_rng(5).integers(2**20, size=(len(LENGTHS), 32), dtype=np.int32)
    for row, length in enumerate(LENGTHS):
        ids[row, length:] = -7
    return ids


def contexts(width: int, *, marked: list[bool], stream_key: Words) -> Contexts:
    return Contexts(
        history=on_device(history()),
        lengths=torch.tensor(LENGTHS, dtype=torch.int32, device=DEVICE),
        request_keys=on_device(row_states(Family.CHACHA8, len(LENGTHS), seed=6)),
        is_marked=torch.tensor(marked, device=DEVICE),
        stream_key=on_device(stream_key),
        width=width,
    )


def states_of(source: torch.Tensor | Contexts, family: Family) -> Words:
    states = torch.zeros(len(LENGTHS), family.state_words, dtype=torch.int32, device=DEVICE)
    state_kernel[(len(LENGTHS),)](
        sources_of(source), states, family=family.value, n_words=family.state_words
    )
    return states.cpu().numpy().view(np.uint32)


def last_ids(width: int) -> NDArray[np.int64]:  # [B, h]
    before = np.full((len(LENGTHS), width), -1)
    rows = zip(np.hstack([before, history()]), LENGTHS, strict=True)
    return np.array([row[length : length + width] for row, length in rows])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_marked_row_has_the_key_of_its_last_ids(width: int) -> None:
    stream_key = row_states(Family.CHACHA8, 1)[0]
    marked = [length >= width for length in LENGTHS]
    states = states_of(contexts(width, marked=marked, stream_key=stream_key), Family.CHACHA8)
    expected = chacha8.context_keys(stream_key, last_ids(width)[marked])
    assert sum(marked) >= 2
    assert np.array_equal(states[marked], expected)


@pytest.mark.parametrize("width", [1, 4, 5])
def test_an_ordinary_row_has_the_key_of_its_request_and_position(width: int) -> None:
    stream_key = row_states(Family.CHACHA8, 1)[0]
    marked = [row % 3 == 2 for row in range(len(LENGTHS))]
    source = contexts(width, marked=marked, stream_key=stream_key)
    expected = chacha8.ordinary_row_keys(
        row_states(Family.CHACHA8, len(LENGTHS), seed=6), np.array(LENGTHS)
    )
    ordinary = ~np.array(marked)
    assert np.array_equal(states_of(source, Family.CHACHA8)[ordinary], expected[ordinary])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_philox_row_has_the_state_of_its_last_ids_or_of_what_precedes_them(width: int) -> None:
    stream_key = row_states(Family.PHILOX, 1)[0]
    stream_key[2:] = 0
    source = contexts(width, marked=[True] * len(LENGTHS), stream_key=stream_key)
    expected = philox.row_states(stream_key[:2], last_ids(width))
    assert np.array_equal(states_of(source, Family.PHILOX), expected)


@pytest.mark.parametrize("family", Family)
def test_ready_states_are_read_as_they_are(family: Family) -> None:
    states = row_states(family, len(LENGTHS))
    assert np.array_equal(states_of(on_device(states), family), states[:, : family.state_words])


def test_no_key_is_shown() -> None:
    shown = repr(
        contexts(3, marked=[True] * len(LENGTHS), stream_key=np.arange(8, dtype=np.uint32))
    )
    assert "width=3" in shown
    assert "key" not in shown


@pytest.mark.parametrize("family", Family)
def test_a_draw_makes_the_states_that_it_could_be_given(family: Family) -> None:
    n_rows, width = len(LENGTHS), 5
    marked = np.array(LENGTHS) >= width
    stream_key = row_states(family, 1)[0]
    states = np.zeros((n_rows, 8), dtype=np.uint32)
    states[:] = chacha8.ordinary_row_keys(
        row_states(Family.CHACHA8, n_rows, seed=6), np.array(LENGTHS)
    )
    if family is Family.CHACHA8:
        states[marked] = chacha8.context_keys(stream_key, last_ids(width)[marked])
    else:
        states[marked, :5] = philox.row_states(stream_key[:2], last_ids(width)[marked])
        states[marked, 5:] = 0
    of_rows = {
        "symbols": torch.zeros(n_rows, dtype=torch.int64, device=DEVICE),
        "families": on_device(np.where(marked, family, Family.CHACHA8).astype(np.uint8)),
        "temperatures": torch.ones(n_rows, device=DEVICE),
        "floors": torch.full((n_rows,), -torch.inf, device=DEVICE),
    }
    logits = on_device(random_logits(n_rows, 700))
    source = contexts(width, marked=marked.tolist(), stream_key=stream_key)
    made, given = (
        draw_rows(
            logits,
            states,
            **of_rows,
            present={family, Family.CHACHA8},
            detailed=True,
            lanes=wide(256, 128),
        )
        for states in (source, on_device(states))
    )
    assert made.words is not None
    assert given.words is not None
    assert torch.equal(made.ids, given.ids)
    assert torch.equal(made.words, given.words)
