import copy
import pickle
import traceback

import pytest

from tokenmark.watermark.errors import KeyMaterialError
from tokenmark.watermark.key import KeyForm, WatermarkKey

SECRET = "0123456789abcdef" * 4


@pytest.fixture
def key() -> WatermarkKey:
    return WatermarkKey.from_hex(SECRET)


def test_a_secret_shows_in_no_rendering(key: WatermarkKey) -> None:
    number = WatermarkKey.from_integer(81985529216486000)
    for rendered in (repr(key), str(key), f"{key}", f"{[key]}", "%s" % key):  # noqa: UP031 - one more way to render
        assert SECRET not in rendered
        assert key.key_id in rendered
    assert "81985529216486000" not in repr(number)


@pytest.mark.parametrize("secret", [SECRET[:-1], SECRET + "0", "g" * 64, "", " " + SECRET[1:]])
def test_a_malformed_secret_is_refused_without_being_repeated(secret: str) -> None:
    with pytest.raises(KeyMaterialError) as caught:
        WatermarkKey.from_hex(secret)
    shown = "".join(traceback.format_exception_only(caught.value))
    assert not secret.strip() or secret not in shown


@pytest.mark.parametrize(
    "text", ["-1", "18446744073709551616", "0xg1", "1e3", "12 ", "0x" + "f" * 17]
)
def test_a_malformed_integer_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(KeyMaterialError) as caught:
        WatermarkKey.parse(text, KeyForm.UINT64)
    assert text not in str(caught.value)


@pytest.mark.parametrize("copier", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_key_cannot_be_copied_out(key: WatermarkKey, copier: object) -> None:
    assert callable(copier)
    with pytest.raises(TypeError, match="cannot be pickled"):
        copier(key)


def test_equality_is_of_the_secret_and_its_form(key: WatermarkKey) -> None:
    assert key == WatermarkKey.from_hex(SECRET.upper())
    assert hash(key) == hash(WatermarkKey.from_hex(SECRET))
    assert key != WatermarkKey.generate()
    assert key != SECRET
    # Two entries of one integer have random key_ids and are the same secret.
    assert WatermarkKey.from_integer(99) == WatermarkKey.from_integer(99)
    assert WatermarkKey.from_integer(99).key_id != WatermarkKey.from_integer(99).key_id


def test_text_form_round_trips() -> None:
    for key in (WatermarkKey.from_hex(SECRET), WatermarkKey.from_integer(2**64 - 2)):
        assert WatermarkKey.parse(key.reveal_text(), key.form, key_id=key.key_id) == key
    assert WatermarkKey.parse("0x2a", KeyForm.UINT64) == WatermarkKey.from_integer(42)


def test_published_keys_are_known() -> None:
    assert WatermarkKey.from_hex("00" * 32).is_published()
    assert WatermarkKey.from_integer(42).is_published()
    assert not WatermarkKey.generate().is_published()
