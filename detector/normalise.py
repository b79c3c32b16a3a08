"""Views of a text: the same words, without what editors, copying or an attacker changed of them.

Knows nothing of keys, tokens or scores. Every character of a view still knows which characters of
the text as sent it stands for.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.detector.canonical_form import (
    byte_order_marks,
    compositions,
    line_ends,
    trailing_spaces,
)
from tokenmark.detector.invisible import bidi_controls, soft_hyphens, zero_width
from tokenmark.detector.line_wraps import line_wraps
from tokenmark.detector.look_alikes import look_alikes
from tokenmark.detector.mapped_text import Edits, MappedText
from tokenmark.detector.markdown_text import markdown_signs
from tokenmark.detector.typography import (
    dashes,
    ellipses,
    ligatures,
    line_separators,
    quotes,
    spaces,
    styled,
)

__all__ = ["Change", "Kind", "View", "ViewName", "views"]


class ViewName(StrEnum):
    """How far a view goes."""

    RAW = "raw"
    SAFE = "safe"
    WIDE = "wide"


class Kind(StrEnum):
    """What was changed."""

    BYTE_ORDER_MARK = "byte_order_mark"
    LINE_END = "line_end"
    COMPOSITION = "composition"
    TRAILING_SPACE = "trailing_space"
    SOFT_HYPHEN = "soft_hyphen"
    BIDI_CONTROL = "bidi_control"
    ZERO_WIDTH = "zero_width"
    SPACE = "space"
    STYLED = "styled"
    QUOTE = "quote"
    DASH = "dash"
    ELLIPSIS = "ellipsis"
    LIGATURE = "ligature"
    LOOK_ALIKE = "look_alike"
    LINE_WRAP = "line_wrap"
    MARKDOWN = "markdown"


_WORDS: Final = {
    Kind.BYTE_ORDER_MARK: ("byte order mark removed", "byte order marks removed"),
    Kind.LINE_END: ("line end changed to LF", "line ends changed to LF"),
    Kind.COMPOSITION: ("character composed", "characters composed"),
    Kind.TRAILING_SPACE: ("trailing space removed", "trailing spaces removed"),
    Kind.SOFT_HYPHEN: ("soft hyphen removed", "soft hyphens removed"),
    Kind.BIDI_CONTROL: ("bidirectional control removed", "bidirectional controls removed"),
    Kind.ZERO_WIDTH: ("zero-width character removed", "zero-width characters removed"),
    Kind.SPACE: ("special space replaced", "special spaces replaced"),
    Kind.STYLED: ("styled character replaced", "styled characters replaced"),
    Kind.QUOTE: ("typographic quote replaced", "typographic quotes replaced"),
    Kind.DASH: ("typographic dash replaced", "typographic dashes replaced"),
    Kind.ELLIPSIS: ("ellipsis replaced", "ellipses replaced"),
    Kind.LIGATURE: ("ligature replaced", "ligatures replaced"),
    Kind.LOOK_ALIKE: ("look-alike letter replaced", "look-alike letters replaced"),
    Kind.LINE_WRAP: ("line break joined", "line breaks joined"),
    Kind.MARKDOWN: ("Markdown sign removed", "Markdown signs removed"),
}

_Step = tuple[Kind, Callable[[MappedText], Edits]]

_SAFE_STEPS: Final[tuple[_Step, ...]] = (
    (Kind.BYTE_ORDER_MARK, byte_order_marks),
    (Kind.LINE_END, line_ends),
    (Kind.COMPOSITION, compositions),
    (Kind.TRAILING_SPACE, trailing_spaces),
)
# Code, lists and headings are told by their signs, so lines are joined while these are there.
_WIDE_STEPS: Final[tuple[_Step, ...]] = (
    (Kind.SOFT_HYPHEN, soft_hyphens),
    (Kind.BIDI_CONTROL, bidi_controls),
    (Kind.ZERO_WIDTH, zero_width),
    (Kind.SPACE, spaces),
    (Kind.LINE_END, line_separators),
    (Kind.STYLED, styled),
    (Kind.QUOTE, quotes),
    (Kind.DASH, dashes),
    (Kind.ELLIPSIS, ellipses),
    (Kind.LIGATURE, ligatures),
    (Kind.LOOK_ALIKE, look_alikes),
    *_SAFE_STEPS,
    (Kind.LINE_WRAP, line_wraps),
    (Kind.MARKDOWN, markdown_signs),
)
# What one step removes may have hidden work for another. Texts need two or three rounds; only one
# that was made for it needs more than a few.
_MOST_ROUNDS: Final = 16


@dataclass(frozen=True, slots=True)
class Change:
    """How often a text was changed in one way."""

    kind: Kind
    count: int

    @property
    def warning(self) -> str:
        """The change in words.

        >>> Change(Kind.ZERO_WIDTH, 3).warning
        '3 zero-width characters removed before scoring'
        """
        return f"{self.count} {_WORDS[self.kind][self.count > 1]} before scoring"


@dataclass(frozen=True, slots=True)
class View:
    """A form of a text, with the range of the text as sent that each code point stands for."""

    name: ViewName
    text: str
    starts: NDArray[np.int64]  # [code points], ascending
    ends: NDArray[np.int64]  # [code points], exclusive, ascending
    changes: tuple[Change, ...]  # since the text as sent, in the order of Kind

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The range of the text as sent that a range of the view stands for.

        What was removed inside the range belongs to it, what was removed beside it does not.
        """
        if not 0 <= start <= end <= len(self.text):
            raise ValueError(
                f"a range of this view lies within 0..{len(self.text)}, got {start}..{end}"
            )
        if start < end:
            return int(self.starts[start]), int(self.ends[end - 1])
        if start < self.starts.size:
            at = int(self.starts[start])
        else:
            at = int(self.ends[-1]) if self.ends.size else 0
        return at, at


def views(text: str) -> tuple[View, ...]:
    r"""The views of a text that differ: as sent, safe, wide.

    The safe view changes what no reader can tell apart. The wide one also removes what is invisible
    or mere form: zero-width characters, special spaces, typographic signs, look-alike letters,
    Markdown, wrapped lines; not where a script, an emoji or code needs it. Each is a fixed point:
    a view has no views but itself. (Signs hidden behind signs sixteen deep are left.)

    >>> [(view.name.value, view.text) for view in views("“Hi”\r\n")]
    [('raw', '“Hi”\r\n'), ('safe', '“Hi”\n'), ('wide', '"Hi"\n')]
    """
    raw = MappedText.of(text)
    counts: Counter[Kind] = Counter()
    found = [_view(ViewName.RAW, raw, counts)]
    safe = _after(_SAFE_STEPS, raw, counts)
    found.append(_view(ViewName.SAFE, safe, counts))
    wide = safe
    for _ in range(_MOST_ROUNDS):
        n_changes = counts.total()
        wide = _after(_WIDE_STEPS, wide, counts)
        if counts.total() == n_changes:
            break
    found.append(_view(ViewName.WIDE, wide, counts))
    return tuple(
        view
        for number, view in enumerate(found)
        if all(view.text != earlier.text for earlier in found[:number])
    )


def _after(steps: tuple[_Step, ...], text: MappedText, counts: Counter[Kind]) -> MappedText:
    """The text after the steps; what they changed is added to the counts."""
    for kind, step in steps:
        edits = step(text)
        counts[kind] += len(edits)
        text = text.edited(edits)
    return text


def _view(name: ViewName, text: MappedText, counts: Counter[Kind]) -> View:
    changes = tuple(Change(kind, counts[kind]) for kind in Kind if counts[kind])
    return View(name, text.text, text.starts, text.ends, changes)
