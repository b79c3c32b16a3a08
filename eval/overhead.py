"""Measures what things cost, each beside a baseline in the same run; run it with `make bench`.

Knows nothing of how a case does its work. Every case has a gate: what it measures must first have
given the right answer. One JSON line a case: the median, the quartiles and the peak memory of the
runs, the ratio to the baseline, versions and device.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Final

import click

from tokenmark.eval.commands import CommandError, command_line, run_command, running_server

__all__ = ["CASES", "Case", "Run", "main"]

_PROSE: Final = "austen-pride-and-prejudice-1.txt"
_N_WARM_UP: Final = 1


@dataclass(frozen=True, slots=True)
class Run:
    """What one run took."""

    seconds: float
    peak_mib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Something to measure.

    Args:
        what: in words, for the reader of the line.
        prepare: makes a folder ready, checks that the answer is right, and returns what runs once.
        n_runs: how often.
        baseline: the case that its median is divided by, measured in turn with it.
    """

    what: str
    prepare: Callable[[Path], Callable[[], Run]]
    n_runs: int = 15
    baseline: str | None = None


def _process(command: list[str]) -> Run:
    """Wall time and peak memory of a whole process."""
    # Python keeps its compiled modules unless it is told not to, and users do not tell it.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    with subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise CommandError(f"{command[2][:60]!r} ended with status {process.returncode}")
    return Run(seconds, usage.ru_maxrss / 1024)


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
            return Run(time.perf_counter() - started)

    return run


CASES: Final = {
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


@click.command()
@click.argument("names", metavar="[CASE]...", nargs=-1, type=click.Choice(sorted(CASES)))
def main(*, names: tuple[str, ...]) -> None:
    """Measure the cases, all of them by default, and print a JSON line for each."""
    chosen = dict.fromkeys(names or CASES)
    baselines = [CASES[name].baseline for name in chosen]
    wanted = [name for name in CASES if name in chosen or name in baselines]
    with tempfile.TemporaryDirectory() as folder, _reported():
        runs = _measure(wanted, Path(folder))
    for name in wanted:
        click.echo(json.dumps(_line(name, runs)))


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except CommandError as error:
        raise SystemExit(f"Nothing was measured: {error}") from None


def _measure(names: list[str], folder: Path) -> dict[str, list[Run]]:
    """The runs of all cases, taken in turn, so that a slow minute slows every case."""
    run_once: dict[str, Callable[[], Run]] = {}
    for name in names:
        place = folder / name
        place.mkdir()
        run_once[name] = CASES[name].prepare(place)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for round_ in range(-_N_WARM_UP, max(CASES[name].n_runs for name in names)):
        for name in names:
            if round_ < CASES[name].n_runs:
                run = run_once[name]()
                if round_ >= 0:
                    runs[name].append(run)
    return runs


def _line(name: str, runs: dict[str, list[Run]]) -> dict[str, object]:
    case, seconds = CASES[name], [run.seconds for run in runs[name]]
    low, median, high = statistics.quantiles(seconds, n=4)
    peaks = [run.peak_mib for run in runs[name] if run.peak_mib is not None]
    ratio = None
    if case.baseline is not None:
        ratio = median / statistics.median(run.seconds for run in runs[case.baseline])
    return {
        "case": name,
        "what": case.what,
        "median_s": round(median, 4),
        "quartiles_s": [round(low, 4), round(high, 4)],
        "min_s": round(min(seconds), 4),
        "peak_mib": round(max(peaks), 1) if peaks else None,
        "n_runs": len(seconds),
        "baseline": case.baseline,
        "ratio": None if ratio is None else round(ratio, 2),
        "device": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("tokenmark", "numpy", "tokenizers", "torch")},
        },
        "date": datetime.now(UTC).date().isoformat(),
    }


if __name__ == "__main__":
    main()
