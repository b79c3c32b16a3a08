"""The keyed bits (g-values) of SynthID-Text marks, after both of its public recipes.

Knows nothing of scores or text. Both recipes hash with one linear congruential step an id, in
wrapping signed 64-bit integers, then once more with the key of each depth:

    "iv"      starts from a digest of the keys and scrambles on: DeepMind's repository since June
              2025 (commit 32197c3).
    "table"   starts from 1 and looks the bit up: Hugging Face Transformers, and the PyPI releases
              0.1 to 0.2.1 of synthid-text. The table is that of a CPU; a GPU draws another.

An n-gram is a context, oldest id first, and the token after it. Hash contexts, which alone decide
about repetition, with the same start as n-grams.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.watermark.prf import mersenne

__all__ = [
    "TABLE_START",
    "before_first",
    "iv_g_values",
    "iv_start",
    "repeated_contexts",
    "sampling_table",
    "table_g_values",
    "window_hashes",
]

Hashes = NDArray[np.int64]
Bits = NDArray[np.uint8]

TABLE_START: Final = 1
"""What hashes start from in the table recipe."""

_MULTIPLIER: Final = np.uint64(6364136223846793005)
_ONE: Final = np.uint64(1)
_IV_ROUNDS: Final = 12
_IV_SHIFT: Final = np.int64(64 // _IV_ROUNDS)
_IV_BIT: Final = np.uint64(30)


def iv_start(keys: Sequence[int]) -> int:
    """What hashes start from in the iv recipe: SHA-256 of the keys, reduced to 63 bits.

    >>> iv_start([1, 2, 3])
    5193979120863720352
    """
    digest = hashlib.sha256(np.array(keys, dtype="<i8").tobytes()).digest()
    return int.from_bytes(digest, "big") % (2**63 - 1)


def window_hashes(
    windows: NDArray[np.integer],  # [N, w], contexts or n-grams
    start: int,
) -> Hashes:  # [N]
    """One hash a window; an id is absorbed by h <- (h + id) * multiplier + 1.

    >>> window_hashes(np.array([[1, 2, 3, 4]]), TABLE_START)
    array([8268566681299659399])
    """
    state = np.full(len(windows), start, dtype=np.uint64)
    for ids in np.asarray(windows, dtype=np.int64).T:
        state = _absorb(state, ids.view(np.uint64))
    return state.view(np.int64)


def iv_g_values(
    ngrams: NDArray[np.integer],  # [N, n]
    keys: Sequence[int],  # signed 64-bit integers
) -> Bits:  # [N, depth]
    """Bit 30 of the keyed hash after twelve further steps, each cut by an arithmetic shift.

    The shifts mix little: for given keys, two bits of an n-gram can correlate by several per cent.
    """
    hashes = window_hashes(ngrams, iv_start(keys)).view(np.uint64)
    bits = np.empty((len(hashes), len(keys)), dtype=np.uint8)
    for depth, key in enumerate(_as_words(keys)):
        state = _absorb(hashes, key)
        for _ in range(_IV_ROUNDS):
            state = (_absorb(state, _ONE).view(np.int64) >> _IV_SHIFT).view(np.uint64)
        bits[:, depth] = (state >> _IV_BIT) & _ONE
    return bits


def table_g_values(
    ngrams: NDArray[np.integer],  # [N, n]
    keys: Sequence[int],  # signed 64-bit integers
    table: Bits,
) -> Bits:  # [N, depth]
    """The entry of the table at the keyed hash, modulo its size.

    With a table of 2^16 entries, ids and keys count modulo 2^16 only.
    """
    hashes = window_hashes(ngrams, TABLE_START).view(np.uint64)
    bits = np.empty((len(hashes), len(keys)), dtype=np.uint8)
    for depth, key in enumerate(_as_words(keys)):
        # NumPy's % is floor mod, as is PyTorch's: an index is never negative.
        bits[:, depth] = table[_absorb(hashes, key).view(np.int64) % len(table)]
    return bits


@lru_cache(maxsize=8)
def sampling_table(
    seed: int,
    size: int = 2**16,
) -> Bits:  # [size], not writeable
    """The table of a model on a CPU: `torch.randint(0, 2)` after `manual_seed(seed)`.

    >>> sampling_table(0)[:8]
    array([0, 1, 1, 0, 1, 1, 1, 1], dtype=uint8)
    """
    table = (mersenne.words(seed, size) & np.uint32(1)).astype(np.uint8)
    table.setflags(write=False)
    return table


def repeated_contexts(
    context_hashes: Hashes,  # [N], of consecutive positions
    *,
    history_size: int = 1024,
) -> NDArray[np.bool_]:  # [N]
    """True where a context is, by its hash, one of the `history_size` before it.

    Where fewer came before, zeros stand for the missing ones.

    >>> repeated_contexts(np.array([5, 6, 5, 0, 7, 6]), history_size=4)
    array([False, False,  True,  True, False,  True])
    """
    n_contexts = len(context_hashes)
    hashes = np.concatenate([np.zeros(history_size, dtype=np.int64), context_hashes])
    order = np.argsort(hashes, kind="stable")
    previous = np.full(hashes.size, -history_size - 1, dtype=np.int64)
    same = hashes[order[1:]] == hashes[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    distances = np.arange(hashes.size) - previous
    return distances[history_size : history_size + n_contexts] <= history_size


def before_first(
    token_ids: NDArray[np.integer],  # [T]
    end_id: int,
) -> NDArray[np.bool_]:  # [T]
    """True before the first end-of-text token, which is itself not scored.

    >>> before_first(np.array([4, 5, 2, 6]), 2)
    array([ True,  True, False, False])
    """
    return ~np.logical_or.accumulate(np.asarray(token_ids) == end_id)


def _absorb(state: NDArray[np.uint64], word: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    return (state + word) * _MULTIPLIER + _ONE


def _as_words(keys: Sequence[int]) -> NDArray[np.uint64]:  # [depth]
    return np.array(keys, dtype=np.int64).view(np.uint64)
