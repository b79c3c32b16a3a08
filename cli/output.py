"""What every command shares in speaking: results, talk, errors and exit statuses.

Knows nothing of any one command. Results go to stdout and talk to stderr. The status is 0 when the
command ran, 2 for usage, input and file errors, 130 after Ctrl-C and 141 when the reader of stdout
went away. An error that somebody can act on is one line; only a defect shows a traceback.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn, TextIO

import click

from tokenmark.watermark.errors import TokenmarkError

__all__ = ["Command", "Group", "fail", "print_json", "print_table", "say"]

_STATUS_FAILED: Final = 2
_STATUS_INTERRUPTED: Final = 130
_STATUS_BROKEN_PIPE: Final = 141

# Wide enough that a table in a pipe or a file is never folded.
_UNFOLDED_COLUMNS: Final = 10_000


class _Failure(click.ClickException):
    exit_code = _STATUS_FAILED


class Command(click.Command):
    """A command that ends every foreseen failure with one line on stderr and its status.

    Use it as `@click.command(cls=Command)`; commands of a `Group` are of this class already.
    """

    def invoke(self, ctx: click.Context) -> object:
        """Run the body inside the error boundary."""
        if not _is_open(sys.stdout):
            fail("standard output is closed; send it to /dev/null to do without")
        try:
            return super().invoke(ctx)
        except click.UsageError:
            raise
        except click.ClickException as error:
            # Click would end it with status 1, which is a verdict here.
            raise _Failure(error.format_message()) from None
        except TokenmarkError as error:
            raise _Failure(" ".join(str(error).split())) from None
        except BrokenPipeError:
            _discard_stdout()
            ctx.exit(_STATUS_BROKEN_PIPE)
        except OSError as error:
            raise _Failure(_describe(error)) from None
        except MemoryError:
            raise _Failure("too little memory; free some, or give less at once") from None
        except (KeyboardInterrupt, click.Abort):
            say("Interrupted.")
            ctx.exit(_STATUS_INTERRUPTED)


class Group(click.Group):
    """A group whose commands are of class `Command`."""

    command_class = Command


def _describe(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.filename is None:
        # What is written without a name is the result, and by then the work is done.
        return f"{reason}; see what has been done before you repeat the command"
    return f"{error.filename}: {reason}"


def _is_open(stream: TextIO | None) -> bool:
    """Whether a standard stream is there: Python has None for one that was closed at the start."""
    return stream is not None


def _discard_stdout() -> None:
    # What is still buffered would raise again when the interpreter flushes at exit.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def fail(message: str) -> NoReturn:
    """End the command with `Error: message` and status 2, for failures of the command itself."""
    raise _Failure(message)


def say(message: str) -> None:
    """One line for the person at the terminal, on stderr, whatever it can show."""
    line = " ".join(message.split())
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    click.echo(line.encode(encoding, "backslashreplace").decode(encoding), err=True)


def print_json(value: object) -> None:
    """A result as JSON on stdout, ASCII only, so that every terminal and pipe can carry it."""
    click.echo(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A result as a table on stdout; folded to the width of a terminal, never in a pipe."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # As Text a cell is shown as it is: brackets in it are no markup.
        table.add_row(*(Text(cell) for cell in row))
    width = None if sys.stdout.isatty() else _UNFOLDED_COLUMNS
    console = Console(width=width, highlight=False)
    # Written by click, so that a broken pipe ends as everywhere else.
    with console.capture() as captured:
        console.print(table)
    click.echo(captured.get(), nl=False)
