"""The keyed words of ARBI's Gumbel marks: SplitMix64 over contexts, Philox4x32-10 over ids.

Knows nothing of logits, scores or text. A word W stands for u = (W + 1/2) / 2^32, and large u wins.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.watermark.prf.philox import philox4x32

__all__ = ["row_states", "splitmix64", "words_at"]

Words = NDArray[np.uint32]

_INCREMENT: Final = 0x9E3779B97F4A7C15
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_MASK_64: Final = 2**64 - 1
# Seeds are non-negative signed integers of 64 bits.
_SEED_MASK: Final = np.uint64(2**63 - 1)


def splitmix64(
    values: NDArray[np.uint64],  # [N]
) -> NDArray[np.uint64]:  # [N]
    """The first output of the SplitMix64 generator (Steele et al., OOPSLA 2014) on each state."""
    mixed = values + np.uint64(_INCREMENT)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MULTIPLIERS[0]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MULTIPLIERS[1]
    return mixed ^ (mixed >> np.uint64(31))


def row_states(
    stream_key: Words,  # [2], low word first
    contexts: NDArray[np.integer],  # [N, h], start padding -1
) -> Words:  # [N, 2]
    """The 63-bit seed of each context, low word first.

    Ids are absorbed oldest first, each shifted by its place in the window; -1 is 2^64 - 1.
    """
    ids = np.asarray(contexts, dtype=np.int64).astype(np.uint64)
    key = stream_key.astype(np.uint64)
    seeds = np.repeat(key[0:1] | (key[1:2] << np.uint64(32)), ids.shape[0])
    for column in range(ids.shape[1]):
        shift = np.uint64(column * _INCREMENT & _MASK_64)
        seeds = splitmix64(seeds ^ splitmix64(ids[:, column] + shift))
    seeds = seeds & _SEED_MASK
    return np.stack([seeds.astype(np.uint32), (seeds >> np.uint64(32)).astype(np.uint32)], axis=1)


def words_at(
    states: Words,  # [N, 2]
    indices: NDArray[np.integer],  # [N]
) -> Words:  # [N]
    """The word of token id `indices[i]` in row i: the first of the four of its own Philox call."""
    counters = np.zeros((states.shape[0], 4), dtype=np.uint32)
    counters[:, 0] = np.asarray(indices, dtype=np.int64).astype(np.uint32)
    return philox4x32(counters, states)[:, 0]
