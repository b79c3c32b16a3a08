"""The families of keyed words that a race can be drawn with. Knows nothing of keys or logits."""

from enum import IntEnum
from typing import Final

from tokenmark.watermark.prf import chacha8, philox

__all__ = ["Family"]


class Family(IntEnum):
    """Whose words decide a race."""

    CHACHA8 = 0
    """A row state is a ChaCha8 key; small words win, in float64."""
    PHILOX = 1
    """A row state is one of `prf.philox`; large words win, in vLLM's float32."""

    @property
    def state_words(self) -> int:
        """Words in the state of a row."""
        return _STATE_WORDS[self]

    @property
    def id_limit(self) -> int:
        """Ids that have words are below it."""
        return _ID_LIMITS[self]

    @property
    def symbol_limit(self) -> int:
        """Payload symbols are below it; 1 where none can be carried."""
        return _SYMBOL_LIMITS[self]


# By family.
_STATE_WORDS: Final = (8, philox.ROW_STATE_WORDS)
_ID_LIMITS: Final = (chacha8.KEYSTREAM_WORDS, 2**32)
_SYMBOL_LIMITS: Final = (chacha8.KEYSTREAM_WORDS, 1)
