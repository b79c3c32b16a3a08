"""The options that several commands share, and how a passphrase reaches them.

Knows nothing of what a key is used for. A passphrase comes from the first of three places:
`--passphrase-file`, the environment variable TOKENMARK_PASSPHRASE, a hidden prompt on the terminal;
never from an argument, which other users of the machine could read.
"""

import os
import shlex
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import click

from tokenmark.cli.output import fail
from tokenmark.watermark.locations import default_keyring_path

if TYPE_CHECKING:
    from tokenmark.watermark.keyring import KeyringFile

__all__ = [
    "PASSPHRASE_VARIABLE",
    "json_option",
    "keyring_file",
    "keyring_option",
    "passphrase_file_option",
    "prompt_hidden",
]

P = ParamSpec("P")
R = TypeVar("R")

PASSPHRASE_VARIABLE: Final = "TOKENMARK_PASSPHRASE"  # noqa: S105 - a name, not a passphrase

_MAX_PASSPHRASE_BYTES: Final = 4096

_OTHER_WAYS: Final = (
    f"set {PASSPHRASE_VARIABLE}, give --passphrase-file FILE, or run this in a terminal"
)


def keyring_option(command: Callable[P, R]) -> Callable[P, R]:
    """Add `--keyring FILE`, a Path, by default this user's own key file."""
    return click.option(
        "--keyring",
        type=click.Path(path_type=Path, dir_okay=False),
        default=default_keyring_path,
        metavar="FILE",
        show_default="keyring.json in your configuration folder",
        help="The key file.",
    )(command)


def passphrase_file_option(command: Callable[P, R]) -> Callable[P, R]:
    """Add `--passphrase-file FILE`, a Path or None; `keyring_file` reads it when it must."""
    return click.option(
        "--passphrase-file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help=f"Read the passphrase from FILE, not from {PASSPHRASE_VARIABLE} or a prompt.",
    )(command)


def json_option(command: Callable[P, R]) -> Callable[P, R]:
    """Add `--json`, the flag `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(
        command
    )


def keyring_file(path: Path, *, passphrase_file: Path | None = None) -> "KeyringFile":
    """The key file at `path`; its passphrase is looked for only once a secret is needed."""
    from tokenmark.watermark.keyring import (
        KeyringFile,
        PassphraseUse,
    )

    def passphrase(use: PassphraseUse) -> str:
        if passphrase_file is not None:
            return _from_file(passphrase_file)
        if PASSPHRASE_VARIABLE in os.environ:
            return os.environ[PASSPHRASE_VARIABLE]
        if use is PassphraseUse.CHOOSE:
            return prompt_hidden("New passphrase", twice=True, instead=_OTHER_WAYS)
        return prompt_hidden(f"Passphrase of {path}", twice=False, instead=_OTHER_WAYS)

    return KeyringFile(path, passphrase=passphrase)


def _from_file(path: Path) -> str:
    with path.open("rb") as file:
        # A group may be how a service is given the file; everybody is nobody's way to keep one.
        if os.name == "posix" and os.fstat(file.fileno()).st_mode & stat.S_IRWXO:
            fail(
                f"every user of this machine can get at the passphrase file {path}; run "
                f"`chmod o= {shlex.quote(str(path))}`"
            )
        data = file.read(_MAX_PASSPHRASE_BYTES + 1)
    if len(data) > _MAX_PASSPHRASE_BYTES:
        fail(f"{path} is no passphrase file: it has more than {_MAX_PASSPHRASE_BYTES} bytes")
    line = data.decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")
    if "\n" in line:
        fail(f"{path} is no passphrase file: it has several lines; keep the first one only")
    return line


def prompt_hidden(what: str, *, twice: bool, instead: str) -> str:
    """What somebody types at the terminal, unseen; without a terminal, fail and say `instead`."""
    if not _has_terminal():
        fail(f"there is no terminal to ask for: {what}; {instead}")
    answer: str = click.prompt(what, hide_input=True, confirmation_prompt=twice, err=True)
    return answer


def _has_terminal() -> bool:
    # The prompt goes to the controlling terminal, so that stdin stays free for a secret.
    if os.name != "posix":
        return sys.stdin.isatty()
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
