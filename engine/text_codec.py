"""Text to ids and back with a model's tokenizer file. Knows nothing of chats or requests."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from tokenmark.watermark.errors import ModelError

__all__ = ["TextCodec"]


class TextCodec:
    """The tokenizer of a served model.

    Args:
        tokenizer_json: the bytes of the tokenizer file.

    Raises:
        ModelError: the bytes are no tokenizer.
    """

    __slots__ = ("_longest_token", "_tokenizer")

    def __init__(self, tokenizer_json: bytes) -> None:
        try:
            self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
        # The library raises a bare Exception for whatever is wrong with the file.
        except Exception as error:
            raise ModelError(f"the model's tokenizer file cannot be read: {error}") from error
        # Settings of a file that would cut a text or fill it up.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self._longest_token = max(map(len, vocabulary))

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, special ones included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def least_tokens(self, text: str) -> int:
        """A number of ids that the text surely has, from its length alone."""
        return len(text) // self._longest_token

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt, without any that the tokenizer would add around it."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, special ones left out; incomplete characters give U+FFFD."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)
