import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from tokenmark.cli import options
from tokenmark.cli.options import keyring_file, prompt_hidden
from tokenmark.cli.output import Command
from tokenmark.watermark.keyring import PassphraseUse
from tokenmark.watermark.locations import default_keyring_path

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def no_passphrase_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENMARK_PASSPHRASE", raising=False)


def has_terminal(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:  # noqa: FBT001 - the one thing it says
    monkeypatch.setattr(options, "_has_terminal", lambda: answer)


def asked(
    passphrase_file: Path | None = None,
    *,
    use: PassphraseUse = PassphraseUse.OPEN,
    typed: str = "",
) -> tuple[str | None, str]:
    """What `keyring_file` finds as the passphrase, and what it says on stderr."""
    found: list[str] = []

    def body() -> None:
        ask = keyring_file(Path("k.json"), passphrase_file=passphrase_file)._passphrase
        assert ask is not None
        found.append(ask(use))

    result = CliRunner().invoke(Command("it", callback=body), input=typed)
    assert result.exit_code == (0 if found else 2)
    assert result.stdout == ""
    return (found[0] if found else None), result.stderr


def passphrase_file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "the passphrase"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_the_file_comes_before_the_environment_before_the_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_terminal(monkeypatch, answer=True)
    assert asked(typed="from the prompt\n")[0] == "from the prompt"
    monkeypatch.setenv("TOKENMARK_PASSPHRASE", "from the environment")
    assert asked(typed="from the prompt\n")[0] == "from the environment"
    path = passphrase_file(tmp_path, b"from the file")
    assert asked(path, typed="from the prompt\n")[0] == "from the file"


@pytest.mark.parametrize(
    ("content", "passphrase"),
    [
        (b"two words\n", "two words"),
        (b"two words\r\n", "two words"),
        (b" two words ", " two words "),
        ("é".encode(), "é"),
        (b"\xff", "\udcff"),
        (b"x" * 4096, "x" * 4096),
        (b"", ""),
    ],
)
def test_a_file_is_its_content_less_one_line_end(
    tmp_path: Path, content: bytes, passphrase: str
) -> None:
    assert asked(passphrase_file(tmp_path, content))[0] == passphrase


@pytest.mark.skipif(os.name != "posix", reason="file modes are a POSIX matter")
@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o601])
def test_a_file_that_everybody_can_get_at_is_refused(tmp_path: Path, mode: int) -> None:
    found, said = asked(passphrase_file(tmp_path, b"hunter2", mode))
    assert found is None
    assert "every user of this machine" in said
    assert f"`chmod o= '{tmp_path / 'the passphrase'}'`" in said
    assert asked(passphrase_file(tmp_path, b"hunter2", 0o640))[0] == "hunter2"


def test_a_file_that_is_none_is_refused_and_not_shown(tmp_path: Path) -> None:
    found, said = asked(passphrase_file(tmp_path, b"hunter2" * 1000))
    assert found is None
    assert "no passphrase file: it has more than 4096 bytes" in said
    assert "hunter2" not in said
    found, said = asked(tmp_path / "missing")
    assert found is None
    assert said.startswith("Error: ")
    assert "missing" in said


def test_a_new_passphrase_is_typed_twice_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    has_terminal(monkeypatch, answer=True)
    typed = "hunter2\nhunter3\nhunter2\nhunter2\n"
    found, said = asked(use=PassphraseUse.CHOOSE, typed=typed)
    assert found == "hunter2"
    assert "do not match" in said
    assert "hunter" not in said


def test_no_terminal_is_told_with_the_three_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    has_terminal(monkeypatch, answer=False)
    for use in PassphraseUse:
        found, said = asked(use=use, typed="hunter2\n")
        assert found is None
        for way in ("TOKENMARK_PASSPHRASE", "--passphrase-file FILE", "in a terminal"):
            assert way in said


def test_a_prompt_that_is_left_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    has_terminal(monkeypatch, answer=True)

    def body() -> None:
        prompt_hidden("Secret", twice=False, instead="pipe it")

    result = CliRunner().invoke(Command("it", callback=body), input="")
    assert result.exit_code == 130


def test_options_hand_over_paths(tmp_path: Path) -> None:
    found: list[object] = []
    decorators: tuple[Callable[[Callable[..., None]], Callable[..., None]], ...] = (
        options.keyring_option,
        options.passphrase_file_option,
        options.json_option,
    )

    def body(keyring: Path, passphrase_file: Path | None, *, as_json: bool) -> None:
        found.append((keyring, passphrase_file, as_json))

    for decorate in decorators:
        body = decorate(body)
    command = click.command(cls=Command)(body)
    arguments = ["--keyring", str(tmp_path / "k"), "--passphrase-file", str(tmp_path / "p")]
    assert CliRunner().invoke(command, [*arguments, "--json"]).exit_code == 0
    assert CliRunner().invoke(command, []).exit_code == 0
    default = default_keyring_path()
    assert found == [(tmp_path / "k", tmp_path / "p", True), (default, None, False)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("ü".encode() * 3000, "more than 4096 bytes"),
        (b"one\ntwo\n", "several lines"),
        (b"one\n\n", "several lines"),
    ],
)
def test_a_file_that_is_no_passphrase_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    found, said = asked(passphrase_file(tmp_path, content))
    assert found is None
    assert message in said
