"""Seals short secrets under a passphrase: scrypt (RFC 7914) and AES-256-GCM (NIST SP 800-38D).

Knows nothing of files or of what the secrets are for. One scrypt serves all secrets of a file; each
is sealed with a nonce of its own and with associated data that tie it to its place.
"""

import re
import secrets
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from tokenmark.watermark.errors import KeyringError
from tokenmark.watermark.strict_json import check_fields, integer, text

__all__ = ["SealParameters", "Sealer"]

# The cost of a new file: 128 MiB and some 0.3 s. Not Final: it is read at each use, so that tests
# can lower it.
SCRYPT_N = 2**17

_KDF: Final = "scrypt"
_CIPHER: Final = "aes-256-gcm"
_SCRYPT_R: Final = 8
_SCRYPT_P: Final = 1
_SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16

# What a file may ask of the machine that opens it: at most 1 GiB and some ten seconds.
_MAX_SCRYPT_BYTES: Final = 2**30
_SCRYPT_N_BITS: Final = range(1, 21)
_SCRYPT_R_RANGE: Final = range(8, 17)
_SCRYPT_P_RANGE: Final = range(1, 5)

_VERIFIER: Final = "verifier"
_FIELDS: Final = frozenset({"kdf", "n", "r", "p", "salt", "cipher", _VERIFIER})
_HEX: Final = re.compile(r"(?:[0-9a-f]{2}){1,1024}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SealParameters:
    """What a file states openly about its seal.

    `verifier` is a sealed nothing: only the right passphrase opens it, so a wrong one is told as
    such, and no secret is ever added under another passphrase than the first.

    Raises:
        KeyringError: a value outside the bounds that keep a hostile file from taking the machine.
    """

    n: int
    r: int
    p: int
    salt: bytes
    verifier: bytes

    def __post_init__(self) -> None:
        if self.n not in {2**bits for bits in _SCRYPT_N_BITS}:
            raise KeyringError(f"scrypt's n must be a power of two up to 2^20, got {self.n}")
        if self.r not in _SCRYPT_R_RANGE or self.p not in _SCRYPT_P_RANGE:
            raise KeyringError(f"scrypt's r must be 8..16 and p 1..4, got {self.r} and {self.p}")
        if 128 * self.n * self.r > _MAX_SCRYPT_BYTES:
            raise KeyringError(
                f"scrypt may take 1 GiB at most, n = {self.n} and r = {self.r} take more"
            )
        if len(self.salt) != _SALT_BYTES:
            raise KeyringError(f"the salt must have {_SALT_BYTES} bytes, got {len(self.salt)}")
        if len(self.verifier) != _NONCE_BYTES + _TAG_BYTES:
            raise KeyringError(
                f"the verifier must have {_NONCE_BYTES + _TAG_BYTES} bytes, "
                f"got {len(self.verifier)}"
            )

    def to_json(self) -> dict[str, object]:
        """The form that key files carry."""
        return {
            "kdf": _KDF,
            "n": self.n,
            "r": self.r,
            "p": self.p,
            "salt": self.salt.hex(),
            "cipher": _CIPHER,
            _VERIFIER: self.verifier.hex(),
        }

    @classmethod
    def from_json(cls, data: object) -> "SealParameters":
        """The parameters of a file, which must have exactly the fields of `to_json`."""
        fields = check_fields(data, _FIELDS, "the seal")
        if (fields["kdf"], fields["cipher"]) != (_KDF, _CIPHER):
            raise KeyringError(f"the seal must be of {_KDF} and {_CIPHER}; upgrade tokenmark")
        return cls(
            n=integer(fields["n"], "n"),
            r=integer(fields["r"], "r"),
            p=integer(fields["p"], "p"),
            salt=_bytes(fields["salt"], "salt"),
            verifier=_bytes(fields[_VERIFIER], _VERIFIER),
        )


def _bytes(value: object, field: str) -> bytes:
    digits = text(value, field)
    if not _HEX.fullmatch(digits):
        raise KeyringError(f"{field} must be written in lowercase hexadecimal digits")
    return bytes.fromhex(digits)


class Sealer:
    """Seals and unseals under one passphrase; made by `choose` or `open`.

    It holds the derived key, never the passphrase. `context` separates kinds and versions of files.
    """

    __slots__ = ("_cipher", "_context", "parameters")

    def __init__(self, cipher: AESGCM, parameters: SealParameters, context: str) -> None:
        self._cipher = cipher
        self._context = context
        self.parameters = parameters

    @classmethod
    def choose(cls, ask: Callable[[], str], *, context: str) -> "Sealer":
        """A sealer with a fresh salt for the passphrase that `ask` returns.

        Raises:
            KeyringError: the passphrase is empty, or scrypt lacks memory.
        """
        salt = secrets.token_bytes(_SALT_BYTES)
        n = SCRYPT_N
        cipher = _derive(ask, salt=salt, n=n, r=_SCRYPT_R, p=_SCRYPT_P)
        verifier = _seal(cipher, b"", _place(context, _VERIFIER))
        parameters = SealParameters(n=n, r=_SCRYPT_R, p=_SCRYPT_P, salt=salt, verifier=verifier)
        return cls(cipher, parameters, context)

    @classmethod
    def open(cls, parameters: SealParameters, ask: Callable[[], str], *, context: str) -> "Sealer":
        """The sealer that made the parameters, for the passphrase that `ask` returns.

        Raises:
            InvalidTag: it is another passphrase.
            KeyringError: the passphrase is empty, or scrypt lacks memory.
        """
        cipher = _derive(ask, salt=parameters.salt, n=parameters.n, r=parameters.r, p=parameters.p)
        _unseal(cipher, parameters.verifier, _place(context, _VERIFIER))
        return cls(cipher, parameters, context)

    def seal(self, secret: bytes, *, place: str) -> str:
        """The secret sealed for a place in the file, in hexadecimal digits: nonce, text, tag."""
        return _seal(self._cipher, secret, _place(self._context, place)).hex()

    def unseal(self, sealed: str, *, place: str) -> bytes:
        """The secret that was sealed for this place.

        Raises:
            InvalidTag: it was altered, or sealed for another place or under another passphrase.
        """
        if not _HEX.fullmatch(sealed):
            raise InvalidTag
        return _unseal(self._cipher, bytes.fromhex(sealed), _place(self._context, place))


def _place(context: str, place: str) -> bytes:
    return f"{context}/{place}".encode("ascii")


def _derive(ask: Callable[[], str], *, salt: bytes, n: int, r: int, p: int) -> AESGCM:
    # Neither the passphrase nor the derived key gets a name here, so no traceback can show them.
    try:
        return AESGCM(Scrypt(salt=salt, length=_KEY_BYTES, n=n, r=r, p=p).derive(_encode(ask())))
    except MemoryError:
        raise KeyringError(
            f"opening a key file takes {128 * n * r >> 20} MiB of memory, which this machine "
            "lacks; close other programs"
        ) from None


def _encode(passphrase: str) -> bytes:
    if not passphrase:
        raise KeyringError("the passphrase is empty; give one of at least one character")
    # One spelling of accents for all keyboards (RFC 8265), and any byte an environment may hold.
    return unicodedata.normalize("NFC", passphrase).encode("utf-8", "surrogateescape")


def _seal(cipher: AESGCM, secret: bytes, place: bytes) -> bytes:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, secret, place)


def _unseal(cipher: AESGCM, sealed: bytes, place: bytes) -> bytes:
    if len(sealed) < _NONCE_BYTES + _TAG_BYTES:
        raise InvalidTag
    return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place)
