"""The states of rows as Triton kernels come by them: ready ones, or made where a row is drawn.

Knows nothing of logits, nor which positions are marked. States made here are bit for bit those of
`chacha8.context_keys`, `chacha8.ordinary_row_keys` and `philox.row_states`.
"""

from dataclasses import dataclass, field

import triton
import triton.language as tl
from torch import Tensor

from tokenmark.kernels.rows import STATE_WORDS
from tokenmark.kernels.words_triton import PHILOX, hchacha8, philox4x32
from tokenmark.watermark.prf.family import Family

__all__ = ["Contexts", "row_state", "sources_of"]

_STATE_WORDS = tl.constexpr(STATE_WORDS)
_PHILOX_WORDS = tl.constexpr(Family.PHILOX.state_words)
_CONTEXT_TAG = tl.constexpr(0x574D4358)
_TOKEN_TAG = tl.constexpr(0x574D544B)


@dataclass(frozen=True, slots=True, eq=False)
class Contexts:
    """What the states of a batch are made from, all contiguous on the device of the logits.

    A marked row is drawn after the last `width` ids of its history, which -1 precedes; any other
    is a ChaCha8 row of its request's key and its position.
    """

    history: Tensor  # [B, L] int32, the ids generated so far; what follows them is not read
    lengths: Tensor  # [B] int32, how many those are
    request_keys: Tensor = field(repr=False)  # [B, 8] int32
    is_marked: Tensor  # [B] bool
    stream_key: Tensor = field(repr=False)  # [8] int32, of the mark; one of philox ends in zeros
    width: int


def sources_of(states: Tensor | Contexts) -> tuple[Tensor | int, ...]:
    """What a kernel takes for `row_state`: one tensor of ready states, or seven things."""
    if isinstance(states, Tensor):
        return (states,)
    return (
        states.history,
        states.history.shape[1],
        states.lengths,
        states.request_keys,
        states.is_marked,
        states.stream_key,
        states.width,
    )


@triton.jit
def _words(pointer: tl.tensor, n_words: tl.constexpr) -> tl.tuple:
    words: tl.tuple = ()
    for i in tl.static_range(n_words):
        word = tl.load(pointer + i).to(tl.uint32, bitcast=True)
        words = words + (word,)  # noqa: RUF005 - Triton compiles no starred expression
    return words


@triton.jit
def _id_before(
    history: tl.tensor, length: tl.tensor, n_back: tl.tensor, filling: tl.constexpr
) -> tl.tensor:
    """The id `n_back` positions before the next one; for a number below 1 the filling."""
    place = length - n_back
    bits = tl.load(history + place, mask=(n_back > 0) & (place >= 0), other=-1)
    return tl.where(n_back > 0, bits, filling).to(tl.uint32, bitcast=True)


@triton.jit
def _chacha8_state(sources: tl.tuple, row: tl.tensor) -> tl.tuple:
    history, history_stride, lengths, request_keys, is_marked, stream_key, width = sources
    row_history = history + row * history_stride
    length = tl.load(lengths + row)
    has_mark = tl.load(is_marked + row) != 0
    key = _words(tl.where(has_mark, stream_key, request_keys + row * _STATE_WORDS), _STATE_WORDS)
    # An ordinary row absorbs one group: its position, filled up like a context of one id.
    n_absorbed = tl.where(has_mark, width, 1)
    for start in range(0, n_absorbed, 4):
        group: tl.tuple = ()
        for j in tl.static_range(4):
            n_back = tl.where(has_mark, width - start, 0) - j
            word = _id_before(row_history, length, n_back, -1)
            if j == 0:
                word = tl.where(has_mark, word, length.to(tl.uint32, bitcast=True))
            group = group + (word,)  # noqa: RUF005 - Triton compiles no starred expression
        key = hchacha8(key, group)
    return key


@triton.jit
def _philox_state(sources: tl.tuple, row: tl.tensor) -> tl.tuple:
    history, history_stride, lengths, _, _, stream_key, width = sources
    row_history = history + row * history_stride
    length = tl.load(lengths + row)
    k0, k1 = _words(stream_key, 2)
    zero = tl.full((), 0, tl.uint32)
    c0, c1, c2, c3 = zero + _CONTEXT_TAG, zero + width, zero, zero
    for start in range(0, width, 4):
        n_back = width - start
        c0 = c0 ^ _id_before(row_history, length, n_back, -1)
        c1 = c1 ^ _id_before(row_history, length, n_back - 1, -2)
        c2 = c2 ^ _id_before(row_history, length, n_back - 2, -3)
        c3 = c3 ^ _id_before(row_history, length, n_back - 3, -4)
        c0, c1, c2, c3 = philox4x32((c0, c1, c2, c3), (k0 ^ (zero + start), k1))
    return c0, c1, c2, k0 ^ c3, k1 ^ _TOKEN_TAG


@triton.jit
def row_state(sources: tl.tuple, row: tl.tensor, family: tl.constexpr) -> tl.tuple:
    """The state of a row of that family, as unsigned words: 8 of chacha8, 5 of philox."""
    if len(sources) == 1:
        n_words: tl.constexpr = _PHILOX_WORDS if family == PHILOX else _STATE_WORDS
        state = _words(sources[0] + row * _STATE_WORDS, n_words)
    elif family == PHILOX:
        state = _philox_state(sources, row)
    else:
        state = _chacha8_state(sources, row)
    return state
