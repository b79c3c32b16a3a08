"""Reads what is to be scored: text files, token id lists, standard input. Knows nothing of keys."""

import json
import sys
from pathlib import Path
from typing import Final

from tokenmark.watermark.errors import DocumentError

__all__ = ["STANDARD_INPUT", "parse_token_ids", "read_document"]

STANDARD_INPUT: Final = "-"
# A tokenizer needs some 250 bytes of memory for each byte of text.
_MAX_BYTES: Final = 8 * 2**20


def read_document(name: str) -> str:
    """The text of a UTF-8 file, or of standard input for the name "-"; a leading BOM is dropped.

    Raises:
        DocumentError: missing, not readable, empty, too large, or not text.
    """
    shown = "standard input" if name == STANDARD_INPUT else name or "''"
    try:
        data = _read_bytes(name)
    except OSError as error:
        raise DocumentError(
            f"{shown} cannot be read: {error.strerror or error}; give the path of a text file"
        ) from error
    if len(data) > _MAX_BYTES:
        raise DocumentError(f"{shown} is larger than {_MAX_BYTES >> 20} MiB; split it into parts")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"{shown} is not UTF-8 text (byte {error.start} is 0x{data[error.start]:02x}); "
            "give plain text, converted to UTF-8"
        ) from None
    if "\0" in text:
        raise DocumentError(f"{shown} holds NUL bytes, so it is not text; give plain UTF-8 text")
    if not text.strip():
        raise DocumentError(f"{shown} is empty; give a file with the text to examine")
    return text


def _read_bytes(name: str) -> bytes:
    """At most one byte more than is allowed, so that a huge file is told without being held."""
    if name == STANDARD_INPUT:
        # Python has None for a stream that was closed at the start, which its types do not say.
        if getattr(sys.stdin, "buffer", None) is None:
            raise DocumentError("standard input is closed; pipe a text to it")
        return sys.stdin.buffer.read(_MAX_BYTES + 1)
    with Path(name).open("rb") as file:
        return file.read(_MAX_BYTES + 1)


def parse_token_ids(text: str, shown: str) -> list[list[int]]:
    """Token id lists: one JSON list of integers, or one such list a line.

    Raises:
        DocumentError: the text is neither, or a list is empty.
    """
    try:
        lists = [json.loads(text)]
    except RecursionError:
        raise DocumentError(f"{shown} is nested too deeply; give a JSON list of ids") from None
    except ValueError:
        lists = [_parse_line(line, number, shown) for number, line in _numbered_lines(text)]
    for number, ids in enumerate(lists, start=1):
        if not isinstance(ids, list):
            raise DocumentError(
                f"{shown}: list {number} is a JSON {type(ids).__name__}; "
                "give a JSON list of token ids, or one list a line"
            )
        if not ids:
            raise DocumentError(f"{shown}: list {number} holds no ids; remove it")
    return lists


def _numbered_lines(text: str) -> list[tuple[int, str]]:
    return [(n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip()]


def _parse_line(line: str, number: int, shown: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "not a list of ids"
        raise DocumentError(
            f"{shown}: line {number} is not JSON ({reason}); "
            "give a JSON list of token ids, or one list a line"
        ) from None
