"""The public half of a stored key: name, scheme, state, validity and tokenizer.

Knows nothing of secrets or of files.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from tokenmark.watermark.errors import (
    KeyringError,
    KeyStateError,
    SchemeError,
    TokenizerError,
)
from tokenmark.watermark.scheme import Scheme
from tokenmark.watermark.strict_json import check_fields, text
from tokenmark.watermark.tokenizers import TokenizerReference

__all__ = ["ENTRY_FIELDS", "OPTIONAL_ENTRY_FIELDS", "KeyEntry", "KeyState", "format_time"]

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY_ID: Final = re.compile(r"[0-9a-f]{16}")
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")

_SCHEME_FIELDS: Final = ("scheme", "context_width", "payload")
_TIME_FIELDS: Final = ("created", "not_before", "not_after")
_TOKENIZER_FIELDS: Final = frozenset({"id", "sha256"})

ENTRY_FIELDS: Final = frozenset(
    {"name", "key_id", *_SCHEME_FIELDS, "state", *_TIME_FIELDS, "tokenizer"}
)
"""What `KeyEntry.to_json` writes and `KeyEntry.from_json` reads."""

OPTIONAL_ENTRY_FIELDS: Final = frozenset({"parameters"})
"""What is there only with a scheme that has any."""


class KeyState(StrEnum):
    """What a key may still be used for."""

    ACTIVE = "active"
    """To mark and to verify."""

    VERIFY_ONLY = "verify_only"
    """To recognise older texts; it marks no new ones."""

    REVOKED = "revoked"
    """Nothing: the secret may be known to others, so its mark proves nothing. It is final."""


def format_time(moment: datetime) -> str:
    """ISO 8601 in UTC, to the second.

    >>> format_time(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    '2026-01-02T03:04:05Z'
    """
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """What a keyring tells about a key without a passphrase.

    Moments are in UTC and whole seconds. A key is valid from `not_before` on and up to, not at,
    `not_after`; None leaves that end open. Validity bounds marking only: a text that was marked in
    time is recognised for ever. Without a tokenizer, a key can test token ids but no text.

    Raises:
        KeyringError: a field of the wrong form, or a validity that ends before it begins.
    """

    name: str
    key_id: str
    scheme: Scheme
    created: datetime
    state: KeyState = KeyState.ACTIVE
    not_before: datetime | None = None
    not_after: datetime | None = None
    tokenizer: TokenizerReference | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise KeyringError(
                "a key's name has 1 to 64 letters, digits, dots, dashes or underscores, "
                f"got {self.name[:80]!r}"
            )
        if not _KEY_ID.fullmatch(self.key_id):
            raise KeyringError(
                f"a key_id is 16 lowercase hexadecimal digits, got {self.key_id[:80]!r}"
            )
        for field in _TIME_FIELDS:
            moment: datetime | None = getattr(self, field)
            if moment is not None and (moment.utcoffset() != timedelta(0) or moment.microsecond):
                raise KeyringError(f"{field} must be in UTC and whole seconds, got {moment}")
        if self.not_before and self.not_after and self.not_before >= self.not_after:
            raise KeyringError(
                f"key {self.name!r}: not_after must be later than not_before, got "
                f"{format_time(self.not_before)} and {format_time(self.not_after)}"
            )

    def check_can_mark(self, now: datetime) -> None:
        """Return if the key may mark a text at this moment.

        Raises:
            KeyStateError: it is verify_only, revoked, not yet valid or expired.
        """
        self.check_can_verify()
        if self.state is KeyState.VERIFY_ONLY:
            raise KeyStateError(
                f"key {self.name!r} is verify_only: it recognises older texts and marks no new "
                "ones; use an active key"
            )
        if self.not_before is not None and now < self.not_before:
            raise KeyStateError(
                f"key {self.name!r} is not valid before {format_time(self.not_before)}, and it is "
                f"{format_time(now)}; use another key until then"
            )
        if self.not_after is not None and now >= self.not_after:
            raise KeyStateError(
                f"key {self.name!r} expired at {format_time(self.not_after)}; it still recognises "
                "older texts; make a new one with `wm-keys new`"
            )

    def check_can_verify(self) -> None:
        """Return if the key may be used to recognise its mark, which validity does not bound.

        Raises:
            KeyStateError: it is revoked.
        """
        if self.state is KeyState.REVOKED:
            raise KeyStateError(
                f"key {self.name!r} is revoked: others may know its secret, so its mark proves "
                "nothing; use another key"
            )

    def check_tokenizer(self, tokenizer: TokenizerReference) -> None:
        """Return if the key's texts may be read with that tokenizer.

        Raises:
            KeyStateError: it is bound to another one.
        """
        bound = self.tokenizer
        if bound is not None and bound.sha256 != tokenizer.sha256:
            raise KeyStateError(
                f"key {self.name!r} is bound to tokenizer {bound.id!r} (SHA-256 {bound.sha256}), "
                f"not to {tokenizer.id!r} ({tokenizer.sha256}); use that one, or another key"
            )

    def to_json(self) -> dict[str, object]:
        """The entry as key files and `wm-keys --json` carry it."""
        tokenizer = self.tokenizer
        return {
            "name": self.name,
            "key_id": self.key_id,
            **self.scheme.to_json(),
            "state": self.state.value,
            "created": format_time(self.created),
            "not_before": None if self.not_before is None else format_time(self.not_before),
            "not_after": None if self.not_after is None else format_time(self.not_after),
            "tokenizer": None
            if tokenizer is None
            else {"id": tokenizer.id, "sha256": tokenizer.sha256},
        }

    @classmethod
    def from_json(cls, data: object) -> "KeyEntry":
        """The entry of that form, which must have exactly the fields of `to_json`.

        Raises:
            KeyringError: a field is missing, unknown, of the wrong type or out of its range.
        """
        fields = check_fields(data, ENTRY_FIELDS, "a key", optional=OPTIONAL_ENTRY_FIELDS)
        state, created = text(fields["state"], "state"), _moment(fields["created"], "created")
        if state not in set(KeyState):
            raise KeyringError(f"state must be one of {', '.join(KeyState)}, got {state[:40]!r}")
        if created is None:
            raise KeyringError("created must be a moment, got null")
        try:
            of_scheme = {*_SCHEME_FIELDS, *OPTIONAL_ENTRY_FIELDS} & set(fields)
            scheme = Scheme.from_json({field: fields[field] for field in of_scheme})
            tokenizer = _reference(fields["tokenizer"])
        except (SchemeError, TokenizerError) as error:
            raise KeyringError(str(error)) from error
        return cls(
            name=text(fields["name"], "name"),
            key_id=text(fields["key_id"], "key_id"),
            scheme=scheme,
            created=created,
            state=KeyState(state),
            not_before=_moment(fields["not_before"], "not_before"),
            not_after=_moment(fields["not_after"], "not_after"),
            tokenizer=tokenizer,
        )


def _moment(value: object, field: str) -> datetime | None:
    if value is None:
        return None
    written = text(value, field)
    try:
        if _TIME.fullmatch(written):
            return datetime.fromisoformat(written)
    except ValueError:
        pass  # The digits are well-formed and name no day or hour there is: the same error.
    raise KeyringError(
        f"{field} must be a moment such as 2026-01-31T00:00:00Z, got {written[:40]!r}"
    )


def _reference(value: object) -> TokenizerReference | None:
    if value is None:
        return None
    fields = check_fields(value, _TOKENIZER_FIELDS, "tokenizer")
    return TokenizerReference(
        id=text(fields["id"], "tokenizer.id"), sha256=text(fields["sha256"], "tokenizer.sha256")
    )
