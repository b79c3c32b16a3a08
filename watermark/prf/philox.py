"""The keyed words of vLLM's Gumbel marks: Philox4x32-10 (Random123) over contexts and ids.

Knows nothing of logits, scores or text. The version string of the recipe is "philox4x32-10-v1" in
its released mapping, which serves four token ids from one call.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["ROW_STATE_WORDS", "philox4x32", "row_states", "uniform_f32", "words", "words_at"]

Words = NDArray[np.uint32]

ROW_STATE_WORDS: Final = 5
"""Words in a row state: three of the counter, two of the key."""

_MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_BUMPS: Final = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_CONTEXT_TAG: Final = 0x574D4358  # ASCII "WMCX"
_TOKEN_TAG: Final = np.uint32(0x574D544B)  # ASCII "WMTK"
_FILL: Final = 0xFFFFFFFF


def _high_low(product: NDArray[np.uint64]) -> tuple[Words, Words]:
    return (product >> np.uint64(32)).astype(np.uint32), product.astype(np.uint32)


def philox4x32(
    counters: Words,  # [N, 4]
    keys: Words,  # [N, 2]
    *,
    rounds: int = 10,
) -> Words:  # [N, 4]
    """The Philox4x32 bijection of Salmon et al. (SC 2011), Random123 layout."""
    c0, c1, c2, c3 = (counters[:, i] for i in range(4))
    k0, k1 = keys[:, 0], keys[:, 1]
    for number in range(rounds):
        if number:
            k0, k1 = k0 + _KEY_BUMPS[0], k1 + _KEY_BUMPS[1]
        high0, low0 = _high_low(_MULTIPLIERS[0] * c0.astype(np.uint64))
        high1, low1 = _high_low(_MULTIPLIERS[1] * c2.astype(np.uint64))
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return np.stack([c0, c1, c2, c3], axis=1)


def row_states(
    stream_key: Words,  # [2], low word first
    contexts: NDArray[np.integer],  # [N, h], ids mod 2^32, start padding -1
) -> Words:  # [N, 5]
    """The state that a context leaves: counter words 1..3, then both key words of the token call.

    Contexts are absorbed four ids a block, oldest first; a short last block is filled with
    0xFFFFFFFF minus its index.
    """
    n_contexts, width = contexts.shape
    ids = np.asarray(contexts, dtype=np.int64).astype(np.uint32)
    state = np.tile(np.array([_CONTEXT_TAG, width, 0, 0], dtype=np.uint32), (n_contexts, 1))
    for offset in range(0, width, 4):
        block = np.tile(_FILL - np.arange(4, dtype=np.uint32), (n_contexts, 1))
        group = ids[:, offset : offset + 4]
        block[:, : group.shape[1]] = group
        key = stream_key ^ np.array([offset, 0], dtype=np.uint32)
        state = philox4x32(state ^ block, np.broadcast_to(key, (n_contexts, 2)))
    token_keys = np.stack(
        [stream_key[0] ^ state[:, 3], np.full(n_contexts, stream_key[1] ^ _TOKEN_TAG)], axis=1
    )
    return np.concatenate([state[:, 0:3], token_keys], axis=1)


def words_at(
    states: Words,  # [N, 5]
    indices: NDArray[np.integer],  # [N]
) -> Words:  # [N]
    """The word of token id `indices[i]` in row i."""
    index = np.asarray(indices, dtype=np.int64).astype(np.uint32)
    counters = np.concatenate([(index >> np.uint32(2))[:, None], states[:, 0:3]], axis=1)
    outputs = philox4x32(counters, states[:, 3:5])
    lane = (index & np.uint32(3)).astype(np.int64)
    return np.take_along_axis(outputs, lane[:, None], axis=1)[:, 0]


def words(
    states: Words,  # [N, 5]
    n_words: int,
) -> Words:  # [N, n_words]
    """The words of token ids 0 .. n_words - 1 of each row, four ids a call."""
    n_rows, n_calls = states.shape[0], -(-n_words // 4)
    counters = np.empty((n_rows, n_calls, 4), dtype=np.uint32)
    counters[:, :, 0] = np.arange(n_calls, dtype=np.uint32)
    counters[:, :, 1:] = states[:, None, 0:3]
    keys = np.repeat(states[:, 3:5], n_calls, axis=0)
    outputs = philox4x32(counters.reshape(-1, 4), keys)
    return outputs.reshape(n_rows, 4 * n_calls)[:, :n_words]


def uniform_f32(word: Words) -> NDArray[np.float32]:
    """u = fp32((m + 1) / (2^24 + 1)) for m the top 24 bits: never 0, never 1."""
    mantissa = (word >> np.uint32(8)).astype(np.float64)
    return ((mantissa + 1.0) / (2.0**24 + 1.0)).astype(np.float32)
