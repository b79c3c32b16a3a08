"""The registry: every recipe of marks that can be named. Knows nothing of stored keys or of text.

A profile is added here when its words agree bit for bit with vectors of the engine that writes it.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.watermark.bit_profiles import BIT_PROFILES
from tokenmark.watermark.gumbel import exponentials, score_small_x
from tokenmark.watermark.key import KeyForm, WatermarkKey, hkdf_sha256
from tokenmark.watermark.null_law import DualLaw, ExponentialLaw, LevelLaw
from tokenmark.watermark.prf import chacha8, murmur3, philox, splitmix, textseal
from tokenmark.watermark.prf.family import Family
from tokenmark.watermark.profile import (
    Integers,
    Parameter,
    Profile,
    Scores,
    Settings,
    Words,
    WordSource,
)

__all__ = ["PROFILES"]


def _tm1_stream_key(key: WatermarkKey, context_width: int) -> Words:
    info = f"tokenmark/tm1/mark/h={context_width}"
    derived = hkdf_sha256(key.reveal_bytes(), info, 32)
    return np.frombuffer(derived, dtype="<u4").astype(np.uint32)


def _integer_stream_key(key: WatermarkKey, _context_width: int) -> Words:
    """The 32-bit halves of the integers, low ones first."""
    return np.frombuffer(key.reveal_bytes(), dtype="<u4").astype(np.uint32)


def _vllm_score(words: Words) -> Scores:
    """-ln(1 - u) in float64 of the float32 uniform, as vLLM's detector forms it."""
    return -np.log1p(-philox.uniform_f32(words.astype(np.uint32)).astype(np.float64))


def _vllm_derived(label: bytes) -> Callable[[WatermarkKey, int], Words]:
    """The stream key of one of the two keys that vLLM derives for its dual mark."""

    def stream_key(key: WatermarkKey, _context_width: int) -> Words:
        (secret,) = key.reveal_integers()
        digest = hashlib.sha256(label + secret.to_bytes(8, "big")).digest()
        derived = int.from_bytes(digest[:8], "big")
        return np.array([derived & 0xFFFFFFFF, derived >> 32], dtype=np.uint32)

    return stream_key


def _scores_of_words(
    source: WordSource, score: Callable[[Words], Scores]
) -> Callable[[WatermarkKey, Settings, Integers, Integers], Scores]:
    def scores(
        key: WatermarkKey, _settings: Settings, contexts: Integers, ids: Integers
    ) -> NDArray[np.float64]:
        return score(source.words(key, contexts, ids))

    return scores


def _scores_of_two(
    first: WordSource, second: WordSource, score: Callable[[Words], Scores], weight: str
) -> Callable[[WatermarkKey, Settings, Integers, Integers], Scores]:
    """The mean of the scores of two keys; the parameter is the weight of the second."""

    def scores(
        key: WatermarkKey, settings: Settings, contexts: Integers, ids: Integers
    ) -> NDArray[np.float64]:
        one, other = (score(source.words(key, contexts, ids)) for source in (first, second))
        return (1 - settings[weight]) * one + settings[weight] * other

    return scores


_TM1_WORDS: Final = WordSource(_tm1_stream_key, chacha8.context_keys, chacha8.words_at)
_TM1: Final = Profile(
    name="tm1",
    key_form=KeyForm.BYTES32,
    context_widths=range(1, 9),
    padding=None,
    id_limit=chacha8.KEYSTREAM_WORDS,
    scores=_scores_of_words(_TM1_WORDS, score_small_x),
    law=lambda _key, _settings: ExponentialLaw(largest_score=33 * math.log(2)),
    source=_TM1_WORDS,
    score_of_word=score_small_x,
    family=Family.CHACHA8,
    carries_payload=True,
    evidence="native; checked against the scheme's own vectors and RFC 8439",
)

# vLLM warns above 16 and knows no bound; 64 is far past any use.
_VLLM_WIDTHS: Final = range(1, 65)
_VLLM_LARGEST_SCORE: Final = 24 * math.log(2)
_VLLM_WORDS: Final = WordSource(_integer_stream_key, philox.row_states, philox.words_at)
_VLLM_GUMBEL: Final = Profile(
    name="vllm-gumbel",
    key_form=KeyForm.UINT64,
    context_widths=_VLLM_WIDTHS,
    padding=-1,
    id_limit=2**32,
    scores=_scores_of_words(_VLLM_WORDS, _vllm_score),
    law=lambda _key, _settings: ExponentialLaw(largest_score=_VLLM_LARGEST_SCORE),
    source=_VLLM_WORDS,
    score_of_word=_vllm_score,
    family=Family.PHILOX,
    evidence="checked against vLLM 0.32.0: words, published goldens and generated texts",
)

_VLLM_DUAL: Final = Profile(
    name="vllm-dual",
    key_form=KeyForm.UINT64,
    context_widths=_VLLM_WIDTHS,
    padding=-1,
    id_limit=2**32,
    parameters=(Parameter(name="alpha", default=0.1, low=0.0, high=1.0),),
    scores=_scores_of_two(
        WordSource(_vllm_derived(b"key_a"), philox.row_states, philox.words_at),
        WordSource(_vllm_derived(b"key_b"), philox.row_states, philox.words_at),
        _vllm_score,
        weight="alpha",
    ),
    law=lambda _key, settings: DualLaw(settings["alpha"], largest_score=_VLLM_LARGEST_SCORE),
    evidence="checked against vLLM 0.32.0: derived keys, words and published goldens",
)

_LARGEST_OF_32_BITS: Final = 33 * math.log(2)
_MURMUR_WORDS: Final = WordSource(_integer_stream_key, murmur3.row_states, murmur3.words_at)
_SGLANG_GUMBEL: Final = Profile(
    name="sglang-gumbel",
    key_form=KeyForm.UINT64,
    context_widths=range(1, 65),
    padding=None,
    max_contexts=murmur3.MAX_MARKED_CONTEXTS,
    id_limit=2**32,
    scores=_scores_of_words(_MURMUR_WORDS, exponentials),
    law=lambda _key, _settings: ExponentialLaw(largest_score=_LARGEST_OF_32_BITS),
    source=_MURMUR_WORDS,
    score_of_word=exponentials,
    evidence="words checked against SGLang's published ones; how texts are read is documented only",
)


def _sglang_dual_scores(
    key: WatermarkKey, settings: Settings, contexts: Integers, ids: Integers
) -> Scores:
    """Of the one key that the coin of a context chooses."""
    states = murmur3.dual_row_states(
        _integer_stream_key(key, contexts.shape[1]),
        contexts,
        threshold=math.floor(settings["mixing_probability"] * 2**32),
    )
    return exponentials(murmur3.words_at(states, ids))


_SGLANG_DUAL: Final = Profile(
    name="sglang-dual",
    key_form=KeyForm.UINT64_PAIR,
    context_widths=range(1, 65),
    padding=None,
    max_contexts=murmur3.MAX_MARKED_CONTEXTS,
    id_limit=2**32,
    parameters=(
        Parameter(name="mixing_probability", default=0.5, low=2.0**-32, high=1 - 2.0**-32),
    ),
    scores=_sglang_dual_scores,
    law=lambda _key, _settings: ExponentialLaw(largest_score=_LARGEST_OF_32_BITS),
    evidence="checked against SGLang's published words and coins; the rest as sglang-gumbel",
)

_ARBI_WORDS: Final = WordSource(_integer_stream_key, splitmix.row_states, splitmix.words_at)
_ARBI: Final = Profile(
    name="arbi",
    key_form=KeyForm.UINT64,
    context_widths=range(1, 65),
    padding=-1,
    n_unscored=1,
    id_limit=2**32,
    scores=_scores_of_words(_ARBI_WORDS, exponentials),
    law=lambda _key, _settings: ExponentialLaw(largest_score=_LARGEST_OF_32_BITS),
    source=_ARBI_WORDS,
    score_of_word=exponentials,
    evidence="checked against arbi-serve 0.2.0: seeds, words and detections",
)


def _textseal_score(residues: Words) -> Scores:
    """-ln(1 - r / 8191)."""
    return -np.log1p(-residues.astype(np.float64) / textseal.RESIDUES)


def _textseal_second_key(key: WatermarkKey, context_width: int) -> Words:
    return textseal.second_stream_key(_integer_stream_key(key, context_width))


_TEXTSEAL_WORDS: Final = WordSource(_integer_stream_key, textseal.row_states, textseal.words_at)
_TEXTSEAL_GUMBEL: Final = Profile(
    name="textseal-gumbel",
    key_form=KeyForm.INT64,
    context_widths=range(1, textseal.MAX_CONTEXT_WIDTH + 1),
    context_width=1,
    padding=None,
    id_limit=2**32,
    scores=_scores_of_words(_TEXTSEAL_WORDS, _textseal_score),
    law=lambda _key, _settings: LevelLaw(textseal.RESIDUES),
    evidence="checked against TextSeal's repository version and 0.0.5: residues and detections",
)

_TEXTSEAL_DUAL: Final = Profile(
    name="textseal-dual",
    key_form=KeyForm.INT64,
    context_widths=range(1, textseal.MAX_CONTEXT_WIDTH + 1),
    context_width=1,
    padding=None,
    id_limit=2**32,
    # The share of the second key: TextSeal's own alpha is that of the first.
    parameters=(Parameter(name="second_key_share", default=0.5, low=0.0, high=1.0),),
    scores=_scores_of_two(
        _TEXTSEAL_WORDS,
        WordSource(_textseal_second_key, textseal.row_states, textseal.words_at),
        _textseal_score,
        weight="second_key_share",
    ),
    law=lambda _key, settings: DualLaw(
        settings["second_key_share"], largest_score=math.log(textseal.RESIDUES)
    ),
    evidence="residues checked against TextSeal's own; how keys are joined is by its documents",
)

PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            _TM1,
            _VLLM_GUMBEL,
            _VLLM_DUAL,
            _SGLANG_GUMBEL,
            _SGLANG_DUAL,
            _ARBI,
            _TEXTSEAL_GUMBEL,
            _TEXTSEAL_DUAL,
            *BIT_PROFILES,
        )
    }
)
"""Every scheme that can be named, by name."""
