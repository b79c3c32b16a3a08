"""The secret of a mark and its public name. Knows nothing of files or of how a mark is drawn."""

import hmac
import re
import secrets
from collections.abc import Sequence
from enum import Enum
from typing import Final, NoReturn

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tokenmark.watermark.errors import KeyMaterialError

__all__ = ["KeyForm", "WatermarkKey", "hkdf_sha256"]

_MASTER_BYTES: Final = 32
_KEY_ID: Final = re.compile(r"[0-9a-f]{16}")


class KeyForm(Enum):
    """What a scheme's secret looks like, in words."""

    BYTES32 = "64 hexadecimal digits"
    UINT64 = "an integer from 0 to 2^64 - 1, decimal or 0x"
    UINT64_PAIR = "two integers from 0 to 2^64 - 1, decimal or 0x, with a comma between them"
    INT64 = "an integer from -2^63 to 2^63 - 1"
    INT64_LIST = "1 to 64 integers from -2^63 to 2^63 - 1, with commas between them"

    @property
    def counts(self) -> range:
        """How many integers it is made of; none of raw bytes."""
        return _COUNTS[self]

    @property
    def is_signed(self) -> bool:
        """Whether its integers may be negative; they are kept in two's complement."""
        return self in {KeyForm.INT64, KeyForm.INT64_LIST}


_COUNTS: Final = {
    KeyForm.BYTES32: range(0),
    KeyForm.UINT64: range(1, 2),
    KeyForm.UINT64_PAIR: range(2, 3),
    KeyForm.INT64: range(1, 2),
    KeyForm.INT64_LIST: range(1, 65),
}
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}|0[xX][0-9a-fA-F]{1,16}")


def hkdf_sha256(ikm: bytes, info: str, length: int) -> bytes:
    """HKDF-SHA256 (RFC 5869) with a salt of 32 zero bytes."""
    hkdf = HKDF(algorithm=hashes.SHA256(), length=length, salt=bytes(32), info=info.encode("ascii"))
    return hkdf.derive(ikm)


class WatermarkKey:
    """A secret with its key_id; never shown, never pickled, compared in constant time.

    Build one with `generate`, `from_hex` or `from_integer`. The secret leaves only by the explicit
    calls `reveal_bytes` and `reveal_text`.

    >>> WatermarkKey.from_hex("00" * 32)
    WatermarkKey(key_id='15d20f6a0cc12b41', secret=<redacted>)
    """

    __slots__ = ("_form", "_key_id", "_secret")

    def __init__(self, secret: bytes, *, form: KeyForm, key_id: str) -> None:
        n_bytes, n_integers = len(secret), len(secret) // 8
        is_whole = n_bytes == 8 * n_integers and n_integers in form.counts
        if not (n_bytes == _MASTER_BYTES if form is KeyForm.BYTES32 else is_whole):
            raise KeyMaterialError(
                f"a secret of this scheme is {form.value}, got {n_bytes} bytes; "
                "make one with `wm-keys new`"
            )
        if not _KEY_ID.fullmatch(key_id):
            raise KeyMaterialError(f"a key_id is 16 lowercase hexadecimal digits, got {key_id!r}")
        self._secret = secret
        self._form = form
        self._key_id = key_id

    @classmethod
    def generate(cls) -> "WatermarkKey":
        """A fresh 256-bit key from the operating system."""
        return cls.from_bytes(secrets.token_bytes(_MASTER_BYTES))

    @classmethod
    def from_bytes(cls, master: bytes) -> "WatermarkKey":
        """The key of a 32-byte master secret; the key_id is derived from it by HKDF."""
        if len(master) != _MASTER_BYTES:
            raise KeyMaterialError(f"a master key has 32 bytes, got {len(master)}")
        key_id = hkdf_sha256(master, "tokenmark/key-id", 8).hex()
        return cls(master, form=KeyForm.BYTES32, key_id=key_id)

    @classmethod
    def from_hex(cls, text: str) -> "WatermarkKey":
        """The key written as 64 hexadecimal digits."""
        if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
            raise KeyMaterialError(
                f"this scheme's secret is {KeyForm.BYTES32.value}; what was given has "
                f"{len(text)} characters and is not that"
            )
        return cls.from_bytes(bytes.fromhex(text))

    @classmethod
    def from_integer(cls, value: int, *, key_id: str | None = None) -> "WatermarkKey":
        """The key of a scheme whose secret is one unsigned 64-bit integer."""
        return cls.from_integers([value], KeyForm.UINT64, key_id=key_id)

    @classmethod
    def from_integers(
        cls, values: Sequence[int], form: KeyForm, *, key_id: str | None = None
    ) -> "WatermarkKey":
        """The key of a scheme whose secret is made of 64-bit integers.

        The key_id is random unless the stored one is given: one derived from so few bits could be
        inverted by trying them all.
        """
        low, high = (-(2**63), 2**63) if form.is_signed else (0, 2**64)
        if len(values) not in form.counts or not all(low <= value < high for value in values):
            raise KeyMaterialError(f"this scheme's secret is {form.value}")
        return cls(
            b"".join((value % 2**64).to_bytes(8, "little") for value in values),
            form=form,
            key_id=secrets.token_hex(8) if key_id is None else key_id,
        )

    @classmethod
    def parse(cls, text: str, form: KeyForm, *, key_id: str | None = None) -> "WatermarkKey":
        """The key that `text` spells in the given form; errors never repeat the text."""
        if form is KeyForm.BYTES32:
            return cls.from_hex(text)
        written = re.split(", ?", text)
        if not all(_INTEGER.fullmatch(part) for part in written):
            raise KeyMaterialError(f"this scheme's secret is {form.value}")
        values = [int(part, 16 if part[:2] in {"0x", "0X"} else 10) for part in written]
        return cls.from_integers(values, form, key_id=key_id)

    @property
    def key_id(self) -> str:
        """The public name: 16 hexadecimal digits."""
        return self._key_id

    @property
    def form(self) -> KeyForm:
        """What the secret looks like."""
        return self._form

    def reveal_bytes(self) -> bytes:
        """The secret itself, for key derivation only: 32 bytes, or 8 little-endian an integer."""
        return self._secret

    def reveal_integers(self) -> tuple[int, ...]:
        """The integers that the secret is made of, for key derivation only; none of raw bytes."""
        if self._form is KeyForm.BYTES32:
            return ()
        return tuple(
            int.from_bytes(self._secret[i : i + 8], "little", signed=self._form.is_signed)
            for i in range(0, len(self._secret), 8)
        )

    def reveal_text(self) -> str:
        """The secret as `parse` reads it, for the key file only."""
        if self._form is KeyForm.BYTES32:
            return self._secret.hex()
        return ",".join(map(str, self.reveal_integers()))

    def is_published(self) -> bool:
        """Whether this secret stands in public test vectors or documentation."""
        if self._form is KeyForm.BYTES32:
            return self._key_id in _PUBLISHED_KEY_IDS
        return _PUBLISHED_INTEGERS.issuperset(self.reveal_integers())

    def __repr__(self) -> str:
        return f"WatermarkKey(key_id={self._key_id!r}, secret=<redacted>)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WatermarkKey):
            return NotImplemented
        return self._form is other._form and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash((self._form, self._secret))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a WatermarkKey cannot be pickled or copied; pass the keyring instead")


# The keys of the golden vectors and of the other engines' documentation: a mark under one of them
# can be forged by anybody.
_PUBLISHED_KEY_IDS: Final = frozenset(
    {"15d20f6a0cc12b41", "4756a43474b27415", "abcb64315f805c90", "17f0acd2fd6dd805"}
)
_PUBLISHED_INTEGERS: Final = frozenset(
    {0, 1, 7, 42, 43, 2**32, 2**63, 2**64 - 1, 0x0123456789ABCDEF, 15726070495360670683}
)
