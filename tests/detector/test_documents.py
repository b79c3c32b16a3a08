import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmark.detector.documents import parse_token_ids, read_document
from tokenmark.watermark.errors import DocumentError


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "not UTF-8 text"),
        (b"text\x00with nul", "NUL bytes"),
        ("Grüße".encode("latin-1"), "byte 2 is 0xfc"),
        ("text".encode("utf-16"), "not UTF-8 text"),
    ],
)
def test_what_is_no_text_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "input.txt"
    path.write_bytes(data)
    with pytest.raises(DocumentError, match=message) as caught:
        read_document(str(path))
    assert str(path) in str(caught.value)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.txt", tmp_path):
        with pytest.raises(DocumentError, match=r"cannot be read") as caught:
            read_document(str(path))
        assert str(path) in str(caught.value)


def test_text_is_taken_as_it_is_but_for_the_bom(tmp_path: Path) -> None:
    path = tmp_path / "input.txt"
    path.write_bytes(b"\xef\xbb\xbf a\r\nb \n")
    assert read_document(str(path)) == " a\r\nb \n"


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Grüße".encode())))
    assert read_document("-") == "Grüße"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 2, 3]", [[1, 2, 3]]),
        ("[1]\n[2, 3]\n\n", [[1], [2, 3]]),
        ("[\n1,\n2\n]", [[1, 2]]),
    ],
)
def test_one_list_or_one_a_line(text: str, expected: list[list[int]]) -> None:
    assert parse_token_ids(text, "ids.json") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "list 1 is a JSON dict"),
        ("12", "list 1 is a JSON int"),
        ("[1]\n[2", "line 2 is not JSON"),
        ("[1]\n[]", "list 2 holds no ids"),
        ("hello there", "line 1 is not JSON"),
        ("[" * 100_000, "nested too deeply|line 1 is not JSON"),
        ("9" * 5000, "line 1 is not JSON"),
    ],
)
def test_what_is_no_list_of_ids_is_named(text: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message) as caught:
        parse_token_ids(text, "ids.json")
    assert "ids.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet='[]{}0123456789,." \n-aNtrue', max_size=80))
def test_any_text_gives_lists_or_a_clear_error(text: str) -> None:
    try:
        lists = parse_token_ids(text, "ids")
    except DocumentError:
        return
    assert all(isinstance(ids, list) and ids for ids in lists)
