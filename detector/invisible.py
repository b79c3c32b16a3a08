"""Which characters that show nothing are foreign to a text, and which its script needs.

Knows nothing of why anybody would have put them there.
"""

import re
import unicodedata
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.detector.mapped_text import Edits, MappedText, TraitTable, in_lines_with, runs

__all__ = ["bidi_controls", "soft_hyphens", "zero_width"]

Mask = NDArray[np.bool_]
Traits = NDArray[np.uint16]
Codes = NDArray[np.uint32]

# Kinds of invisible characters.
_NON_JOINER: Final = 1 << 0
_JOINER: Final = 1 << 1
_ZERO_WIDTH_SPACE: Final = 1 << 2
_SELECTOR: Final = 1 << 3
_IDEOGRAPHIC_SELECTOR: Final = 1 << 4
_MONGOLIAN_CONTROL: Final = 1 << 5
_GRAPHEME_JOINER: Final = 1 << 6
_NEVER_NEEDED: Final = 1 << 7
_BIDI: Final = 1 << 8
_JOINERS: Final = _NON_JOINER | _JOINER | _ZERO_WIDTH_SPACE | _GRAPHEME_JOINER
_SELECTORS: Final = _SELECTOR | _IDEOGRAPHIC_SELECTOR | _MONGOLIAN_CONTROL
_ZERO_WIDTH: Final = _JOINERS | _SELECTORS | _NEVER_NEEDED
_INVISIBLE: Final = _ZERO_WIDTH | _BIDI

# Kinds of visible characters that need some of them.
_CURSIVE: Final = 1 << 9
_VIRAMA: Final = 1 << 10
_WITHOUT_SPACES: Final = 1 << 11
_MONGOLIAN: Final = 1 << 12
_SYMBOL: Final = 1 << 13
_HAS_VARIANTS: Final = 1 << 14
_MARK: Final = 1 << 15

_SOFT_HYPHEN: Final = 0xAD
_KEYCAP: Final = 0x20E3
_TAGS: Final = (0xE0000, 0xE007F)

_RANGES: Final = (
    (0x200B, 0x200B, _ZERO_WIDTH_SPACE),
    (0x200C, 0x200C, _NON_JOINER),
    (0x200D, 0x200D, _JOINER),
    (0x034F, 0x034F, _GRAPHEME_JOINER),
    (0x180B, 0x180F, _MONGOLIAN_CONTROL),
    (0xFE00, 0xFE0F, _SELECTOR),
    (0xE0100, 0xE01EF, _IDEOGRAPHIC_SELECTOR),
    (0x2060, 0x2065, _NEVER_NEEDED),  # word joiner, invisible operators
    (0x206A, 0x206F, _NEVER_NEEDED),  # deprecated format controls
    (0x3164, 0x3164, _NEVER_NEEDED),  # fillers of Hangul keyboards
    (0xFFA0, 0xFFA0, _NEVER_NEEDED),
    (0xFEFF, 0xFEFF, _NEVER_NEEDED),
    (0xFFF9, 0xFFFB, _NEVER_NEEDED),  # interlinear annotation
    (0x061C, 0x061C, _BIDI),
    (0x200E, 0x200F, _BIDI),
    (0x202A, 0x202E, _BIDI),
    (0x2066, 0x2069, _BIDI),
)
_TRAITS_OF_SCRIPTS: Final = {
    **dict.fromkeys(("ARABIC", "SYRIAC", "NKO", "MANDAIC", "MANICHAEAN", "ADLAM"), _CURSIVE),
    **dict.fromkeys(("THAI", "LAO", "KHMER", "TAI", "NEW", "JAVANESE"), _WITHOUT_SPACES),
    "MYANMAR": _WITHOUT_SPACES | _HAS_VARIANTS,
    "MONGOLIAN": _MONGOLIAN | _CURSIVE,
    "PHAGS-PA": _CURSIVE | _HAS_VARIANTS,
    "CJK": _HAS_VARIANTS,
}
# Symbols that may be shown as emoji and lie before the blocks of symbols.
_EARLY_SYMBOLS: Final = frozenset(map(ord, "\xa9\xae\u203c\u2049\u2122\u2139\u3030\u303d"))
_FIRST_SYMBOL: Final = 0x2190
_EMOJI: Final = range(0x1F000, 0x1FB00)
_KEYCAP_BASES: Final = np.array([ord(digit) for digit in "0123456789#*"], dtype=np.uint32)
_VIRAMA_CLASS: Final = 9

# The flags of parts of countries: a black flag, the name in tags, and the tag that ends it.
_FLAG: Final = re.compile("\U0001f3f4[\U000e0020-\U000e007e]{2,6}\U000e007f")


def zero_width(text: MappedText) -> Edits:
    """The characters without width that neither a script nor an emoji needs."""
    if text.is_ascii:
        return Edits.of(())
    tags = _foreign_tags(text)
    return Edits.removal(tags if tags.any() else _foreign_zero_width(text))


def bidi_controls(text: MappedText) -> Edits:
    """The controls of direction in lines without letters that run from right to left."""
    if text.is_ascii:
        return Edits.of(())
    is_control = (_TRAITS.of(text.codes) & _BIDI) > 0
    if not is_control.any():
        return Edits.of(())
    from_right = _FROM_RIGHT.of(text.codes) > 0
    return Edits.removal(is_control & ~in_lines_with(from_right, text.codes))


def soft_hyphens(text: MappedText) -> Edits:
    """The places where a word may be divided."""
    return Edits.removal(text.codes == _SOFT_HYPHEN)


def _foreign_tags(text: MappedText) -> Mask:
    foreign = (text.codes >= _TAGS[0]) & (text.codes <= _TAGS[1])
    if foreign.any():
        for flag in _FLAG.finditer(text.text):
            foreign[flag.start() : flag.end()] = False
    return foreign


def _foreign_zero_width(text: MappedText) -> Mask:
    """A run of invisible characters keeps one joiner and one selector, where they have a use."""
    traits = _TRAITS.of(text.codes)
    is_invisible = (traits & _INVISIBLE) > 0
    foreign = (traits & _ZERO_WIDTH) > 0
    if not foreign.any():
        return foreign
    starts, ends = runs(is_invisible)
    # The end of the text stands for what is before its start and after its end.
    around = np.append(traits, np.uint16(0))
    codes = np.append(text.codes, np.uint32(0))
    useful = _useful_joiners(around[starts - 1], around[ends])
    useful |= _useful_selectors(around[starts - 1], codes[starts - 1], codes[ends])
    positions = np.flatnonzero(is_invisible)
    run = np.repeat(np.arange(starts.size), ends - starts)
    for group in (_JOINERS, _SELECTORS):
        candidates = np.flatnonzero(traits[positions] & useful[run] & group)
        _, first = np.unique(run[candidates], return_index=True)
        foreign[positions[candidates[first]]] = False
    return foreign


def _useful_joiners(before: Traits, after: Traits) -> Traits:
    """What may stand between two visible characters, of the joiners and the space."""
    both, either = before & after, before | after
    emoji = (both & _SYMBOL) > 0
    virama = (either & _VIRAMA) > 0
    useful = np.where(((both & _CURSIVE) > 0) | virama, _NON_JOINER, 0)
    useful |= np.where(((either & _CURSIVE) > 0) | virama | emoji, _JOINER, 0)
    useful |= np.where((both & _WITHOUT_SPACES) > 0, _ZERO_WIDTH_SPACE, 0)
    useful |= np.where((both & _MARK) > 0, _GRAPHEME_JOINER, 0)
    return useful.astype(np.uint16)


def _useful_selectors(before: Traits, base: Codes, following: Codes) -> Traits:
    """What may follow a visible character to choose its form."""
    is_keycap = np.isin(base, _KEYCAP_BASES) & (following == _KEYCAP)
    has_forms = ((before & (_SYMBOL | _HAS_VARIANTS)) > 0) | is_keycap
    useful = np.where(has_forms, _SELECTOR, 0)
    useful |= np.where(_HAN.of(base) > 0, _IDEOGRAPHIC_SELECTOR, 0)
    useful |= np.where((before & _MONGOLIAN) > 0, _MONGOLIAN_CONTROL, 0)
    return useful.astype(np.uint16)


def _trait(code: int) -> int:
    for first, last, kind in _RANGES:
        if first <= code <= last:
            return kind
    trait = _TRAITS_OF_SCRIPTS.get(_script(code), 0)
    if unicodedata.combining(chr(code)):
        trait |= _MARK
    if unicodedata.combining(chr(code)) == _VIRAMA_CLASS:
        trait |= _VIRAMA
    if _is_symbol(code):
        trait |= _SYMBOL
    return trait


def _is_symbol(code: int) -> bool:
    if code in _EARLY_SYMBOLS or code in _EMOJI:
        return True
    return code >= _FIRST_SYMBOL and unicodedata.category(chr(code)) in {"So", "Sm"}


def _is_han(code: int) -> bool:
    return _script(code) == "CJK"


def _runs_from_right(code: int) -> bool:
    return unicodedata.bidirectional(chr(code)) in {"R", "AL"}


def _script(code: int) -> str:
    """The first word of a name, which for letters and marks is that of the script."""
    return unicodedata.name(chr(code), "").partition(" ")[0]


_TRAITS: Final = TraitTable(_trait)
_HAN: Final = TraitTable(_is_han)
_FROM_RIGHT: Final = TraitTable(_runs_from_right)
