"""The signs of Markdown within a paragraph: emphasis, links, code.

Knows nothing of lines and blocks; each call is about one stretch of running text.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from tokenmark.detector.markdown_blocks import is_marked

__all__ = ["inline_signs", "tokens"]

Range = tuple[int, int]
Token = re.Match[str]

_TOKEN: Final = re.compile(
    r"""
      (?P<gap> \n[ \t]*+\n )
    | (?P<escape> \\[!-/:-@\[-`{-~] )
    | (?P<ticks> `++ )
    | (?P<address> https?://[^\s<>*`\]]++ )
    | (?P<link> <(?:https?|ftp|mailto):[^\s<>]*+> )
    | (?P<open> !?+\[ )
    | (?P<close> \](?P<target>\(
          [ \t]*+ (?: <[^<>\n]*+> | [^\s()<>]*+ (?:\([^\s()<>]*+\)[^\s()<>]*+)*+ )
          (?: [ \t]++ (?: "[^"\n]*+" | '[^'\n]*+' ) )?+ [ \t]*+
      \))? )
    | (?P<run> \*++ | _++ | ~++ )
    """,
    re.VERBOSE,
)
_STRIKE_LENGTH: Final = 2


def tokens(text: str) -> Iterator[Token]:
    """Everything that may be a sign, and the blank lines between paragraphs as `gap`."""
    return _TOKEN.finditer(text)


def inline_signs(text: str, passage: Sequence[Token]) -> list[Range]:
    """The signs among the tokens of a passage.

    As CommonMark reads them, but for three things. Emphasis may overlap. A run between two ASCII
    letters or digits is arithmetic or a name. Two asterisks need no space beyond punctuation,
    since languages without spaces have none.
    """
    partners = _partners_of_ticks(passage)
    emphasis = _Emphasis(text)
    brackets: list[Token] = []
    found: list[Range] = []
    index = 0
    while index < len(passage):
        token = passage[index]
        start, end = token.span()
        match token.lastgroup:
            case "ticks" if index in partners:
                inside = passage[index + 1 : partners[index]]
                index = partners[index]
                closing = passage[index]
                if _is_inert(text[end : closing.start()], text, inside):
                    found += (token.span(), closing.span())
            case "link":
                found += ((start, start + 1), (end - 1, end))
            case "open":
                brackets.append(token)
            case "close" if brackets:
                opening = brackets.pop()
                if token["target"]:
                    found += (opening.span(), token.span())
            case "run":
                emphasis.add(start, end)
        index += 1
    return found + emphasis.found


def _partners_of_ticks(passage: Sequence[Token]) -> dict[int, int]:
    """For each run of ticks the next one of the same length, by index."""
    partners = {}
    next_of_length: dict[int, int] = {}
    for index in range(len(passage) - 1, -1, -1):
        token = passage[index]
        if token.lastgroup == "ticks":
            length = token.end() - token.start()
            if length in next_of_length:
                partners[index] = next_of_length[length]
            next_of_length[length] = index
    return partners


def _is_inert(code: str, text: str, inside: Sequence[Token]) -> bool:
    """Whether code would stay as it is without its ticks."""
    if is_marked(code):
        return False
    for token in inside:
        if token.lastgroup in {"ticks", "link"} or (token.lastgroup == "close" and token["target"]):
            return False
        if token.lastgroup == "run" and any(_flanks(text, *token.span())):
            return False
    return True


class _Emphasis:
    """Runs of asterisks, underscores and tildes, each closing those before it."""

    __slots__ = ("_open", "_text", "found")

    def __init__(self, text: str) -> None:
        self._text = text
        self._open: dict[str, list[Range]] = {"*": [], "_": [], "~": []}
        self.found: list[Range] = []

    def add(self, start: int, end: int) -> None:
        sign = self._text[start]
        if sign == "~" and end - start != _STRIKE_LENGTH:
            return
        opens, closes = _flanks(self._text, start, end)
        waiting = self._open[sign]
        while closes and waiting and start < end:
            first, last = waiting.pop()
            length = min(last - first, end - start)
            self.found += ((last - length, last), (start, start + length))
            start += length
            if first < last - length:
                waiting.append((first, last - length))
        if opens and start < end:
            waiting.append((start, end))


def _flanks(text: str, start: int, end: int) -> tuple[bool, bool]:
    """Whether a run may open and whether it may close emphasis, by what is around it."""
    before = text[start - 1] if start else "\n"
    after = text[end] if end < len(text) else "\n"
    if all(around.isascii() and around.isalnum() for around in (before, after)):
        return False, False
    if text[start] == "*" and end - start > 1:
        return not after.isspace(), not before.isspace()
    before_sign, after_sign = _is_sign(before), _is_sign(after)
    left = not after.isspace() and (not after_sign or before.isspace() or before_sign)
    right = not before.isspace() and (not before_sign or after.isspace() or after_sign)
    if text[start] == "_":
        return left and (not right or before_sign), right and (not left or after_sign)
    return left, right


@lru_cache(maxsize=1 << 16)
def _is_sign(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"
