"""Runs the console commands of this package as a user would. Knows nothing of what they do."""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["CommandError", "command_line", "run_command", "running_server"]

_READY_TIMEOUT_S: Final = 300.0
_STOP_TIMEOUT_S: Final = 20.0


class CommandError(Exception):
    """A command ended otherwise than it should."""


def command_line(name: str, *arguments: str) -> list[str]:
    """What starts `wm-NAME`, whether or not its folder is on the path."""
    call = f"import sys; from tokenmark.cli.{name} import main; sys.exit(main())"
    return [sys.executable, "-c", call, *arguments]


def run_command(name: str, *arguments: str) -> str:
    """What `wm-NAME` prints as its result.

    Raises:
        CommandError: its status is not 0; it has said why on stderr.
    """
    done = subprocess.run(  # noqa: S603 - our own interpreter, no shell
        command_line(name, *arguments), check=False, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise CommandError(f"wm-{name} ended with status {done.returncode}")
    return done.stdout


@contextmanager
def running_server(keyring: Path, *options: str, is_quiet: bool = False) -> Iterator[str]:
    """The address of `wm-serve demo OPTIONS` on a free port, ready; it ends when the block ends.

    Raises:
        CommandError: it ends before it is ready, or is never ready.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ("demo", "--keyring", str(keyring), "--port", str(port), *options)
    command = command_line("serve", *arguments)
    stderr = subprocess.DEVNULL if is_quiet else None
    with subprocess.Popen(command, stderr=stderr) as process:  # noqa: S603 - as above
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CommandError(f"wm-serve ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5):  # noqa: S310 - loopback HTTP
                return
        except OSError:
            time.sleep(0.1)
    raise CommandError(f"wm-serve was not ready after {_READY_TIMEOUT_S:.0f} s")
