"""Letters of one script that were put in words of another because they look the same.

Knows nothing of languages: which script a letter is of, and what it looks like, is all.
"""

import unicodedata
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.detector.mapped_text import Edits, MappedText, TraitTable, in_lines_with, runs

__all__ = ["LOOK_ALIKES", "look_alikes"]

Mask = NDArray[np.bool_]
Traits = NDArray[np.uint16]
Codes = NDArray[np.uint32]
Indices = NDArray[np.int64]

# Per ASCII letter: Cyrillic, Greek, Armenian, Cherokee, Lisu, Coptic, Roman numerals, phonetics.
LOOK_ALIKES: Final = {
    "A": "\u0410\u0391\u13aa\ua4ee",
    "B": "\u0412\u0392\u13f4\ua4d0",
    "C": "\u0421\u03f9\u13df\ua4da\u216d",
    "D": "\u13a0\ua4d3\u216e",
    "E": "\u0415\u0395\u13ac\ua4f0",
    "F": "\u03dc\ua4dd",
    "G": "\u050c\u13c0\ua4d6",
    "H": "\u041d\u0397\u13bb\ua4e7",
    "I": "\u0406\u04c0\u0399\u2160\ua4f2",
    "J": "\u0408\u037f\u13ab\ua4d9",
    "K": "\u041a\u039a\u13e6\ua4d7",
    "L": "\u13de\ua4e1\u216c",
    "M": "\u041c\u039c\u03fa\u13b7\ua4df\u216f",
    "N": "\u039d\ua4e0",
    "O": "\u041e\u039f\u0555\ua4f3",
    "P": "\u0420\u03a1\u13e2\ua4d1",
    "Q": "\u051a",
    "R": "\u13a1\ua4e3",
    "S": "\u0405\u054f\u13da\ua4e2",
    "T": "\u0422\u03a4\u13a2\ua4d4",
    "U": "\u054d\ua4f4",
    "V": "\u0474\u13d9\ua4e6\u2164",
    "W": "\u051c\u13b3\ua4ea",
    "X": "\u0425\u03a7\ua4eb\u2169",
    "Y": "\u0423\u04ae\u03a5\u13a9\ua4ec",
    "Z": "\u0396\u13c3\ua4dc",
    "a": "\u0430\u03b1\u0251",
    "b": "\u13cf",
    "c": "\u0441\u03f2\u2ca5\u217d\u1d04",
    "d": "\u0501\u13e7\u217e",
    "e": "\u0435",
    "g": "\u0581\u0261",
    "h": "\u04bb\u0570\u13c2",
    "i": "\u0456\u03b9\u13a5\u2170\u0269",
    "j": "\u0458\u03f3",
    "k": "\u03ba",
    "l": "\u04cf\u217c",
    "m": "\u217f",
    "n": "\u0578",
    "o": "\u043e\u03bf\u0585\u2c9f\u1d0f",
    "p": "\u0440\u03c1\u2ca3",
    "q": "\u051b\u0566",
    "s": "\u0455\ua731",
    "u": "\u057d\u03c5",
    "v": "\u0475\u03bd\u2174\u1d20",
    "w": "\u051d\u0461\u1d21",
    "x": "\u0445\u03c7\u2179",
    "y": "\u0443\u04af\u03b3",
    "z": "\u1d22",
}
_LATIN_OF: Final = {ord(other): ord(own) for own, others in LOOK_ALIKES.items() for other in others}
_PHONETIC: Final = range(0x0250, 0x02B0)

_LATIN: Final = 1 << 0
_UNLIKE_CYRILLIC: Final = 1 << 1
_UNLIKE_GREEK: Final = 1 << 2
_CYRILLIC: Final = 1 << 3
_GREEK: Final = 1 << 4
_OTHER: Final = 1 << 5
_LIKE_LATIN: Final = 1 << 6
_UNLIKE_LATIN: Final = 1 << 7
_SMALL_GREEK: Final = 1 << 8
_MARK: Final = 1 << 9
_FOREIGN: Final = _CYRILLIC | _GREEK | _OTHER
_SCRIPTS: Final = {"LATIN": _LATIN, "CYRILLIC": _CYRILLIC, "GREEK": _GREEK}

# The way back, for texts in Russian, Ukrainian or Greek with Latin letters in them.
_RUSSIAN: Final = frozenset((0x0406, 0x0456, *range(0x0410, 0x0450)))
_MODERN_GREEK: Final = frozenset(range(0x0391, 0x03CA))
_WAYS_BACK: Final = {
    script: {own: other for other, own in _LATIN_OF.items() if other in letters}
    for script, letters in ((_CYRILLIC, _RUSSIAN), (_GREEK, _MODERN_GREEK))
}

# Shorter words with small Greek letters are formulas.
_SHORTEST_GREEK: Final = 3


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of a text, and what their letters are."""

    traits: Traits  # [characters]
    starts: Indices  # [words]
    lengths: Indices  # [words]
    letters: Traits  # [words], the traits of all letters of a word

    @classmethod
    def of(cls, text: MappedText) -> "_Words":
        traits = _TRAITS.of(text.codes)
        starts, ends = runs(traits > 0)
        letters = np.bitwise_or.reduceat(traits, starts) if starts.size else traits[:0]
        return cls(traits, starts, ends - starts, letters)

    def with_any(self, traits: int) -> Mask:
        return (self.letters & traits) > 0

    def characters(self, chosen: Mask, traits: int) -> Indices:
        """Where the letters with a trait are that belong to chosen words."""
        in_chosen = np.zeros(self.traits.size, dtype=np.bool_)
        in_chosen[self.traits > 0] = np.repeat(chosen, self.lengths)
        return np.flatnonzero(in_chosen & ((self.traits & traits) > 0))

    def is_letter(self, *traits: int) -> Mask:
        """Which characters have all of the traits."""
        has_all: Mask = (self.traits & sum(traits)) == sum(traits)
        return has_all


def look_alikes(text: MappedText) -> Edits:
    """The foreign letters of words that mix scripts, and of words of nothing else in a Latin text.

    A word with a letter that looks like none of the other script stays, and so do short words with
    small Greek letters: those are names and formulas.
    """
    if text.is_ascii:
        return Edits.of(())
    words = _Words.of(text)
    if not words.is_letter(_LIKE_LATIN).any():
        return Edits.of(())
    main = _main_script(words)
    to_latin = words.with_any(_LATIN) & _may_be_latin(words)
    codes = text.codes.copy()
    if main == _LATIN:
        to_latin |= _all_foreign(words, text)
    elif main is not None:
        to_main = _may_be(main, words)
        to_latin &= ~to_main
        _replace(codes, words.characters(to_main, _LATIN), _WAYS_BACK[main])
    _replace(codes, words.characters(to_latin, _LIKE_LATIN), _LATIN_OF)
    positions = np.flatnonzero(codes != text.codes)
    return Edits.replacement(positions, codes[positions])


def _replace(codes: Codes, positions: Indices, table: dict[int, int]) -> None:
    codes[positions] = [table[code] for code in codes[positions].tolist()]


def _main_script(words: _Words) -> int | None:
    """The script of most of those letters that look like none of the other scripts, if any."""
    counts = {
        _LATIN: words.is_letter(_LATIN, _UNLIKE_CYRILLIC, _UNLIKE_GREEK).sum(),
        _CYRILLIC: words.is_letter(_CYRILLIC, _UNLIKE_LATIN).sum(),
        _GREEK: words.is_letter(_GREEK, _UNLIKE_LATIN).sum(),
    }
    main = max(counts, key=lambda script: counts[script])
    return main if counts[main] else None


def _may_be_latin(words: _Words) -> Mask:
    is_formula = words.with_any(_SMALL_GREEK) & (words.lengths < _SHORTEST_GREEK)
    return words.with_any(_LIKE_LATIN) & ~words.with_any(_UNLIKE_LATIN) & ~is_formula


def _all_foreign(words: _Words, text: MappedText) -> Mask:
    """Words without a Latin letter, in lines that show no other letter of their script."""
    found = _may_be_latin(words) & ~words.with_any(_LATIN)
    if found.any():
        for script in (_CYRILLIC, _GREEK, _OTHER):
            at_home = in_lines_with(words.is_letter(script, _UNLIKE_LATIN), text.codes)
            found &= ~(words.with_any(script) & at_home[words.starts])
    return found


def _may_be(script: int, words: _Words) -> Mask:
    """Words of a script with Latin letters that all look like letters of that script."""
    unlike = _UNLIKE_CYRILLIC if script == _CYRILLIC else _UNLIKE_GREEK
    foreign = (_FOREIGN & ~script) | unlike
    return words.with_any(script) & words.with_any(_LATIN) & ~words.with_any(foreign)


def _trait(code: int) -> int:
    character = chr(code)
    if unicodedata.category(character).startswith("M"):
        return _MARK
    script = _SCRIPTS.get(unicodedata.name(character, "").partition(" ")[0], _OTHER)
    if code in _LATIN_OF:
        # The Latin ones among them belong to phonetic alphabets.
        trait = _LIKE_LATIN | (_OTHER if script == _LATIN else script)
        is_small_greek = script == _GREEK and character.islower()
        return trait | (_SMALL_GREEK if is_small_greek else 0)
    if not character.isalpha():
        return 0
    if script != _LATIN:
        return script | _UNLIKE_LATIN
    if code in _PHONETIC:
        return _OTHER | _UNLIKE_LATIN
    trait = _LATIN
    trait |= 0 if code in _WAYS_BACK[_CYRILLIC] else _UNLIKE_CYRILLIC
    trait |= 0 if code in _WAYS_BACK[_GREEK] else _UNLIKE_GREEK
    return trait


_TRAITS: Final = TraitTable(_trait)
