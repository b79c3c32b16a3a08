"""Reads JSON whose every field is known beforehand. Knows nothing of what the fields mean.

No error repeats a value of the input, and no frame of a traceback holds the input: it may carry
secrets in clear.
"""

import json
from collections.abc import Mapping
from typing import Final, NoReturn

from tokenmark.watermark.errors import KeyringError
from tokenmark.watermark.hidden import HiddenText

__all__ = ["check_fields", "integer", "load_object", "text"]

_MAX_NAMED: Final = 5
_MAX_NAME_LENGTH: Final = 40
_MAX_INTEGER_BITS: Final = 64


def load_object(data: bytes, *, hidden: frozenset[str]) -> dict[str, object]:
    """The JSON object that `data` spells; strings under the `hidden` names come as HiddenText.

    Raises:
        KeyringError: not UTF-8, not JSON, a field given twice, NaN or infinity, or no object.
    """

    def fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = {
            name: HiddenText(value) if name in hidden and isinstance(value, str) else value
            for name, value in pairs
        }
        if len(found) != len(pairs):
            raise KeyringError("a field is given twice in one object")
        return found

    document: object = None
    try:
        document = json.loads(
            data.decode("utf-8"), object_pairs_hook=fields, parse_constant=_refuse_constant
        )
    except KeyringError as error:
        problem = str(error)
    except json.JSONDecodeError as error:
        problem = f"broken JSON at line {error.lineno}, column {error.colno}"
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 text at byte {error.start}"
    except (ValueError, RecursionError):
        problem = "a number or a nesting is larger than any key file has"
    else:
        if isinstance(document, dict):
            return document
        problem = f"a key file holds a JSON object, this one holds {_kind(document)}"
    # Raised out here, the error drags along neither the decoder's frames nor the input.
    del data, document
    raise KeyringError(problem)


def _refuse_constant(_name: str) -> NoReturn:
    raise KeyringError("NaN and infinity are no values of a key file")


def _kind(value: object) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", list: "a list"}
    kinds |= {dict: "an object", str: "a string", HiddenText: "a string"}
    return kinds.get(type(value), "null")


def check_fields(
    value: object,
    expected: frozenset[str],
    what: str,
    *,
    optional: frozenset[str] = frozenset(),
) -> Mapping[str, object]:
    """The value as an object that has the expected fields and no other, or KeyringError.

    Those that are optional may be there or not.
    """
    if not isinstance(value, dict):
        raise KeyringError(f"{what} must be an object, got {_kind(value)}")
    odd = sorted((set(value) - optional) ^ expected)
    if odd:
        named = ", ".join(repr(name[:_MAX_NAME_LENGTH]) for name in odd[:_MAX_NAMED])
        more = f" and {len(odd) - _MAX_NAMED} more" if len(odd) > _MAX_NAMED else ""
        raise KeyringError(f"{what} has unknown or missing fields: {named}{more}")
    return value


def text(value: object, field: str) -> str:
    """The value as a string, or KeyringError."""
    if not isinstance(value, str):
        raise KeyringError(f"{field} must be a string, got {_kind(value)}")
    return value


def integer(value: object, field: str) -> int:
    """The value as an integer of at most 64 bits, or KeyringError; booleans are none."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise KeyringError(f"{field} must be an integer, got {_kind(value)}")
    if value.bit_length() > _MAX_INTEGER_BITS:
        raise KeyringError(f"{field} must be an integer of at most {_MAX_INTEGER_BITS} bits")
    return value
