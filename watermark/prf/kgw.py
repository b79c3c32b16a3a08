"""The green lists of Hugging Face's KGW marks, as generated on a CPU.

Knows nothing of scores or text. An n-gram is the ids that decide about its last one, oldest first:
under "lefthash" a context and the token after it, under "selfhash" a window that ends with the
token. Marks of a model on a GPU have other lists: PyTorch permutes differently there.
"""

from collections import defaultdict
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.watermark.errors import SchemeError
from tokenmark.watermark.prf import mersenne

__all__ = ["green_list_size", "greens", "lefthash_seeds", "selfhash_seeds"]

Seeds = NDArray[np.uint64]

_SEED_MODULUS: Final = 2**64 - 1
_TABLE_SIZE: Final = 1_000_003


def green_list_size(vocab_size: int, ratio: float) -> int:
    """How many ids are green in every context; the size is that of the model's logits.

    >>> green_list_size(50257, 0.25)
    12564
    """
    if not 1 <= vocab_size < mersenne.PERMUTATION_LIMIT:
        raise SchemeError(
            f"vocab_size must be 1..{mersenne.PERMUTATION_LIMIT - 1}, got {vocab_size}; "
            "give the vocab_size of the model's configuration"
        )
    if not 0.0 < ratio < 1.0:
        raise SchemeError(f"ratio must lie between 0 and 1, got {ratio}; give the generator's")
    return int(vocab_size * ratio)


def lefthash_seeds(
    ngrams: NDArray[np.integer],  # [N, n], n >= 2
    hashing_key: int,
) -> Seeds:  # [N]
    """Seeds of the green lists: the key times the id before the last, and no other id.

    >>> lefthash_seeds(np.array([[7, 13, 5]]), 15485863)
    array([201316219], dtype=uint64)
    """
    seeds = [hashing_key * token % _SEED_MODULUS for token in ngrams[:, -2].tolist()]
    return np.array(seeds, dtype=np.uint64)


def selfhash_seeds(
    ngrams: NDArray[np.integer],  # [N, n], n >= 1
    hashing_key: int,  # a signed 64-bit integer
) -> Seeds:  # [N]
    """Seeds of the green lists: the least product of key, hash of an id and hash of the last id.

    Products wrap to signed 64 bits, so that the least is often negative.

    >>> selfhash_seeds(np.array([[1, 2, 3, 4]]), 15485863)
    array([345825892115113372], dtype=uint64)
    """
    hashes = _hash_table(hashing_key)[np.asarray(ngrams, dtype=np.int64) % _TABLE_SIZE]
    keyed = np.uint64(hashing_key % 2**64) * hashes
    least: NDArray[np.int64] = (keyed * hashes[:, -1:]).view(np.int64).min(axis=1)
    # Floor mod 2^64 - 1: only the negative ones change, and as unsigned words by one.
    return least.view(np.uint64) - (least < 0).astype(np.uint64)


def greens(
    seeds: Seeds,  # [N]
    tokens: NDArray[np.integer],  # [N]
    *,
    vocab_size: int,
    ratio: float,
) -> NDArray[np.bool_]:  # [N]
    """Whether each token is on the green list of its seed; an id past the vocabulary never is.

    Only the low 32 bits of a seed count. Rows that agree in them and in the token repeat one draw,
    whatever their n-grams are.

    >>> ngrams = np.array([[7, 7], [2048, 7]])
    >>> seeds = lefthash_seeds(ngrams, 15485863)
    >>> greens(seeds, ngrams[:, -1], vocab_size=152_000, ratio=0.25)
    array([ True, False])
    """
    n_green = green_list_size(vocab_size, ratio)
    rows_by_seed: dict[int, list[int]] = defaultdict(list)
    for row, seed in enumerate(seeds.tolist()):
        rows_by_seed[seed].append(row)
    green = np.zeros(len(tokens), dtype=np.bool_)
    for seed, rows in rows_by_seed.items():
        green[rows] = mersenne.in_permutation_head(seed, vocab_size, n_green, tokens[rows])
    return green


@lru_cache(maxsize=4)
def _hash_table(hashing_key: int) -> Seeds:  # [_TABLE_SIZE]
    """One more than a permutation that depends on the key; a moment's work, hence kept."""
    table = mersenne.permutation(hashing_key, _TABLE_SIZE).astype(np.uint64) + np.uint64(1)
    table.setflags(write=False)
    return table
