"""The keyed residues of TextSeal's Gumbel marks: a linear form of key, context and id, mixed.

Knows nothing of logits, scores or text. A residue r stands for u = r / 8191, and large u wins.
TextSeal computes in signed integers of 64 bits that wrap around; here they are unsigned, and only
the one step that depends on the sign reads them as signed. The function is no cryptographic one:
keys and ids trade against each other in the linear form. It serves to recognise marks, not to make
new ones.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_CONTEXT_WIDTH", "RESIDUES", "row_states", "second_stream_key", "words_at"]

Words = NDArray[np.uint32]
Words64 = NDArray[np.uint64]

RESIDUES: Final = 8191
"""Residues are below it, and uniforms are fractions of it: 0 is possible, 1 is not."""

_CONTEXT_MULTIPLIERS: Final = np.array(
    [
        *(10000019, 10000247, 10000439, 10000643, 10000747),
        *(10000867, 10000993, 10001213, 10001357, 10001501),
    ],
    dtype=np.uint64,
)
_TOKEN_MULTIPLIER: Final = np.uint64(100000007)
_KEY_MULTIPLIER: Final = np.uint64(500001713)
_MIX_MULTIPLIERS: Final = (np.uint64(15485863), np.uint64(40499))
_MIX_SHIFT: Final = np.int64(13)
_SECOND_KEY_OFFSET: Final = np.uint64(12345)

MAX_CONTEXT_WIDTH: Final = _CONTEXT_MULTIPLIERS.size
"""There are no multipliers for more ids."""


def _key64(stream_key: Words) -> Words64:
    low, high = stream_key[0:1].astype(np.uint64), stream_key[1:2].astype(np.uint64)
    return low | (high << np.uint64(32))


def second_stream_key(
    stream_key: Words,  # [2], low word first
) -> Words:  # [2]
    """Key B where only key A was given. Every position needs the residues of both keys."""
    key = _key64(stream_key) + _SECOND_KEY_OFFSET
    return np.concatenate([key, key >> np.uint64(32)]).astype(np.uint32)


def row_states(
    stream_key: Words,  # [2], low word first; two's complement of a negative key
    contexts: NDArray[np.integer],  # [N, h], h <= 10; start padding, if any, is 0
) -> Words64:  # [N, 1]
    """The part of the linear form that key and context give; a 0 in the context adds nothing."""
    ids = np.asarray(contexts, dtype=np.int64).astype(np.uint64)
    weighted: Words64 = (ids * _CONTEXT_MULTIPLIERS[: ids.shape[1]]).sum(axis=1, dtype=np.uint64)
    return (weighted + _key64(stream_key) * _KEY_MULTIPLIER)[:, None]


def words_at(
    states: Words64,  # [N, 1]
    indices: NDArray[np.integer],  # [N]
) -> Words:  # [N], each in [0, 8191)
    """The residue of token id `indices[i]` in row i."""
    tokens = np.asarray(indices, dtype=np.int64).astype(np.uint64)
    mixed = (states[:, 0] + tokens * _TOKEN_MULTIPLIER) * _MIX_MULTIPLIERS[0] * _MIX_MULTIPLIERS[1]
    signed = mixed.view(np.int64)
    # The shift draws in copies of the sign bit. They cancel the sign, so that the remainder is one
    # of a number that is never negative.
    unsigned = (signed ^ (signed >> _MIX_SHIFT)).view(np.uint64)
    return (unsigned % np.uint64(RESIDUES)).astype(np.uint32)
