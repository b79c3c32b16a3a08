"""Spaces, quotes, dashes and other signs as a keyboard writes them.

Knows nothing of letters: those that only look like others are another module's.
"""

import re
import unicodedata
from typing import Final

import numpy as np

from tokenmark.detector.mapped_text import Edits, MappedText, TraitTable, in_lines_with

__all__ = ["dashes", "ellipses", "ligatures", "line_separators", "quotes", "spaces", "styled"]

_LINE_SEPARATORS: Final = dict.fromkeys("\x85\u2028\u2029", "\n")
_QUOTES: Final = {
    **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc\xb4", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"'),
}
_DASHES: Final = dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212", "-")
_ELLIPSES: Final = {"\u2026": "...", "\u2025": "..", "\u2024": "."}
_LIGATURES: Final = {
    "\ufb00": "ff",
    "\ufb01": "fi",
    "\ufb02": "fl",
    "\ufb03": "ffi",
    "\ufb04": "ffl",
    "\ufb05": "st",
    "\ufb06": "st",
}
_SPACES: Final = dict.fromkeys("\xa0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007", " ")
_SPACES.update(dict.fromkeys("\u2008\u2009\u200a\u202f\u205f\u3000", " "))

_NARROW_NO_BREAK_SPACE: Final = 0x202F
_IDEOGRAPHIC_SPACE: Final = 0x3000

_MONGOLIAN: Final = 1
_EAST_ASIAN: Final = 2
_STYLED: Final = 4
_WIDE: Final = 8
_SCRIPTS: Final = {
    "MONGOLIAN": _MONGOLIAN,
    **dict.fromkeys(("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"), _EAST_ASIAN),
}

# A dash that opens a line is speech or an item of a list; as a hyphen it would be Markdown.
_OPENING_DASH: Final = re.compile(f"^[ \t]*([{''.join(_DASHES)}])(?=[ \t])", re.MULTILINE)


def line_separators(text: MappedText) -> Edits:
    """Unicode's own line ends, to become LF."""
    return _by_table(text, _LINE_SEPARATORS)


def quotes(text: MappedText) -> Edits:
    """Curly quotes, primes and apostrophes."""
    return _by_table(text, _QUOTES)


def dashes(text: MappedText) -> Edits:
    """Dashes, hyphens and the minus sign, but for a dash that opens a line."""
    edits = _by_table(text, _DASHES)
    if not len(edits):
        return edits
    opening = np.zeros(text.codes.size, dtype=np.bool_)
    opening[[match.start(1) for match in _OPENING_DASH.finditer(text.text)]] = True
    return edits.without(opening)


def ellipses(text: MappedText) -> Edits:
    """Dots in one character."""
    return _by_table(text, _ELLIPSES)


def ligatures(text: MappedText) -> Edits:
    """Letters joined in one character by a typesetter."""
    return _by_table(text, _LIGATURES)


def spaces(text: MappedText) -> Edits:
    """Spaces of special width or that do not break, where the script has no use for them.

    Lines in Chinese, Japanese or Korean keep their own; so do Mongolian words before an ending.
    """
    edits = _by_table(text, _SPACES)
    if not len(edits):
        return edits
    traits = _TRAITS.of(text.codes)
    needed = text.codes == _NARROW_NO_BREAK_SPACE
    needed[:1] = False
    needed[1:] &= (traits[:-1] & _MONGOLIAN) > 0
    east_asian = in_lines_with((traits & _EAST_ASIAN) > 0, text.codes)
    needed |= (text.codes == _IDEOGRAPHIC_SPACE) & east_asian
    return edits.without(needed)


def styled(text: MappedText) -> Edits:
    """Plain ASCII in another dress: mathematical alphabets, and full width outside East Asia."""
    if text.is_ascii:
        return Edits.of(())
    traits = _TRAITS.of(text.codes)
    is_styled = (traits & (_STYLED | _WIDE)) > 0
    if not is_styled.any():
        return Edits.of(())
    east_asian = in_lines_with((traits & _EAST_ASIAN) > 0, text.codes)
    is_styled &= ~(((traits & _WIDE) > 0) & east_asian)
    positions = np.flatnonzero(is_styled)
    plain = _PLAIN.of(text.codes[positions])
    return Edits.replacement(positions, plain.astype(np.uint32))


def _by_table(text: MappedText, table: dict[str, str]) -> Edits:
    return Edits.of(()) if text.is_ascii else Edits.by_table(text.codes, table)


def _trait(code: int) -> int:
    character = chr(code)
    trait = _SCRIPTS.get(unicodedata.name(character, "").partition(" ")[0], 0)
    dress = unicodedata.decomposition(character).partition(" ")[0]
    if _plain(code) and dress in {"<font>", "<wide>", "<small>"}:
        trait |= _STYLED if dress == "<font>" else _WIDE
    return trait


def _plain(code: int) -> int:
    """The printable ASCII character behind a compatibility character, or 0."""
    plain = unicodedata.normalize("NFKC", chr(code))
    return ord(plain) if len(plain) == 1 and "!" <= plain <= "~" else 0


_TRAITS: Final = TraitTable(_trait)
_PLAIN: Final = TraitTable(_plain)
