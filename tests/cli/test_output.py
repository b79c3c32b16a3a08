import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner, Result

from tokenmark.cli import output
from tokenmark.cli.output import Command, Group, fail, print_json, print_table, say
from tokenmark.watermark.errors import KeyringError


def run(body: Callable[[], None]) -> Result:
    return CliRunner().invoke(Command("it", callback=body))


def raising(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


AGAIN = "; see what has been done before you repeat the command\n"
FAILURES = [
    (KeyringError("the file\nis broken"), "Error: the file is broken\n"),
    (FileNotFoundError(errno.ENOENT, "No such file", "a.txt"), "Error: a.txt: No such file\n"),
    (OSError(errno.ENOSPC, "No space left"), f"Error: No space left{AGAIN}"),
    (OSError("odd"), f"Error: odd{AGAIN}"),
    (click.ClickException("not so"), "Error: not so\n"),
    (click.FileError("a.txt", "gone"), "Error: Could not open file 'a.txt': gone\n"),
]


@pytest.mark.parametrize(("error", "said"), FAILURES)
def test_a_foreseen_failure_is_one_line_and_status_2(error: Exception, said: str) -> None:
    result = run(raising(error))
    assert (result.exit_code, result.stderr, result.stdout) == (2, said, "")


def test_a_failure_of_the_command_itself_is_one_line_and_status_2() -> None:
    result = run(lambda: fail("no terminal"))
    assert (result.exit_code, result.stderr) == (2, "Error: no terminal\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interruption_is_status_130(error: BaseException) -> None:
    result = run(raising(error))
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "Interrupted."


def test_a_usage_error_is_status_2() -> None:
    result = CliRunner().invoke(Command("it", callback=lambda: None), ["--nonsense"])
    assert result.exit_code == 2
    assert "No such option" in result.stderr


def test_a_defect_is_not_hidden() -> None:
    result = run(raising(ZeroDivisionError("a defect")))
    assert isinstance(result.exception, ZeroDivisionError)


def test_a_command_may_choose_its_status() -> None:
    result = run(lambda: click.get_current_context().exit(3))
    assert result.exit_code == 3


def test_commands_of_a_group_are_inside_the_boundary() -> None:
    group = Group("it")

    @group.command()
    def sub() -> None:
        raise KeyringError("broken")

    result = CliRunner().invoke(group, ["sub"])
    assert (result.exit_code, result.stderr) == (2, "Error: broken\n")


PIPED = """
import click
from tokenmark.cli.output import Command, print_json, print_table

@click.command(cls=Command)
def main():
    for _ in range(10_000):
        {statement}

main()
"""


@pytest.mark.skipif(os.name != "posix", reason="pipes break otherwise elsewhere")
@pytest.mark.parametrize("statement", ["print_json([1])", 'print_table(["a"], [["b"]])'])
def test_a_reader_that_goes_away_is_no_error(statement: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PIPED.format(statement=statement)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=30), said) == (141, b"")


def test_json_is_ascii_and_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": "é\x1b", "n": [1, None]})
    written = capsys.readouterr().out
    assert written.isascii()
    assert json.loads(written) == {"name": "é\x1b", "n": [1, None]}


def test_a_table_in_a_pipe_is_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "text"], [["a", "x" * 300], ["[bold]b[/bold]", "y"]])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["name", "text"], ["a", "x" * 300], ["[bold]b[/bold]", "y"]]


def test_talk_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    say("hello")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "hello\n")


def test_what_is_exported_exists() -> None:
    assert sorted(output.__all__) == output.__all__
    assert all(hasattr(output, name) for name in output.__all__)
