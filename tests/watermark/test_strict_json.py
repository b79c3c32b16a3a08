import traceback

import pytest

from tokenmark.watermark.errors import KeyringError
from tokenmark.watermark.hidden import HiddenText
from tokenmark.watermark.strict_json import check_fields, integer, load_object, text

HIDDEN = frozenset({"secret"})


def test_hidden_fields_are_hidden_at_every_depth() -> None:
    found = load_object(b'{"a": [{"secret": "hunter2"}], "secret": "hunter3"}', hidden=HIDDEN)
    assert "hunter" not in repr(found)
    secret = found["secret"]
    assert isinstance(secret, HiddenText)
    assert secret.reveal() == "hunter3"


BROKEN = [
    (b"", "broken JSON at line 1, column 1"),
    (b'{"secret": "hunter2",\n oops}', "broken JSON at line 2"),
    (b'{"secret": "hunter2", "a": 1, "a": 1}', "given twice"),
    (b'{"secret": "hunter2", "a": NaN}', "NaN"),
    (b'{"secret": "hunter2", "a": -Infinity}', "infinity"),
    (b'{"secret": "hunter2", "a": \xff}', "not UTF-8 text at byte 27"),
    (b'{"secret": "hunter2", "a": ' + b"[" * 100_000, "nesting"),
    (b'{"secret": "hunter2", "a": ' + b"9" * 5_000 + b"}", "number"),
    (b'["hunter2"]', "holds a list"),
    (b'"hunter2"', "holds a string"),
    (b"null", "holds null"),
    (b'\xef\xbb\xbf{"secret": "hunter2"}', "broken JSON"),
]


@pytest.mark.parametrize(("data", "reason"), BROKEN, ids=[reason for _, reason in BROKEN])
def test_broken_input_is_refused_and_not_shown(data: bytes, reason: str) -> None:
    with pytest.raises(KeyringError, match=reason) as caught:
        load_object(data, hidden=HIDDEN)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    frames = [frame for frame, _ in traceback.walk_tb(caught.tb)][1:]
    assert frames
    assert not any("hunter2" in repr(frame.f_locals) for frame in frames)


def test_fields_must_be_exactly_the_expected_ones() -> None:
    assert check_fields({"a": 1}, frozenset({"a"}), "it") == {"a": 1}
    with pytest.raises(KeyringError, match=r"it has unknown or missing fields: 'a', 'b'$"):
        check_fields({"b": 1}, frozenset({"a"}), "it")
    with pytest.raises(KeyringError, match="'x0', 'x1', 'x2', 'x3', 'x4' and 4 more"):
        check_fields({f"x{i}": 1 for i in range(9)}, frozenset(), "it")
    with pytest.raises(KeyringError, match="it must be an object, got a list"):
        check_fields([], frozenset(), "it")


@pytest.mark.parametrize("value", [True, 1.0, "1", None, [1], {}, 2**64])
def test_only_integers_of_64_bits_are_integers(value: object) -> None:
    with pytest.raises(KeyringError, match="n must be an integer"):
        integer(value, "n")


@pytest.mark.parametrize("value", [True, 1, None, ["a"], HiddenText("hunter2")])
def test_only_strings_are_strings(value: object) -> None:
    with pytest.raises(KeyringError, match="name must be a string") as caught:
        text(value, "name")
    assert "hunter2" not in str(caught.value)
