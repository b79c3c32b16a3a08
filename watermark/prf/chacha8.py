"""The keyed words of scheme tm1: HChaCha8 over contexts, ChaCha8 blocks over vocabulary ids.

Knows nothing of logits, scores or text. Every function works on many rows at once and on unsigned
32-bit integers only. The round count is a parameter so that the published 20-round vectors
(RFC 8439; the XChaCha draft) check the very code that the 8-round scheme runs.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "KEYSTREAM_WORDS",
    "chacha_block",
    "context_keys",
    "hchacha",
    "keystream",
    "ordinary_row_keys",
    "payload_slots",
    "words_at",
]

Words = NDArray[np.uint32]

KEYSTREAM_WORDS: Final = 2**20
"""Number of words in the keystream of one context, and the bound on token ids."""

_CONSTANTS: Final = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
_FILL: Final = 0xFFFFFFFF
_TILE_COUNTERS: Final = 128
_WORDS_PER_BLOCK: Final = 16
_TILE_WORDS: Final = _TILE_COUNTERS * _WORDS_PER_BLOCK
# The first counter past the keystream: the slot of a position must not depend on a drawn word.
_SLOT_COUNTER: Final = KEYSTREAM_WORDS // _WORDS_PER_BLOCK

# The order of rows that are shifted; np.roll takes ten times as long on few columns.
_UP_ONE, _UP_TWO, _UP_THREE = (np.roll(np.arange(4), -shift) for shift in (1, 2, 3))


def _add_xor_rotate(a: Words, b: Words, d: Words, bits: int) -> tuple[Words, Words]:
    a = a + b
    d = d ^ a
    return a, (d << np.uint32(bits)) | (d >> np.uint32(32 - bits))


def _quarter_rounds(a: Words, b: Words, c: Words, d: Words) -> tuple[Words, Words, Words, Words]:
    """The ChaCha quarter round on four columns side by side; each argument is [4, N]."""
    a, d = _add_xor_rotate(a, b, d, 16)
    c, b = _add_xor_rotate(c, d, b, 12)
    a, d = _add_xor_rotate(a, b, d, 8)
    c, b = _add_xor_rotate(c, d, b, 7)
    return a, b, c, d


def _permute(
    state: Words,  # [16, N]
    rounds: int,
) -> Words:  # [16, N]
    a, b, c, d = state[0:4], state[4:8], state[8:12], state[12:16]
    for _ in range(rounds // 2):
        a, b, c, d = _quarter_rounds(a, b, c, d)
        # A diagonal round is a column round on rows shifted by 1, 2 and 3.
        b, c, d = b[_UP_ONE], c[_UP_TWO], d[_UP_THREE]
        a, b, c, d = _quarter_rounds(a, b, c, d)
        b, c, d = b[_UP_THREE], c[_UP_TWO], d[_UP_ONE]
    return np.concatenate([a, b, c, d])


def _initial_state(
    keys: Words,  # [N, 8]
    tail: Words,  # [N, 4]
) -> Words:  # [16, N]
    state = np.empty((16, keys.shape[0]), dtype=np.uint32)
    state[0:4] = _CONSTANTS[:, None]
    state[4:12] = keys.T
    state[12:16] = tail.T
    return state


def hchacha(
    keys: Words,  # [N, 8]
    inputs: Words,  # [N, 4]
    *,
    rounds: int = 8,
) -> Words:  # [N, 8]
    """Subkeys: words 0..3 and 12..15 of the permuted state, without feed-forward.

    The construction is HChaCha20 (draft-irtf-cfrg-xchacha) with `rounds` rounds.
    """
    permuted = _permute(_initial_state(keys, inputs), rounds)
    return np.concatenate([permuted[0:4], permuted[12:16]]).T


def chacha_block(
    keys: Words,  # [N, 8]
    counters: Words,  # [N]
    *,
    nonce: tuple[int, int, int] = (0, 0, 0),
    rounds: int = 8,
) -> Words:  # [N, 16]
    """Keystream blocks: permuted state plus initial state, in the layout of RFC 8439."""
    tail = np.empty((keys.shape[0], 4), dtype=np.uint32)
    tail[:, 0] = counters
    tail[:, 1:] = np.array(nonce, dtype=np.uint32)
    state = _initial_state(keys, tail)
    return (_permute(state, rounds) + state).T


def context_keys(
    stream_key: Words,  # [8]
    contexts: NDArray[np.integer],  # [N, h]
) -> Words:  # [N, 8]
    """One 256-bit key a context: HChaCha8 chained over groups of four ids, oldest first.

    The last group is filled up with 0xFFFFFFFF, which is no token id.
    """
    n_contexts, width = contexts.shape
    keys = np.broadcast_to(stream_key, (n_contexts, 8))
    for start in range(0, width, 4):
        group = np.full((n_contexts, 4), _FILL, dtype=np.uint32)
        ids = contexts[:, start : start + 4]
        group[:, : ids.shape[1]] = ids
        keys = hchacha(keys, group)
    return keys


def ordinary_row_keys(
    request_keys: Words,  # [N, 8]
    positions: NDArray[np.integer],  # [N]
) -> Words:  # [N, 8]
    """Row keys of unmarked draws: HChaCha8 of the request key and the position in the answer."""
    inputs = np.full((request_keys.shape[0], 4), _FILL, dtype=np.uint32)
    inputs[:, 0] = positions
    return hchacha(request_keys, inputs)


def words_at(
    row_keys: Words,  # [N, 8]
    indices: NDArray[np.integer],  # [N], each in [0, 2^20)
) -> Words:  # [N]
    """Word number `indices[i]` of the keystream of row i.

    Tiles of 2048 words are 128 consecutive counters; word j of lane l has the index
    2048·tile + 128·j + l, so that lanes read the logits in order.
    """
    index = np.asarray(indices, dtype=np.int64)
    within = index & 2047
    counters = ((index >> 11) << 7) | (within & 127)
    blocks = chacha_block(row_keys, counters.astype(np.uint32))
    return np.take_along_axis(blocks, (within >> 7)[:, None], axis=1)[:, 0]


def keystream(
    row_keys: Words,  # [N, 8]
    n_words: int,
    *,
    first: int = 0,
) -> Words:  # [N, n_words]
    """Words `first`, `first` + 1, ... of each row's keystream, which begins anew after its end.

    With a payload symbol as `first`, the columns are the vocabulary ids.
    """
    first_tile, last_tile = first >> 11, (first + n_words - 1) >> 11
    n_rows, n_tiles = row_keys.shape[0], last_tile - first_tile + 1
    counters = np.arange(first_tile * _TILE_COUNTERS, (last_tile + 1) * _TILE_COUNTERS)
    blocks = chacha_block(
        np.repeat(row_keys, counters.size, axis=0),
        np.tile(counters % _SLOT_COUNTER, n_rows).astype(np.uint32),
    ).reshape(n_rows, n_tiles, _TILE_COUNTERS, _WORDS_PER_BLOCK)
    words = blocks.transpose(0, 1, 3, 2).reshape(n_rows, n_tiles * _TILE_WORDS)
    start = first & (_TILE_WORDS - 1)
    return words[:, start : start + n_words]


def payload_slots(
    row_keys: Words,  # [N, 8]
    n_slots: int,
) -> NDArray[np.int64]:  # [N]
    """Which slot of a payload each context carries."""
    counters = np.full(row_keys.shape[0], _SLOT_COUNTER, dtype=np.uint32)
    return chacha_block(row_keys, counters)[:, 0].astype(np.int64) % n_slots
