"""Recipes whose evidence is bits: the g-values of SynthID-Text, the green lists of KGW.

Knows nothing of text. Both are marks of Hugging Face's transformers, of models that ran on a CPU:
on a GPU the tables and permutations come from the device's own generator.
"""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.watermark.errors import SchemeError
from tokenmark.watermark.key import KeyForm, WatermarkKey
from tokenmark.watermark.null_law import BitLaw, CountLaw
from tokenmark.watermark.prf import kgw, synthid
from tokenmark.watermark.prf.mersenne import PERMUTATION_LIMIT
from tokenmark.watermark.profile import (
    VOCABULARY_SIZE,
    Integers,
    Parameter,
    Profile,
    Scores,
    Settings,
)

__all__ = ["BIT_PROFILES"]

_TABLE_SIZE: Final = 2**16
_RATIO: Final = "greenlist_ratio"
# The g-values of so many n-grams stand for all: a probability of 1e-2 is known to 2 %.
_N_SAMPLED: Final = 2**18


def _ngrams(contexts: Integers, ids: Integers) -> NDArray[np.int64]:  # [N, h + 1]
    return np.concatenate([contexts, ids[:, None]], axis=1).astype(np.int64)


def _table_g_values(ngrams: Integers, keys: tuple[int, ...]) -> NDArray[np.uint8]:
    if len({key % _TABLE_SIZE for key in keys}) < len(keys):
        raise SchemeError(
            f"keys of synthid-table-cpu count modulo {_TABLE_SIZE}, and two of these are equal so; "
            "check that all were given"
        )
    return synthid.table_g_values(ngrams, keys, synthid.sampling_table(0, _TABLE_SIZE))


def _table_draws(
    _key: WatermarkKey, _settings: Settings, contexts: Integers, ids: Integers
) -> NDArray[np.int64]:
    """N-grams count by their hash modulo the table's size."""
    hashes = synthid.window_hashes(_ngrams(contexts, ids), synthid.TABLE_START)
    return (hashes % _TABLE_SIZE).astype(np.int64)[:, None]


def _table_scores(
    key: WatermarkKey, _settings: Settings, contexts: Integers, ids: Integers
) -> Scores:
    return _counts(_table_g_values(_ngrams(contexts, ids), key.reveal_integers()))


def _iv_scores(key: WatermarkKey, _settings: Settings, contexts: Integers, ids: Integers) -> Scores:
    return _counts(synthid.iv_g_values(_ngrams(contexts, ids), key.reveal_integers()))


def _counts(bits: NDArray[np.uint8]) -> Scores:  # [N, depth] -> [N]
    return np.asarray(bits.sum(axis=1), dtype=np.float64)


@lru_cache(maxsize=64)
def _table_law(key: WatermarkKey) -> CountLaw:
    """Exact: one-id windows reach every state of the table once."""
    states = np.arange(_TABLE_SIZE, dtype=np.int64)[:, None]
    return _count_law(_table_g_values(states, key.reveal_integers()))


@lru_cache(maxsize=64)
def _iv_law(key: WatermarkKey) -> CountLaw:
    """Sampled: the bits of an n-gram are not independent, and no table holds all of its states."""
    ngrams = np.random.default_rng(0).integers(0, 2**31, size=(_N_SAMPLED, 5))
    return _count_law(synthid.iv_g_values(ngrams, key.reveal_integers()))


def _count_law(bits: NDArray[np.uint8]) -> CountLaw:  # [M, depth]
    counts = np.bincount(bits.sum(axis=1, dtype=np.int64), minlength=bits.shape[1] + 1)
    return CountLaw(tuple((counts / counts.sum()).tolist()))


_SYNTHID_TABLE: Final = Profile(
    name="synthid-table-cpu",
    key_form=KeyForm.INT64_LIST,
    context_widths=range(1, 65),
    padding=None,
    id_limit=2**32,
    scores=_table_scores,
    law=lambda key, _settings: _table_law(key),
    draws=_table_draws,
    evidence="checked against transformers 5.24 and synthid-text 0.2.1: g-values, mask and mean",
)

_SYNTHID_IV: Final = Profile(
    name="synthid-iv",
    key_form=KeyForm.INT64_LIST,
    context_widths=range(1, 65),
    padding=None,
    id_limit=2**32,
    scores=_iv_scores,
    law=lambda key, _settings: _iv_law(key),
    evidence="checked against synthid-text of 2025-06-13 and later: g-values",
)


def _green_share(settings: Settings) -> float:
    size = int(settings[VOCABULARY_SIZE])
    return kgw.green_list_size(size, settings[_RATIO]) / size


def _kgw_profile(name: str, *, is_selfhash: bool) -> Profile:
    def seeds(key: WatermarkKey, contexts: Integers, ids: Integers) -> NDArray[np.uint64]:
        (hashing_key,) = key.reveal_integers()
        find = kgw.selfhash_seeds if is_selfhash else kgw.lefthash_seeds
        return find(_ngrams(contexts, ids), hashing_key)

    def scores(
        key: WatermarkKey, settings: Settings, contexts: Integers, ids: Integers
    ) -> NDArray[np.float64]:
        is_green = kgw.greens(
            seeds(key, contexts, ids),
            ids,
            vocab_size=int(settings[VOCABULARY_SIZE]),
            ratio=settings[_RATIO],
        )
        return is_green.astype(np.float64)

    def draws(
        key: WatermarkKey, _settings: Settings, contexts: Integers, ids: Integers
    ) -> NDArray[np.int64]:
        """Many contexts have one green list, of whose seed the low 32 bits count."""
        lists = seeds(key, contexts, ids) & np.uint64(0xFFFFFFFF)
        return np.stack([lists.astype(np.int64), np.asarray(ids, dtype=np.int64)], axis=1)

    return Profile(
        name=name,
        key_form=KeyForm.INT64,
        context_widths=range(1, 65),
        context_width=3 if is_selfhash else 1,
        padding=None,
        id_limit=PERMUTATION_LIMIT,
        parameters=(
            Parameter(
                name=VOCABULARY_SIZE, default=None, low=2, high=PERMUTATION_LIMIT, is_integer=True
            ),
            Parameter(name=_RATIO, default=0.25, low=1e-6, high=1 - 1e-6),
        ),
        scores=scores,
        law=lambda _key, settings: BitLaw(1, _green_share(settings)),
        masks_contexts=False,
        draws=draws,
        evidence="checked against transformers 5.24: seeds, permutations and green lists",
    )


BIT_PROFILES: Final = (
    _SYNTHID_TABLE,
    _SYNTHID_IV,
    _kgw_profile("kgw-hf-cpu-lefthash", is_selfhash=False),
    _kgw_profile("kgw-hf-cpu-selfhash", is_selfhash=True),
)
"""The profiles of this module."""
