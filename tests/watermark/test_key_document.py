import copy
import dataclasses
import json
import pickle
import traceback
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmark.watermark.errors import KeyringError
from tokenmark.watermark.hidden import HiddenText
from tokenmark.watermark.key_document import KeyDocument, Protection, StoredKey
from tokenmark.watermark.key_entry import KeyEntry
from tokenmark.watermark.scheme import Scheme
from tokenmark.watermark.sealing import SealParameters

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SEAL = SealParameters(n=16, r=8, p=1, salt=bytes(16), verifier=bytes(28))
SECRET = "5ec3e7" * 8


def stored(name: str, number: int) -> StoredKey:
    scheme = Scheme(name="tm1")
    entry = KeyEntry(name=name, key_id=f"{number:016x}", scheme=scheme, created=NOON)
    return StoredKey(entry, HiddenText(SECRET))


def document(*, seal: SealParameters | None) -> KeyDocument:
    return KeyDocument(seal=seal, keys=(stored("a", 1), stored("b", 2)))


def as_json(*, seal: SealParameters | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(document(seal=seal).to_bytes())
    return found


def read(value: object) -> KeyDocument:
    return KeyDocument.from_bytes(json.dumps(value).encode())


@pytest.mark.parametrize("seal", [None, SEAL])
def test_a_document_round_trips(seal: SealParameters | None) -> None:
    original = document(seal=seal)
    found = KeyDocument.from_bytes(original.to_bytes())
    assert found.seal == seal
    assert [key.entry for key in found.keys] == [key.entry for key in original.keys]
    assert [key.secret.reveal() for key in found.keys] == [SECRET, SECRET]
    assert found.to_bytes() == original.to_bytes()


def test_the_file_says_how_it_keeps_its_secrets() -> None:
    assert document(seal=None).protection is Protection.NONE
    assert as_json()["protection"] == "none"
    assert document(seal=SEAL).protection is Protection.PASSPHRASE
    assert as_json(seal=SEAL)["protection"] == "passphrase"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, "newer version of tokenmark .file version 2.*upgrade tokenmark"),
        ({"version": 2, "keys": {}, "new": 1}, "newer version"),
        ({"version": 0}, "version must be 1, got 0"),
        ({"version": "1"}, "version must be an integer"),
        ({"version": True}, "version must be an integer"),
        ({"format": "something"}, "it is no key file"),
        ({"format": None}, "it is no key file"),
        ({"protection": "rot13"}, "protection must be passphrase or none"),
        ({"protection": ["none"]}, "protection must be a string"),
        ({"protection": "passphrase"}, "the file has unknown or missing fields: 'seal'"),
        ({"seal": SEAL.to_json()}, "the file has unknown or missing fields: 'seal'"),
        ({"comment": "x"}, "unknown or missing fields: 'comment'"),
        ({"keys": {}}, "keys must be a list"),
        ({"keys": [1]}, "key number 1: a key must be an object, got a number"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(KeyringError, match=reason):
        read({**as_json(), **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "a"}, "key number 2 .'a'.: its name or key_id is that of an earlier key"),
        ({"key_id": f"{1:016x}"}, "key number 2 .'b'.: its name or key_id"),
        ({"secret": 7}, "key number 2 .'b'.: secret must be a string"),
        ({"extra": 7}, "key number 2 .'b'.: a key has unknown or missing fields: 'extra'"),
        ({"state": "gone"}, "key number 2 .'b'.: state must be one of"),
        ({"context_width": 99}, "key number 2 .'b'.: context_width of tm1"),
    ],
)
def test_a_wrong_key_is_named(changes: dict[str, object], reason: str) -> None:
    found = as_json()
    found["keys"][1] |= changes
    with pytest.raises(KeyringError, match=reason):
        read(found)


def test_neither_a_name_nor_a_key_id_is_given_twice() -> None:
    with pytest.raises(KeyringError, match="a key named 'a' already"):
        document(seal=None).with_added(stored("a", 3))
    with pytest.raises(KeyringError, match="is there already, as 'b'"):
        document(seal=None).with_added(stored("c", 2))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def paths(value: object, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    children: list[tuple[Any, object]] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    return [here, *(path for key, child in children for path in paths(child, (*here, key)))]


@given(st.data(), st.sampled_from([None, SEAL]))
def test_a_changed_value_gives_a_document_or_a_keyring_error(
    data: st.DataObject, seal: SealParameters | None
) -> None:
    value: Any = as_json(seal=seal)
    path = data.draw(st.sampled_from(paths(value)))
    new = data.draw(json_values)
    if not path:
        value = new
    else:
        parent = value
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = new
    try:
        found = read(value)
    except KeyringError:
        return
    assert KeyDocument.from_bytes(found.to_bytes()).to_bytes() == found.to_bytes()


@given(st.data())
def test_a_changed_byte_gives_a_document_or_a_keyring_error(data: st.DataObject) -> None:
    content = bytearray(document(seal=SEAL).to_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    length = data.draw(st.integers(0, 3))
    content[position : position + length] = data.draw(st.binary(max_size=3))
    try:
        found = KeyDocument.from_bytes(bytes(content))
    except KeyringError:
        return
    assert len(found.keys) == 2


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(KeyringError):
        KeyDocument.from_bytes(content)


def test_no_view_of_a_document_shows_a_secret() -> None:
    found = document(seal=None)
    for text in (repr(found), str(found), f"{found}", repr(found.keys), repr(found.find("a"))):
        assert SECRET not in text
    for take in (pickle.dumps, copy.deepcopy, dataclasses.asdict):
        with pytest.raises(TypeError, match="neither pickled nor copied"):
            take(found)


BREAKING: list[dict[str, object]] = [
    {"comment": 1},
    {"version": 2},
    {"keys": None},
    {"protection": "passphrase"},
    {"seal": None},
]


@pytest.mark.parametrize("changes", BREAKING)
def test_no_frame_of_a_failed_reading_shows_a_secret(changes: dict[str, object]) -> None:
    with pytest.raises(KeyringError) as caught:
        read({**as_json(), **changes})
    frames = [frame for frame, _ in traceback.walk_tb(caught.tb)]
    library = [frame for frame in frames if "key_document" in frame.f_code.co_filename]
    inside = [frame for frame in library if "test_" not in frame.f_code.co_filename]
    assert inside
    for frame in inside:
        assert SECRET not in repr(frame.f_locals)
