"""What no reader of a text can tell apart: line ends, ways to compose a letter, trailing spaces.

Knows nothing of looks: two characters that only look the same stay two.
"""

import unicodedata
from typing import Final

import numpy as np

from tokenmark.detector.mapped_text import Edits, MappedText, TraitTable, runs

__all__ = ["byte_order_marks", "compositions", "line_ends", "trailing_spaces"]

_BYTE_ORDER_MARK: Final = "\ufeff"
_TAB, _LINE_FEED, _RETURN, _SPACE = 0x09, 0x0A, 0x0D, 0x20

# A letter with more marks is no letter of any language. Their order takes quadratic time to find.
_MOST_MARKS: Final = 30
# Up to here every character is its own normal form and composes with none before it.
_LAST_INERT: Final = 0x02FF

_CONTINUES: Final = 1
_UNSTABLE: Final = 2
# Letters, not marks, that all the same compose with one before them: vowels and final consonants
# of Hangul, vowels of Kirat Rai.
_COMPOSING_LETTERS: Final = (range(0x1161, 0x1176), range(0x11A8, 0x11C3), range(0x16D67, 0x16D69))


def byte_order_marks(text: MappedText) -> Edits:
    """The marks at the start of a text."""
    n_marks = len(text.text) - len(text.text.lstrip(_BYTE_ORDER_MARK))
    return Edits.removal(np.arange(text.codes.size) < n_marks)


def line_ends(text: MappedText) -> Edits:
    """CR LF and CR, each to become LF."""
    returns = np.flatnonzero(text.codes == _RETURN)
    following = np.append(text.codes, np.uint32(0))[returns + 1]
    ends = returns + 1 + (following == _LINE_FEED)
    return Edits(
        returns, ends, np.ones_like(returns), np.full(returns.size, _LINE_FEED, dtype=np.uint32)
    )


def compositions(text: MappedText) -> Edits:
    """The characters, each with its marks, that are not in Unicode's normal form C."""
    if text.is_ascii:
        return Edits.of(())
    traits = _TRAITS.of(text.codes)
    continues = (traits & _CONTINUES) > 0
    unsettled = np.flatnonzero(traits)
    begins = ~continues
    begins[:1] = True
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], text.codes.size)
    which = np.unique(np.searchsorted(starts, unsettled, side="right") - 1)
    which = which[ends[which] - starts[which] <= _MOST_MARKS + 1]
    edits = []
    for start, end in zip(starts[which].tolist(), ends[which].tolist(), strict=True):
        cluster = text.text[start:end]
        composed = unicodedata.normalize("NFC", cluster)
        if composed != cluster:
            edits.append((start, end, composed))
    return Edits.of(edits)


def trailing_spaces(text: MappedText) -> Edits:
    """The spaces and tabs before the end of a line or of the text."""
    codes = text.codes
    is_space = (codes == _SPACE) | (codes == _TAB)
    starts, ends = runs(is_space)
    is_last = np.append(codes, np.uint32(_LINE_FEED))[ends] == _LINE_FEED
    edge = np.zeros(codes.size + 1, dtype=np.int8)
    edge[starts[is_last]] = 1
    edge[ends[is_last]] = -1
    return Edits.removal(np.cumsum(edge[:-1], dtype=np.int8) > 0)


def _composition_trait(code: int) -> int:
    if code <= _LAST_INERT:
        return 0
    character = chr(code)
    continues = unicodedata.category(character).startswith("M")
    continues |= any(code in letters for letters in _COMPOSING_LETTERS)
    is_stable = unicodedata.is_normalized("NFC", character)
    return (_CONTINUES if continues else 0) | (0 if is_stable else _UNSTABLE)


_TRAITS: Final = TraitTable(_composition_trait)
