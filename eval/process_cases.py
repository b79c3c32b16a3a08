"""Cases that are whole processes: commands of this package, and a bare import beside them.

Knows nothing of what else is measured.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

from tokenmark.eval.commands import CommandError, command_line, run_command, running_server
from tokenmark.eval.measuring import Case, Run

__all__ = ["PROCESS_CASES"]

_PROSE: Final = "austen-pride-and-prejudice-1.txt"

# A process begins with the memory of the one that starts it and counts that as its own, so it is
# started by one that is smaller than whatever is measured.
_LAUNCHER: Final = """
import json, os, sys, time
null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
started = time.perf_counter()
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=null)
_, status, usage = os.wait4(process, 0)
seconds = time.perf_counter() - started
print(json.dumps([os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss / 1024]))
"""


def _process(command: list[str]) -> Run:
    """Wall time and peak memory of a whole process."""
    # Python keeps its compiled modules unless it is told not to, and users do not tell it.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(  # noqa: S603 - our own interpreter, no shell
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, *command],
        check=True,
        stdout=subprocess.PIPE,
        env=environment,
    )
    status, seconds, peak_mib = json.loads(done.stdout)
    if status:
        raise CommandError(f"{command[2][:60]!r} ended with status {status}")
    return Run(seconds=seconds, peak_mib=peak_mib)


def _import_numpy(_folder: Path) -> Callable[[], Run]:
    return lambda: _process([sys.executable, "-c", "import numpy"])


def _detect(folder: Path) -> Callable[[], Run]:
    keyring, text = folder / "keyring.json", folder / "text.txt"
    run_command("keys", "new", "k", "--no-passphrase", "--keyring", str(keyring))
    prose = files("tokenmark.eval").joinpath(_PROSE).read_text(encoding="utf-8")
    # The chapter has some 1,060 tokens, of which about 1,000 are left.
    text.write_text(prose[: -len(prose) // 20], encoding="utf-8")
    arguments = ("--keyring", str(keyring), "--tokenizer", "demo", str(text))
    result = json.loads(run_command("detect", "--json", *arguments))
    if result["verdict"] != "not_detected":
        raise CommandError(f"a novel of 1813 was judged {result['verdict']}")
    return lambda: _process(command_line("detect", *arguments))


def _help(_folder: Path) -> Callable[[], Run]:
    return lambda: _process(command_line("detect", "--help"))


def _start(folder: Path) -> Callable[[], Run]:
    keyring = folder / "keyring.json"

    def run() -> Run:
        started = time.perf_counter()
        with running_server(keyring, is_quiet=True):
            return Run(seconds=time.perf_counter() - started)

    return run


PROCESS_CASES: Final[Mapping[str, Case]] = {
    "import-numpy": Case(what="python -c 'import numpy'", prepare=_import_numpy),
    "help": Case(what="wm-detect --help", prepare=_help, baseline="import-numpy"),
    "detect": Case(
        what="wm-detect on a file of 1,000 tokens, table included",
        prepare=_detect,
        baseline="import-numpy",
    ),
    "start": Case(what="wm-serve demo, cached, to ready", prepare=_start, n_runs=5),
}
"""Every case by name."""
