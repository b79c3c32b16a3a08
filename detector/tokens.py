"""Turns text into token ids with the tokenizer's own file. Knows nothing of keys or models."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tokenmark.watermark.errors import TokenizerError
from tokenmark.watermark.tokenizers import TokenizerReference, resolve_tokenizer

__all__ = ["TextTokenizer"]


class TextTokenizer:
    """A `tokenizer.json` and its fingerprint.

    Args:
        name: a file, an alias or an id in the cache.

    Raises:
        TokenizerError: it is missing, damaged or no tokenizer.
    """

    __slots__ = ("_tokenizer", "reference")

    reference: TokenizerReference

    def __init__(self, name: str) -> None:
        path, self.reference = resolve_tokenizer(name)
        self._tokenizer = _load(path)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, special ones included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> NDArray[np.int64]:
        """The ids of the text, without any that the tokenizer would add around it."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.int64)


def _load(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    # The library raises a bare Exception for whatever is wrong with the file.
    except Exception as error:
        raise TokenizerError(
            f"{path} is not a tokenizer file that can be read: {error}; "
            "give the tokenizer.json of the model that wrote the text"
        ) from error
    # Settings of a file that would cut a text or fill it up.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
