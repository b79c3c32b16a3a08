"""Line breaks that a program put into running text because the line was full.

Knows nothing of columns on a screen beyond the width of a character in a terminal.
"""

import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final

from tokenmark.detector.mapped_text import Edits, MappedText
from tokenmark.detector.markdown_blocks import fences, prefixes, rules

__all__ = ["line_wraps", "wrapped_breaks"]

# Verse is narrower, and lines that nobody wrapped are wider.
_NARROWEST: Final = 50
_WIDEST: Final = 132
# A single break shows less, so its line must be longer.
_NARROWEST_OF_ONE: Final = 60
# Chinese and Japanese lines end early where punctuation may not begin the next one.
_EARLY: Final = 4
_MOST_CODE_POINTS: Final = 4 * _WIDEST

_SENTENCE_ENDS: Final = (".", "!", "?", ":", ";", "\u3002", "\uff01", "\uff1f", "\u0964", "\u06d4")
_CLOSING: Final = "\"')]}*_\u00bb\u201d\u2019\u300d"


def line_wraps(text: MappedText) -> Edits:
    """The breaks within paragraphs that were filled to one width, each to become a space."""
    return Edits.of(wrapped_breaks(text.text))


def wrapped_breaks(text: str) -> Iterator[tuple[int, int, str]]:
    """Where the breaks are, and what goes between the two lines.

    A paragraph was filled to the width W if no line is wider than W and the first word of each
    line would have made the line before it wider than W. Verse and lists seldom pass, and hardly
    ever with lines that begin in the middle of a sentence.
    """
    for start, lines in _paragraphs(text):
        gaps = [_gap(*pair) for pair in pairwise(lines)]
        if not _is_filled(lines, gaps):
            continue
        position = start
        for line, gap in zip(lines, gaps, strict=False):
            position += len(line)
            yield position, position + 1, gap
            position += 1


def _paragraphs(text: str) -> Iterator[tuple[int, list[str]]]:
    """Two or more lines of running text on end, and where they start."""
    marked = {prefix.start for prefix in prefixes(text)}
    marked.update(start for start, _ in rules(text))
    code = [(fence.start, fence.end) for fence in fences(text)]
    code.reverse()
    lines: list[str] = []
    position = start = 0
    for line in text.split("\n"):
        while code and code[-1][1] < position:
            code.pop()
        in_code = bool(code) and code[-1][0] <= position
        if in_code or position in marked or not _is_running(line):
            if len(lines) > 1:
                yield start, lines
            lines = []
        else:
            if not lines:
                start = position
            lines.append(line)
        position += len(line) + 1
    if len(lines) > 1:
        yield start, lines


def _is_running(line: str) -> bool:
    return bool(line) and line[0] not in " \t|" and "\t" not in line


def _is_filled(lines: list[str], gaps: list[str]) -> bool:
    if max(map(len, lines)) > _MOST_CODE_POINTS:
        return False
    # Encoded data comes in lines of one width too.
    if any(line.isascii() and " " not in line for line in lines[:-1]):
        return False
    widths = [_width(line) for line in lines]
    narrowest = _NARROWEST if len(gaps) > 1 else _NARROWEST_OF_ONE
    widest = max(widths)
    if not narrowest <= widest <= _WIDEST:
        return False
    following = zip(widths, gaps, lines[1:], strict=False)
    if any(width + len(gap) + _first_width(line, gap) <= widest for width, gap, line in following):
        return False
    n_inside = sum(_is_inside(*pair) for pair in pairwise(lines))
    return 2 * n_inside >= len(gaps)


def _gap(line: str, following: str) -> str:
    """What stood between two lines before they were two."""
    if line.endswith("-") and line[-2:-1].isalpha() and following[0].isalpha():
        return ""
    return "" if _is_unspaced(line[-1]) and _is_unspaced(following[0]) else " "


def _first_width(line: str, gap: str) -> int:
    """The width that the line before would have needed to hold some of this one."""
    if not gap and _is_unspaced(line[0]):
        return _columns(line[0]) + _EARLY
    return _width(line.partition(" ")[0])


def _is_inside(line: str, following: str) -> bool:
    """Whether a sentence goes on from one line to the next."""
    begins_low = following[0].isalpha() and not following[0].isupper()
    return begins_low and not line.rstrip(_CLOSING).endswith(_SENTENCE_ENDS)


def _width(line: str) -> int:
    return len(line) if line.isascii() else sum(map(_columns, line))


@lru_cache(maxsize=1 << 16)
def _columns(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


@lru_cache(maxsize=1 << 16)
def _is_unspaced(character: str) -> bool:
    is_wide = unicodedata.east_asian_width(character) in "WF"
    is_spaced = unicodedata.name(character, "").startswith("HANGUL")
    return is_wide and not is_spaced and unicodedata.category(character) != "So"
