"""Removes the signs of Markdown from a text and leaves what a reader would see.

Knows nothing of how it would look. Code keeps its signs wherever its text would be taken for
Markdown without them, so that removing twice is the same as removing once.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from tokenmark.detector.line_wraps import wrapped_breaks
from tokenmark.detector.mapped_text import Edits, MappedText
from tokenmark.detector.markdown_blocks import Fence, fences, prefixes, rules
from tokenmark.detector.markdown_inline import inline_signs, tokens

__all__ = ["markdown_signs"]

Range = tuple[int, int]

_ANY_SIGN: Final = re.compile(
    r"[*_~`\[<>#\u2022\u2023\u25aa\u25cf\u25e6]|^[ \t]*+(?:[-+]|===|[0-9]{1,9}[.)])", re.MULTILINE
)


def markdown_signs(text: MappedText) -> Edits:
    """The signs of emphasis, headings, lists, quotations, links and code, each to be removed."""
    if not _ANY_SIGN.search(text.text):
        return Edits.of(())
    return Edits.of((start, end, "") for start, end in _merged(_signs(text.text)))


def _merged(ranges: Iterable[Range]) -> Iterator[Range]:
    """The ranges in order, without what an earlier one already has."""
    last = 0
    for start, end in sorted(ranges):
        if max(start, last) < end:
            yield max(start, last), end
            last = end


def _signs(text: str) -> Iterator[Range]:
    position = 0
    for fence in fences(text):
        yield from _signs_of_prose(text, position, fence.start)
        if _is_inert(text[fence.content_start : fence.content_end]):
            yield from _lines_of(text, fence)
        position = fence.end
    yield from _signs_of_prose(text, position, len(text))


def _is_inert(code: str) -> bool:
    """Whether code would stay as it is without its fence."""
    first_break = next(wrapped_breaks(code), None)
    first_sign = next(_signs_of_prose(code, 0, len(code)), None)
    return not fences(code) and first_break is None and first_sign is None


def _lines_of(text: str, fence: Fence) -> Iterator[Range]:
    """The lines of a fence; one leaves a blank line where nothing else sets the code apart."""
    opening = fence.start, fence.opening_end
    yield _line(text, *opening) if _is_after_blank(text, fence.start) else opening
    if fence.closing_start is not None:
        closing = fence.closing_start, fence.end
        is_apart = fence.end == len(text) or text.startswith("\n\n", fence.end)
        yield _line(text, *closing) if is_apart else closing


def _line(text: str, start: int, end: int) -> Range:
    """A line with its break, and with a blank line after it if there is one before it too."""
    if end == len(text):
        return max(start - 1, 0), end
    n_breaks = 2 if _is_after_blank(text, start) and text.startswith("\n\n", end) else 1
    return start, end + n_breaks


def _is_after_blank(text: str, start: int) -> bool:
    return start <= 1 or text.startswith("\n\n", start - 2)


def _signs_of_prose(text: str, start: int, end: int) -> Iterator[Range]:
    """The signs of a part of a text that holds no fences."""
    prose = text[start:end]
    # Where a passage ends: no emphasis reaches from one item of a list into the next.
    dividing: list[int] = []
    found: list[Range] = []
    for rule in rules(prose):
        dividing.append(rule[0])
        found.append(_line(prose, *rule))
    for prefix in prefixes(prose):
        dividing += (prefix.start, prefix.line_end)
        found += ((prefix.start, prefix.end), (prefix.closing, prefix.line_end))
    for passage in _passages(prose, sorted(dividing)):
        found += inline_signs(prose, passage)
    return ((start + first, start + last) for first, last in found if first < last)


def _passages(text: str, dividing: list[int]) -> Iterator[list[re.Match[str]]]:
    """The tokens of a text, together where neither a position nor a blank line divides them."""
    passage: list[re.Match[str]] = []
    waiting = deque(dividing)
    for token in tokens(text):
        is_divided = token.lastgroup == "gap"
        while waiting and waiting[0] <= token.start():
            waiting.popleft()
            is_divided = True
        if is_divided and passage:
            yield passage
            passage = []
        passage.append(token)
    if passage:
        yield passage
