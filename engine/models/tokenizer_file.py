"""The `tokenizer.json` of a byte-level BPE that a GGUF file describes. Knows nothing of files.

The bytes are written here rather than by the library that reads them, in one canonical form: keys
sorted, no spaces, UTF-8. A key entry is bound to their SHA-256, which must not change with a
release of that library.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tokenmark.engine.models.gguf import GgufTokenizer, TokenType
from tokenmark.watermark.errors import ModelError

__all__ = ["tokenizer_json"]

_FAMILY: Final = "gpt2"

_BYTE_LEVEL: Final[Mapping[str, object]] = MappingProxyType(
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
)
_DIGITS: Final[Mapping[str, object]] = MappingProxyType(
    {"type": "Digits", "individual_digits": True}
)
# By GGUF's name of the rule: what is applied to the text, in order, before merging.
_PRE_TOKENIZERS: Final[Mapping[str, tuple[Mapping[str, object], ...]]] = MappingProxyType(
    {"gpt-2": (_BYTE_LEVEL,), "smollm": (_DIGITS, _BYTE_LEVEL)}
)


def tokenizer_json(tokenizer: GgufTokenizer) -> bytes:
    """The bytes of a `tokenizer.json` that splits text into the ids the model was trained on.

    Raises:
        ModelError: the family or the splitting rule is not supported, or vocabulary and merges
            contradict each other.
    """
    _check_supported(tokenizer)
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokenizer),
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [dict(rule) for rule in _PRE_TOKENIZERS[tokenizer.pre]],
        },
        "post_processor": None,
        "decoder": dict(_BYTE_LEVEL),
        "model": _model(tokenizer),
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8")


def _check_supported(tokenizer: GgufTokenizer) -> None:
    if tokenizer.model != _FAMILY:
        raise ModelError(
            f"the tokenizer family {tokenizer.model!r} is not supported; give a model whose"
            f" tokenizer is a byte-level BPE ({_FAMILY!r})"
        )
    if tokenizer.pre not in _PRE_TOKENIZERS:
        supported = ", ".join(sorted(_PRE_TOKENIZERS))
        raise ModelError(
            f"the tokenizer's splitting rule {tokenizer.pre!r} is not supported; give a model with"
            f" one of these: {supported}"
        )
    if tokenizer.adds_bos:
        raise ModelError(
            "the tokenizer puts an id before every text, which is not supported; give a model"
            " without it"
        )


def _added_tokens(tokenizer: GgufTokenizer) -> list[dict[str, object]]:
    """The tokens found in text as a whole, before it is split; control ones are special."""
    return [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind is TokenType.CONTROL,
        }
        for token_id, (token, kind) in enumerate(
            zip(tokenizer.tokens, tokenizer.types, strict=True)
        )
        if kind in {TokenType.CONTROL, TokenType.USER_DEFINED}
    ]


def _model(tokenizer: GgufTokenizer) -> dict[str, object]:
    vocabulary = {token: token_id for token_id, token in enumerate(tokenizer.tokens)}
    if len(vocabulary) != len(tokenizer.tokens):
        n_repeated = len(tokenizer.tokens) - len(vocabulary)
        raise ModelError(
            f"the tokenizer has {n_repeated} tokens twice; convert the model to GGUF anew"
        )
    merges = []
    for number, merge in enumerate(tokenizer.merges):
        left, _, right = merge.partition(" ")
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise ModelError(
                f"merge {number} of the tokenizer does not join two of its tokens into a third;"
                " convert the model to GGUF anew"
            )
        merges.append((left, right))
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    }
