"""The keyed words of SGLang's Gumbel marks: 32-bit MurmurHash3, seed 0, over words of 32 bits.

Knows nothing of logits, scores or text. A word W stands for u = (W + 1/2) / 2^32, and large u wins.
A row state is the hash after the key and the 32-bit context hash: contexts that collide there share
all their words. Contexts may be shorter than the window, where the text has just begun; a row of
them is filled up with -1 on the left, and fillings are not hashed. SGLang never marks a position
without any context, so the words of a row that is all filling mean nothing.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MAX_MARKED_CONTEXTS",
    "coins",
    "context_hashes",
    "dual_row_states",
    "row_states",
    "words_at",
]

Words = NDArray[np.uint32]

MAX_MARKED_CONTEXTS: Final = 4096
"""Distinct contexts of one request after which SGLang marks no more."""

_MULTIPLIERS: Final = (np.uint32(0xCC9E2D51), np.uint32(0x1B873593))
_STATE_MULTIPLIER: Final = np.uint32(5)
_STATE_INCREMENT: Final = np.uint32(0xE6546B64)
_FINAL_MULTIPLIERS: Final = (np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35))
_WORD_BYTES: Final = np.uint32(4)
# Key, context hash and token; both keys and context hash.
_TOKEN_BYTES: Final = np.uint32(16)
_COIN_BYTES: Final = np.uint32(20)


def _rotate_left(words: Words, bits: int) -> Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _absorb(states: Words, words: Words) -> Words:
    mixed = _rotate_left(words * _MULTIPLIERS[0], 15) * _MULTIPLIERS[1]
    return _rotate_left(states ^ mixed, 13) * _STATE_MULTIPLIER + _STATE_INCREMENT


def _finish(states: Words, n_bytes: Words | np.uint32) -> Words:
    states = states ^ n_bytes
    states = (states ^ (states >> np.uint32(16))) * _FINAL_MULTIPLIERS[0]
    states = (states ^ (states >> np.uint32(13))) * _FINAL_MULTIPLIERS[1]
    return states ^ (states >> np.uint32(16))


def context_hashes(
    contexts: NDArray[np.integer],  # [N, h], oldest first; -1 on the left where there is no id
) -> Words:  # [N]
    """All that a word knows of its context; SGLang's generator also tells repeats apart by it."""
    ids = np.asarray(contexts, dtype=np.int64)
    is_id = ids >= 0
    states = np.zeros(ids.shape[0], dtype=np.uint32)
    for column in range(ids.shape[1]):
        absorbed = _absorb(states, ids[:, column].astype(np.uint32))
        states = np.where(is_id[:, column], absorbed, states)
    return _finish(states, is_id.sum(axis=1, dtype=np.uint32) * _WORD_BYTES)


def _keyed(low: Words, high: Words, hashes: Words) -> Words:
    start = np.zeros(hashes.shape, dtype=np.uint32)
    return _absorb(_absorb(_absorb(start, low), high), hashes)[:, None]


def row_states(
    stream_key: Words,  # [2], low word first
    contexts: NDArray[np.integer],  # [N, h], as in `context_hashes`
) -> Words:  # [N, 1]
    """The state that a key and a context leave."""
    return _keyed(stream_key[0:1], stream_key[1:2], context_hashes(contexts))


def coins(
    stream_keys: Words,  # [4]: key A, key B, each low word first
    hashes: Words,  # [N], context hashes
) -> Words:  # [N]
    """The words that choose between two keys, without regard to the token.

    The key is A where the coin is below floor(P 2^32), for P the share of A; else it is B.
    """
    states = np.zeros(hashes.shape, dtype=np.uint32)
    for index in range(4):
        states = _absorb(states, stream_keys[index : index + 1])
    return _finish(_absorb(states, hashes), _COIN_BYTES)


def dual_row_states(
    stream_keys: Words,  # [4]: key A, key B, each low word first
    contexts: NDArray[np.integer],  # [N, h], as in `context_hashes`
    *,
    threshold: int,
) -> Words:  # [N, 1]
    """The state that a context leaves with the key that its coin chooses at this threshold."""
    hashes = context_hashes(contexts)
    is_a = coins(stream_keys, hashes) < np.uint32(threshold)
    low = np.where(is_a, stream_keys[0], stream_keys[2])
    high = np.where(is_a, stream_keys[1], stream_keys[3])
    return _keyed(low, high, hashes)


def words_at(
    states: Words,  # [N, 1]
    indices: NDArray[np.integer],  # [N]
) -> Words:  # [N]
    """The word of token id `indices[i]` in row i; within a row no two ids share a word."""
    tokens = np.asarray(indices, dtype=np.int64).astype(np.uint32)
    return _finish(_absorb(states[:, 0], tokens), _TOKEN_BYTES)
