import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.detector.test_detector import KEY, MARKED, SCHEME
from tests.tiny_engine import tiny_tokenizer_json
from tokenmark.cli import detect
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.key_entry import KeyEntry, KeyState
from tokenmark.watermark.keyring import KeyringFile, Protection
from tokenmark.watermark.tokenizers import TokenizerReference, reference_of

UNMARKED = "the quick brown fox jumps over the lazy dog and then goes home again " * 2
CREATED = datetime(2026, 1, 1, tzinfo=UTC)


class Desk:
    """A folder with a keyring, a tokenizer and texts, and the command to examine them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keyring = folder / "keyring.json"
        self.tokenizer = self.write("tokenizer.json", tiny_tokenizer_json())

    def write(self, name: str, data: str | bytes) -> str:
        path = self.folder / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return str(path)

    def add_key(
        self,
        name: str,
        *,
        key: WatermarkKey = KEY,
        tokenizer: TokenizerReference | None = None,
        state: KeyState = KeyState.ACTIVE,
    ) -> None:
        entry = KeyEntry(
            name=name,
            key_id=key.key_id,
            scheme=SCHEME,
            created=CREATED,
            state=state,
            tokenizer=tokenizer,
        )
        KeyringFile(self.keyring).add(entry, key, protection=Protection.NONE)

    def run(self, *arguments: str, typed: str | bytes = "") -> Result:
        keyring = ["--keyring", str(self.keyring)]
        return CliRunner().invoke(detect.main, [*arguments, *keyring], input=typed)

    def json(self, *arguments: str, status: int = 0) -> Any:  # noqa: ANN401 - whatever is printed
        result = self.run(*arguments, "--tokenizer", self.tokenizer, "--json")
        assert result.exit_code == status, result.output
        return json.loads(result.stdout)

    def refused(self, *arguments: str, typed: str | bytes = "") -> str:
        result = self.run(*arguments, typed=typed)
        assert result.exit_code == 2, result.output
        assert "Traceback" not in result.output
        lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        assert len(lines) == 1, result.stderr
        return lines[0]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    made.add_key("mine", tokenizer=reference_of(tiny_tokenizer_json()))
    made.write("marked.txt", MARKED)
    made.write("plain.txt", UNMARKED)
    return made


def path(desk: Desk, name: str) -> str:
    return str(desk.folder / name)


def test_the_table_shows_verdict_and_log_p(desk: Desk) -> None:
    result = desk.run(path(desk, "marked.txt"), "--tokenizer", desk.tokenizer)
    assert result.exit_code == 0
    assert "watermarked" in result.stdout
    assert "mine (tm1)" in result.stdout
    assert "was found" in result.stdout


def test_json_of_one_text_and_of_several(desk: Desk) -> None:
    one = desk.json(path(desk, "marked.txt"))
    assert one["verdict"] == "watermarked"
    assert one["signals"][0]["key_id"] == KEY.key_id
    two = desk.json(path(desk, "marked.txt"), path(desk, "plain.txt"))
    assert [item["verdict"] for item in two["data"]] == ["watermarked", "not_detected"]
    assert [item["source"] for item in two["data"]] == [
        path(desk, "marked.txt"),
        path(desk, "plain.txt"),
    ]


@pytest.mark.parametrize(
    ("names", "status"),
    [
        (["marked.txt"], 0),
        (["plain.txt"], 1),
        (["short.txt"], 3),
        (["plain.txt", "marked.txt"], 0),
        (["plain.txt", "short.txt"], 3),
        (["marked.txt", "missing.txt"], 2),
        (["plain.txt", "binary.txt"], 2),
    ],
)
def test_exit_code_is_the_verdict_when_asked(desk: Desk, names: list[str], status: int) -> None:
    desk.write("short.txt", "abc abc!")
    desk.write("binary.txt", b"\x00\xff")
    files = [path(desk, name) for name in names]
    result = desk.run(*files, "--tokenizer", desk.tokenizer, "--exit-code")
    assert result.exit_code == status
    plain = desk.run(*files, "--tokenizer", desk.tokenizer)
    assert plain.exit_code == (2 if status == 2 else 0)


def test_a_failing_file_does_not_stop_the_rest(desk: Desk) -> None:
    data = desk.json(path(desk, "missing.txt"), path(desk, "marked.txt"), status=2)["data"]
    assert [item["verdict"] for item in data] == ["error", "watermarked"]
    assert "missing.txt" in data[0]["error"]["message"]


def test_standard_input_and_ids(desk: Desk) -> None:
    ids = [ord(c) for c in MARKED]
    typed = json.dumps(ids) + "\n" + json.dumps(ids[:3])
    result = desk.run("-", "--ids", "--json", "--tokenizer", desk.tokenizer, typed=typed)
    first, second = json.loads(result.stdout)["data"]
    assert (first["source"], first["verdict"]) == ("-:1", "watermarked")
    assert (second["source"], second["verdict"]) == ("-:2", "inconclusive")
    result = desk.run("-", "--tokenizer", desk.tokenizer, typed=MARKED)
    assert "watermarked" in result.stdout


def test_a_prompt_is_cut_off(desk: Desk) -> None:
    question = desk.write("prompt.txt", "What? ")
    both = desk.write("both.txt", "What? " + MARKED)
    result = desk.json(both, "--prompt", question)
    assert result["signals"] == desk.json(path(desk, "marked.txt"))["signals"]
    assert result["warnings"]


def test_all_keys_are_tested_and_corrected_for(desk: Desk) -> None:
    for number in range(4):
        desk.add_key(f"old-{number}", key=WatermarkKey.generate(), state=KeyState.VERIFY_ONLY)
    desk.add_key("gone", key=WatermarkKey.generate(), state=KeyState.REVOKED)
    result = desk.run(path(desk, "marked.txt"), "--tokenizer", desk.tokenizer, "--json")
    assert {signal["tests"] for signal in json.loads(result.stdout)["signals"]} == {5}
    assert "Warning: not tested: key 'gone' is revoked" in result.stderr
    only = desk.run(
        path(desk, "marked.txt"), "--tokenizer", desk.tokenizer, "--key", "mine", "--json"
    )
    assert [signal["tests"] for signal in json.loads(only.stdout)["signals"]] == [1]


def test_bad_input_is_one_line_and_changes_nothing(desk: Desk) -> None:
    marked, tokenizer = path(desk, "marked.txt"), ("--tokenizer", desk.tokenizer)
    desk.add_key("gone", key=WatermarkKey.generate(), state=KeyState.REVOKED)
    other = tiny_tokenizer_json().replace(b"<|end|>", b"<|fin|>")
    cases: dict[str, tuple[str, ...]] = {
        "is empty": (desk.write("empty.txt", ""), *tokenizer),
        "not UTF-8 text": (desk.write("binary.bin", b"\x80\x00"), *tokenizer),
        "2 tokens": (desk.write("tiny.txt", "ab"), *tokenizer),
        "bound to tokenizer": (marked, "--tokenizer", desk.write("other.json", other)),
        "is revoked": (marked, *tokenizer, "--key", "gone"),
        "no key named 'nobody'": (marked, *tokenizer, "--key", "nobody"),
        "is not JSON": (desk.write("ids.json", "[1, 2"), "--ids", *tokenizer),
        "number 1 is 300": (desk.write("far.json", "[1, 300, 3]"), "--ids", *tokenizer),
        "number 1 is -7": (desk.write("negative.json", "[1, -7, 3]"), "--ids", *tokenizer),
        "number 1 is a float": (desk.write("float.json", "[1, 2.5, 3]"), "--ids", *tokenizer),
        "cannot be read": (path(desk, "missing.txt"), *tokenizer),
        "tokenizer file": (marked, "--tokenizer", path(desk, "nowhere.json")),
        "not in the cache": (marked,),
    }  # fmt: skip
    before = desk.keyring.read_bytes()
    for message, arguments in cases.items():
        named = arguments if "--key" in arguments else (*arguments, "--key", "mine")
        assert message in desk.refused(*named)
    assert desk.keyring.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "newer"),
        ({"format": "something else"}, "keyring.json"),
        ({"keys": "none"}, "keyring.json"),
    ],
)
def test_a_keyring_that_cannot_be_read_is_named(
    desk: Desk, change: dict[str, object], message: str
) -> None:
    document = json.loads(desk.keyring.read_text())
    desk.keyring.write_text(json.dumps(document | change))
    assert message in desk.refused(path(desk, "marked.txt"))


def test_an_unknown_scheme_is_named(desk: Desk) -> None:
    desk.keyring.write_text(desk.keyring.read_text().replace('"tm1"', '"tm9"'))
    assert "unknown scheme 'tm9'" in desk.refused(path(desk, "marked.txt"))


def test_a_readable_keyring_with_clear_secrets_is_refused_with_the_way_out(desk: Desk) -> None:
    desk.keyring.chmod(0o644)
    message = desk.refused(path(desk, "marked.txt"))
    assert "chmod" in message
    assert KEY.reveal_text() not in message


def test_no_secret_is_printed(desk: Desk) -> None:
    for arguments in (("--json",), ()):
        result = desk.run(path(desk, "marked.txt"), "--tokenizer", desk.tokenizer, *arguments)
        assert KEY.reveal_text() not in result.output


@pytest.mark.parametrize("level", ["0", "1", "-1", "nan", "x"])
def test_a_level_outside_its_range_is_a_usage_error(desk: Desk, level: str) -> None:
    result = desk.run(path(desk, "plain.txt"), "--level", level)
    assert result.exit_code == 2
    assert "--level" in result.stderr


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from tokenmark.cli.detect import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'scipy', 'tokenizers', 'torch', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
