"""Takes the runs of cases, each in turn with its baseline. Knows nothing of what a case does."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import torch

from tokenmark.eval.commands import CommandError
from tokenmark.watermark.errors import TokenmarkError

__all__ = ["Case", "GateError", "Run", "Tier", "measure"]

_N_WARM_UP: Final = 1


class GateError(Exception):
    """What was to be measured gave a wrong answer, or none."""


class Tier(StrEnum):
    """When a case is measured without being named."""

    USUAL = "usual"
    LONG = "long"
    """It takes many minutes."""
    GPU = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run took.

    Args:
        seconds: in all.
        peak_mib: memory at its peak.
        n_entries: vocabulary entries that were gone over.
        n_tokens: tokens that were generated.
        first_s: the part of the seconds that the first step took.
        peer: what its peer took, where a run lets both take their steps in turn.
        step_ratio: the median over the steps of what each took, divided by the peer's next to it.
    """

    seconds: float
    peak_mib: float | None = None
    n_entries: int | None = None
    n_tokens: int | None = None
    first_s: float | None = None
    peer: "Run | None" = None
    step_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Something to measure.

    Args:
        what: in words, for the reader of the line.
        prepare: makes a folder ready, checks that the answer is right, and returns what runs once.
        n_runs: how often, at most.
        is_enough: whether so many runs will do already.
        baseline: the case that its median is divided by, measured in turn with it.
        n_threads: how many torch and the draw have; None leaves them what there is.
        tier: when it is measured.
    """

    what: str
    prepare: Callable[[Path], Callable[[], Run]]
    n_runs: int = 15
    is_enough: Callable[[Sequence[Run]], bool] | None = None
    baseline: str | None = None
    n_threads: int | None = None
    tier: Tier = Tier.USUAL


def measure(cases: Mapping[str, Case], folder: Path) -> Iterator[dict[str, list[Run]]]:
    """The runs of all cases by name, group by group.

    Cases with one baseline are a group; their runs are taken in turn, so that a slow minute slows
    all of them. What a group holds is let go of before the next one begins.

    Args:
        cases: by name; the baseline of each is among them.
        folder: where each case gets an empty one of its own.

    Raises:
        GateError: the answer of a case is wrong.
    """
    for group in _groups(cases):
        yield _measure_group(group, folder)


def _groups(cases: Mapping[str, Case]) -> list[dict[str, Case]]:
    groups: dict[str, dict[str, Case]] = {}
    for name, case in cases.items():
        groups.setdefault(case.baseline or name, {})[name] = case
    return list(groups.values())


def _measure_group(cases: Mapping[str, Case], folder: Path) -> dict[str, list[Run]]:
    run_once: dict[str, Callable[[], Run]] = {}
    for name, case in cases.items():
        place = folder / name
        place.mkdir()
        try:
            with _threads(case.n_threads):
                run_once[name] = case.prepare(place)
        except (CommandError, GateError, TokenmarkError) as error:
            raise GateError(f"{name}: {error}") from error
    runs: dict[str, list[Run]] = {name: [] for name in cases}
    for round_ in itertools.count(-_N_WARM_UP):
        open_ = [name for name, case in cases.items() if not _is_done(case, runs[name])]
        if not open_:
            return runs
        for name in open_:
            with _threads(cases[name].n_threads):
                run = run_once[name]()
            if round_ >= 0:
                runs[name].append(run)
    raise AssertionError("unreachable")


def _is_done(case: Case, runs: Sequence[Run]) -> bool:
    return len(runs) >= case.n_runs or (case.is_enough is not None and case.is_enough(runs))


@contextmanager
def _threads(n_threads: int | None) -> Iterator[None]:
    """So many threads of torch, and of the draw, which takes as many, while the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if n_threads is None else n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
