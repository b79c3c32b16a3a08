from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tokenmark.eval.commands import CommandError
from tokenmark.eval.measuring import Case, GateError, Run, measure
from tokenmark.watermark.errors import ModelError


class Recorder:
    """Cases that note when they run, and what they were then given."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.n_threads: list[int] = []

    def prepare(self, name: str) -> Callable[[Path], Callable[[], Run]]:
        def run() -> Run:
            self.events.append(name)
            self.n_threads.append(torch.get_num_threads())
            return Run(seconds=1.0)

        def prepare(folder: Path) -> Callable[[], Run]:
            assert not list(folder.iterdir())
            self.events.append(f"prepare {name}")
            return run

        return prepare


def test_a_case_takes_turns_with_its_baseline_and_groups_follow_each_other(tmp_path: Path) -> None:
    recorder = Recorder()
    cases = {
        "base": Case(what="", prepare=recorder.prepare("base"), n_runs=2),
        "other": Case(what="", prepare=recorder.prepare("other"), n_runs=1),
        "case": Case(what="", prepare=recorder.prepare("case"), n_runs=3, baseline="base"),
    }
    groups = list(measure(cases, tmp_path))
    assert [list(group) for group in groups] == [["base", "case"], ["other"]]
    assert [len(runs) for group in groups for runs in group.values()] == [2, 3, 1]
    # The first run of each is a warm-up.
    assert recorder.events == [
        *("prepare base", "prepare case"),
        *("base", "case", "base", "case", "base", "case", "case"),
        *("prepare other", "other", "other"),
    ]


def test_a_case_ends_as_soon_as_its_runs_are_enough(tmp_path: Path) -> None:
    case = Case(
        what="",
        prepare=Recorder().prepare("case"),
        n_runs=9,
        is_enough=lambda runs: len(runs) >= 4,
    )
    ((runs,),) = (group.values() for group in measure({"case": case}, tmp_path))
    assert len(runs) == 4


def test_threads_are_set_for_a_case_and_restored(tmp_path: Path) -> None:
    recorder, before = Recorder(), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        cases = {
            "one": Case(what="", prepare=recorder.prepare("one"), n_runs=1, n_threads=1),
            "all": Case(what="", prepare=recorder.prepare("all"), n_runs=1),
        }
        list(measure(cases, tmp_path))
        assert recorder.n_threads == [1, 1, 3, 3]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("error", [CommandError("no"), GateError("no"), ModelError("no")])
def test_a_gate_that_fails_names_its_case_and_nothing_runs(
    tmp_path: Path, error: Exception
) -> None:
    def refuse(_folder: Path) -> Callable[[], Run]:
        raise error

    recorder = Recorder()
    cases = {
        "base": Case(what="", prepare=recorder.prepare("base")),
        "wrong": Case(what="", prepare=refuse, baseline="base"),
    }
    with pytest.raises(GateError, match=r"^wrong: no$"):
        list(measure(cases, tmp_path))
    assert recorder.events == ["prepare base"]
