"""What a key file says: its keys with their secrets, clear or sealed, and its JSON form.

Knows nothing of files on disk or of passphrases. Everything but the secrets is open and is not
authenticated: whoever can write the file can change a state, though not move or make a secret.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from tokenmark.watermark.errors import KeyringError
from tokenmark.watermark.hidden import HiddenText
from tokenmark.watermark.key_entry import ENTRY_FIELDS, OPTIONAL_ENTRY_FIELDS, KeyEntry
from tokenmark.watermark.sealing import SealParameters
from tokenmark.watermark.strict_json import check_fields, integer, load_object, text

__all__ = ["SEAL_CONTEXT", "KeyDocument", "Protection", "StoredKey"]

_FORMAT: Final = "tokenmark-keyring"
_VERSION: Final = 1

SEAL_CONTEXT: Final = f"{_FORMAT}/{_VERSION}"
"""What the seals of this version are tied to."""

_SECRET: Final = "secret"  # noqa: S105 - the name of a field, not a secret
_FIELDS: Final = frozenset({"format", "version", "protection", "keys"})
_SEALED_FIELDS: Final = _FIELDS | {"seal"}


class Protection(Enum):
    """How a key file keeps its secrets; all of them the same way."""

    PASSPHRASE = "passphrase"  # noqa: S105 - a word of the file format
    NONE = "none"


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An entry with its secret as stored: sealed, or the text that `WatermarkKey.parse` reads."""

    entry: KeyEntry
    secret: HiddenText


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDocument:
    """All that a key file says; `seal` is None where the secrets are in clear."""

    seal: SealParameters | None
    keys: tuple[StoredKey, ...] = ()

    @property
    def protection(self) -> Protection:
        """How the secrets are kept."""
        return Protection.NONE if self.seal is None else Protection.PASSPHRASE

    def find(self, name: str) -> StoredKey | None:
        """The key of that name."""
        return next((stored for stored in self.keys if stored.entry.name == name), None)

    def refuse_duplicate(self, entry: KeyEntry) -> None:
        """Return if neither the name nor the key_id is taken, else KeyringError."""
        for other in (stored.entry for stored in self.keys):
            if other.name == entry.name:
                raise KeyringError(f"there is a key named {entry.name!r} already; choose another")
            if other.key_id == entry.key_id:
                raise KeyringError(
                    f"the key with the key_id {entry.key_id} is there already, as {other.name!r}"
                )

    def with_added(self, stored: StoredKey) -> "KeyDocument":
        """The document with one key more."""
        self.refuse_duplicate(stored.entry)
        return replace(self, keys=(*self.keys, stored))

    def with_entry(self, entry: KeyEntry) -> "KeyDocument":
        """The document with the entry of that name replaced, its secret kept."""
        keys = (
            replace(stored, entry=entry) if stored.entry.name == entry.name else stored
            for stored in self.keys
        )
        return replace(self, keys=tuple(keys))

    def to_bytes(self) -> bytes:
        """The content of the file, with the secrets in it."""
        document: dict[str, object] = {
            "format": _FORMAT,
            "version": _VERSION,
            "protection": self.protection.value,
        }
        if self.seal is not None:
            document["seal"] = self.seal.to_json()
        document["keys"] = [
            {**stored.entry.to_json(), _SECRET: stored.secret} for stored in self.keys
        ]
        return f"{json.dumps(document, indent=2, default=HiddenText.reveal)}\n".encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> "KeyDocument":
        """The document that a file's content spells.

        Raises:
            KeyringError: broken, of a newer version, or anything but what `to_bytes` writes.
        """
        document = load_object(data, hidden=frozenset({_SECRET}))
        # From here on no frame holds the content, which may show secrets in clear.
        del data
        _check_version(document)
        protection = text(document.get("protection"), "protection")
        if protection not in {kind.value for kind in Protection}:
            raise KeyringError("protection must be passphrase or none")
        is_sealed = protection == Protection.PASSPHRASE.value
        fields = check_fields(document, _SEALED_FIELDS if is_sealed else _FIELDS, "the file")
        found = cls(seal=SealParameters.from_json(fields["seal"]) if is_sealed else None)
        keys = fields["keys"]
        if not isinstance(keys, list):
            raise KeyringError("keys must be a list")
        return replace(found, keys=_stored_keys(keys))


def _check_version(document: Mapping[str, object]) -> None:
    if document.get("format") != _FORMAT:
        raise KeyringError(f"it is no key file: its format is not {_FORMAT!r}")
    version = integer(document.get("version"), "version")
    if version > _VERSION:
        raise KeyringError(
            f"it was written by a newer version of tokenmark (file version {version}, this one "
            f"reads {_VERSION}); upgrade tokenmark"
        )
    if version != _VERSION:
        raise KeyringError(f"version must be {_VERSION}, got {version}")


def _stored_keys(values: list[object]) -> tuple[StoredKey, ...]:
    keys: list[StoredKey] = []
    names: set[str] = set()
    key_ids: set[str] = set()
    for number, value in enumerate(values, start=1):
        place = f"key number {number}{_named(value)}"
        try:
            stored = _stored_key(value)
        except KeyringError as error:
            raise KeyringError(f"{place}: {error}") from error
        if stored.entry.name in names or stored.entry.key_id in key_ids:
            raise KeyringError(f"{place}: its name or key_id is that of an earlier key")
        names.add(stored.entry.name)
        key_ids.add(stored.entry.key_id)
        keys.append(stored)
    return tuple(keys)


def _named(value: object) -> str:
    name = value.get("name") if isinstance(value, dict) else None
    return f" ({name[:64]!r})" if isinstance(name, str) else ""


def _stored_key(value: object) -> StoredKey:
    expected = ENTRY_FIELDS | {_SECRET}
    fields = check_fields(value, expected, "a key", optional=OPTIONAL_ENTRY_FIELDS)
    secret = fields[_SECRET]
    if not isinstance(secret, HiddenText):
        raise KeyringError("secret must be a string")
    public = {name: fields[name] for name in fields if name != _SECRET}
    return StoredKey(KeyEntry.from_json(public), secret)
