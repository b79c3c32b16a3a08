"""Which lines of a text are code, rules or items of lists, as Markdown reads them.

Knows nothing of what is inside a line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Fence", "Prefix", "fences", "is_marked", "prefixes", "rules"]

# Possessive quantifiers, here and wherever text from outside is matched: no input is slow.
_FENCE: Final = re.compile(
    r"^[ \t]*+(?P<fence>(?P<tick>`)``++|~~~++)(?P<info>(?(tick)[^`\n]*+|[^\n]*+))$", re.MULTILINE
)
_RULE: Final = re.compile(
    r"^[ \t]*+(?:={3,}+|(?:-[ \t]*+){3,}+|(?:\*[ \t]*+){3,}+|(?:_[ \t]*+){3,}+)$", re.MULTILINE
)
_BULLETS: Final = "-+*\u2022\u2023\u25aa\u25cf\u25e6"
_PREFIX: Final = re.compile(
    rf"""^(?:
        [ \t]*+(?:
            >(?=[ \t>]|$)
          | [{_BULLETS}](?=[ \t]) (?:[ \t]++\[[ xX]\](?=[ \t]))?+
          | [0-9]{{1,9}}[.)](?=[ \t])
          | (?P<heading>\#{{1,6}})(?=[ \t])
        )
    )++[ \t]*+""",
    re.MULTILINE | re.VERBOSE,
)
_NUMBER: Final = re.compile(r"[ \t]*+([0-9]++)")


@dataclass(frozen=True, slots=True)
class Fence:
    """A block of code: where it is, what it holds, and its closing line if it has one."""

    start: int
    opening_end: int
    content_start: int
    content_end: int
    closing_start: int | None
    end: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """What makes a line a quotation, an item or a heading."""

    start: int
    end: int
    # The end of a heading's line, and where its closing signs begin.
    line_end: int
    closing: int


def fences(text: str) -> tuple[Fence, ...]:
    """The blocks of code between fences; one that is never closed goes to the end of the text."""
    found = []
    opening: re.Match[str] | None = None
    for match in _FENCE.finditer(text):
        if opening is None:
            opening = match
        elif match["fence"].startswith(opening["fence"]) and not match["info"].strip(" \t"):
            found.append(_fence(opening, match.start(), match.end(), text))
            opening = None
    if opening is not None:
        found.append(_fence(opening, None, len(text), text))
    return tuple(found)


def _fence(opening: re.Match[str], closing_start: int | None, end: int, text: str) -> Fence:
    start, opening_end = opening.span()
    content_start = min(opening_end + 1, len(text))
    content_end = len(text) if closing_start is None else max(closing_start - 1, content_start)
    return Fence(start, opening_end, content_start, content_end, closing_start, end)


def is_marked(line: str) -> bool:
    """Whether a line is a rule, or begins with the mark of a quotation, an item or a heading."""
    return bool(_PREFIX.match(line) or _RULE.fullmatch(line))


def rules(text: str) -> Iterator[tuple[int, int]]:
    """The lines that only divide, or underline a heading."""
    return (match.span() for match in _RULE.finditer(text))


def prefixes(text: str) -> Iterator[Prefix]:
    """The marks before quotations, items and headings.

    A number other than 1 needs a blank line, a marked line or its predecessor before it: it may
    be a year that the end of a line has put there.
    """
    last_marked_line = last_number = -1
    for match in _PREFIX.finditer(text):
        start, end = match.span()
        number = _NUMBER.match(text, start)
        if number is not None and int(number[1]) != 1:
            previous = text.rfind("\n", 0, max(start - 1, 0)) + 1
            is_first = start == 0 or text[previous : start - 1].strip(" \t") == ""
            follows = previous == last_marked_line or int(number[1]) == last_number + 1
            if not (is_first or follows):
                continue
        last_marked_line = start
        last_number = last_number if number is None else int(number[1])
        if not match["heading"]:
            yield Prefix(start, end, end, end)
            continue
        line_end = text.find("\n", end)
        line_end = len(text) if line_end < 0 else line_end
        yield Prefix(start, end, line_end, line_end - _length_of_closing(text[end:line_end]))


def _length_of_closing(heading: str) -> int:
    """Length of the signs that may close a heading, and of the spaces around them."""
    body = heading.rstrip(" \t").rstrip("#")
    closes = heading.endswith(("#", " ", "\t")) and (not body or body.endswith((" ", "\t")))
    return len(heading) - len(body.rstrip(" \t")) if closes else 0
