"""Names, fingerprints and the cache of tokenizer files. Knows nothing of how text becomes ids.

A tokenizer is known by the SHA-256 of its `tokenizer.json`. Its public id follows from those bytes
alone: a pinned alias, or "sha256-" and the first 16 digits. So the id that a key entry stores is
the same on every machine, tells nothing of where the file lay, and finds the cached file again.
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tokenmark.watermark.errors import TokenizerError
from tokenmark.watermark.locations import cache_folder, tokenizer_path

__all__ = [
    "ALIASES",
    "TokenizerReference",
    "fingerprint",
    "reference_of",
    "resolve_tokenizer",
    "store_tokenizer",
]

ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"demo": "61cf370a42643479dae945a2b0ac17b302ffcfdc593414100457130ccbcc4796"}
)
"""The SHA-256 of the `tokenizer.json` that each alias stands for."""

_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_DERIVED_ID: Final = re.compile(r"sha256-([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class TokenizerReference:
    """The public id of a tokenizer and the SHA-256 that its file must have.

    Raises:
        TokenizerError: a field of the wrong form.
    """

    id: str
    sha256: str

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise TokenizerError(
                "a tokenizer id has 1 to 64 lowercase letters, digits, dots, dashes or"
                f" underscores and starts with a letter or digit, got {self.id!r}"
            )
        if not _SHA256.fullmatch(self.sha256):
            raise TokenizerError(
                "a tokenizer's sha256 is 64 lowercase hexadecimal digits,"
                f" got {self.sha256!r}; `wm-keys` writes it for you"
            )


def fingerprint(data: bytes) -> str:
    """The SHA-256 of a tokenizer file's bytes as stored: 64 lowercase hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def reference_of(data: bytes) -> TokenizerReference:
    """The reference that a tokenizer file's bytes have on every machine.

    >>> reference_of(b"{}").id
    'sha256-44136fa355b3678a'
    """
    sha256 = fingerprint(data)
    for alias, pinned in ALIASES.items():
        if sha256 == pinned:
            return TokenizerReference(alias, sha256)
    return TokenizerReference(f"sha256-{sha256[:16]}", sha256)


def store_tokenizer(data: bytes, *, cache: Path | None = None) -> tuple[Path, TokenizerReference]:
    """Put a tokenizer file into the cache, whole or not at all; its place and its reference.

    Raises:
        TokenizerError: the cache folder cannot be written.
    """
    reference = reference_of(data)
    path = tokenizer_path(reference.id, cache=cache)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (path.exists() and path.read_bytes() == data):
            _write_whole(path, data)
    except OSError as error:
        raise TokenizerError(
            f"the tokenizer file {path} cannot be written: {error.strerror or error};"
            " free some space or make the cache folder writable"
        ) from error
    return path, reference


def _write_whole(path: Path, data: bytes) -> None:
    # A file of its own for each writer: two that store the same tokenizer need no lock.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def resolve_tokenizer(name: str, *, cache: Path | None = None) -> tuple[Path, TokenizerReference]:
    """The file and the reference of a tokenizer given as FILE, as an alias or as an id.

    An alias or an id means the cached file, which must have the pinned SHA-256 or begin with the
    digits of the id. Everything else is a path; `./demo` is a file called demo.

    Raises:
        TokenizerError: no such file, not readable, or not the bytes that its name stands for.
    """
    derived = _DERIVED_ID.fullmatch(name)
    if name not in ALIASES and derived is None:
        path = Path(name)
        return path, reference_of(_read(path))
    folder = cache_folder() if cache is None else cache
    path = tokenizer_path(name, cache=folder)
    if not path.exists():
        model = name if derived is None else "MODEL.gguf"
        raise TokenizerError(
            f"tokenizer {name!r} is not in the cache; run `wm-serve {model}` once on this machine"
            " or give --tokenizer FILE"
        )
    reference = reference_of(_read(path))
    if reference.id != name:
        raise TokenizerError(
            f"the cached file of tokenizer {name!r}, {path}, has the SHA-256 {reference.sha256},"
            " which is not the one of that name; delete it and fetch it again, or give"
            " --tokenizer FILE"
        )
    return path, reference


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        known = ", ".join(sorted(ALIASES))
        raise TokenizerError(
            f"tokenizer file {path} cannot be read: {error.strerror or error}; give the path of a"
            f" tokenizer.json or one of the aliases: {known}"
        ) from error
