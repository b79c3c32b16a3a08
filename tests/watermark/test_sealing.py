import hashlib
import traceback
from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from tokenmark.watermark import sealing
from tokenmark.watermark.errors import KeyringError
from tokenmark.watermark.sealing import Sealer, SealParameters

RIGHT = "correct horse"
PARAMETERS = SealParameters(n=16, r=8, p=1, salt=bytes(16), verifier=bytes(28))


@pytest.fixture(autouse=True)
def cheap_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "SCRYPT_N", 2**4)


def saying(passphrase: str) -> Callable[[], str]:
    return lambda: passphrase


def choose(passphrase: str = RIGHT) -> Sealer:
    return Sealer.choose(saying(passphrase), context="test/1")


def reopen(sealer: Sealer, passphrase: str = RIGHT, context: str = "test/1") -> Sealer:
    return Sealer.open(sealer.parameters, saying(passphrase), context=context)


def test_what_was_sealed_opens_under_the_same_passphrase() -> None:
    sealer = choose()
    sealed = sealer.seal(b"the secret", place="here")
    assert reopen(sealer).unseal(sealed, place="here") == b"the secret"


def test_the_seal_is_scrypt_and_aes_gcm_as_stated() -> None:
    # Taken apart with the standard library's scrypt, from what the file states alone.
    sealer = choose()
    sealed = bytes.fromhex(sealer.seal(b"the secret", place="here"))
    stated = sealer.parameters
    key = hashlib.scrypt(
        b"correct horse", salt=stated.salt, n=stated.n, r=stated.r, p=stated.p, dklen=32
    )
    assert AESGCM(key).decrypt(sealed[:12], sealed[12:], b"test/1/here") == b"the secret"
    assert (
        AESGCM(key).decrypt(stated.verifier[:12], stated.verifier[12:], b"test/1/verifier") == b""
    )


def test_a_new_file_costs_what_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert (sealing.SCRYPT_N, sealing._SCRYPT_R, sealing._SCRYPT_P) == (2**17, 8, 1)


def test_another_passphrase_or_context_opens_nothing() -> None:
    sealer = choose()
    for wrong in ("correct horsf", "correct horse ", "Correct horse"):
        with pytest.raises(InvalidTag):
            reopen(sealer, wrong)
    with pytest.raises(InvalidTag):
        reopen(sealer, context="test/2")


def test_a_secret_does_not_open_in_another_place_or_file() -> None:
    sealer = choose()
    sealed = sealer.seal(b"the secret", place="here")
    with pytest.raises(InvalidTag):
        sealer.unseal(sealed, place="there")
    with pytest.raises(InvalidTag):
        choose().unseal(sealed, place="here")


def test_every_altered_digit_is_noticed() -> None:
    sealer = choose()
    sealed = sealer.seal(b"the secret", place="here")
    for i, digit in enumerate(sealed):
        altered = sealed[:i] + ("0" if digit != "0" else "1") + sealed[i + 1 :]
        with pytest.raises(InvalidTag):
            sealer.unseal(altered, place="here")


@given(st.text(alphabet="0123456789abcdefxG é", max_size=80))
def test_what_is_no_seal_is_refused_the_same_way(sealed: str) -> None:
    with pytest.raises(InvalidTag):
        Sealer(AESGCM(bytes(32)), PARAMETERS, "test/1").unseal(sealed, place="here")


def test_no_two_seals_or_salts_are_alike() -> None:
    sealer = choose()
    assert len({sealer.seal(b"x", place="here")[:24] for _ in range(100)}) == 100
    assert sealer.parameters.salt != choose().parameters.salt


def test_an_accent_is_the_same_in_one_character_or_two() -> None:
    assert isinstance(reopen(choose("caf\u00e9"), "cafe\u0301"), Sealer)


def test_a_passphrase_may_hold_any_bytes() -> None:
    assert isinstance(reopen(choose("\udcff"), "\udcff"), Sealer)


def test_an_empty_passphrase_is_refused() -> None:
    with pytest.raises(KeyringError, match="passphrase is empty"):
        choose("")
    with pytest.raises(KeyringError, match="passphrase is empty"):
        reopen(choose(), "")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"n": n} for n in (0, 1, 17, 2**21, -16)),
        *({"r": r} for r in (0, 7, 17)),
        *({"p": p} for p in (0, 5)),
        {"n": 2**20, "r": 9},
        *({"salt": bytes(size).hex()} for size in (1, 17)),
        *({"verifier": bytes(size).hex()} for size in (1, 27, 29)),
    ],
)
def test_a_file_cannot_ask_for_the_whole_machine(wrong: dict[str, object]) -> None:
    with pytest.raises(KeyringError, match=r"must|may take"):
        SealParameters.from_json({**PARAMETERS.to_json(), **wrong})


def test_parameters_round_trip() -> None:
    stated = choose().parameters
    assert SealParameters.from_json(stated.to_json()) == stated
    for field, value in [("kdf", "pbkdf2"), ("cipher", "rot13"), ("salt", "xx"), ("salt", "AA")]:
        with pytest.raises(KeyringError):
            SealParameters.from_json({**stated.to_json(), field: value})


def test_too_little_memory_is_told() -> None:
    def exhausted() -> str:
        raise MemoryError

    with pytest.raises(KeyringError, match="takes 128 MiB of memory"):
        Sealer.open(replace(PARAMETERS, n=2**17), exhausted, context="test/1")


def test_no_frame_of_a_failure_holds_the_passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_key: bytes) -> AESGCM:
        del _key
        raise ValueError("broken on purpose")

    monkeypatch.setattr(sealing, "AESGCM", broken)
    sealer_of = saying("hunter2")
    with pytest.raises(ValueError, match="on purpose") as caught:
        Sealer.choose(sealer_of, context="test/1")
    shown = "".join(
        traceback.TracebackException.from_exception(caught.value, capture_locals=True).format()
    )
    assert "_derive" in shown
    assert "hunter2" not in shown.replace('saying("hunter2")', "")
