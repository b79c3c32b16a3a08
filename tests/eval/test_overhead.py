import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from tokenmark.eval import overhead
from tokenmark.eval.measuring import Case, GateError, Run, Tier


def steady(seconds: float) -> Callable[[Path], Callable[[], Run]]:
    return lambda _folder: lambda: Run(seconds=seconds, peak_mib=10.0)


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> dict[str, Case]:
    made = {
        "help": Case(what="base", prepare=steady(0.5), n_runs=3),
        "detect": Case(what="twice as slow", prepare=steady(1.0), n_runs=4, baseline="help"),
        "start": Case(what="another", prepare=steady(2.0), n_runs=2),
        "engine-mark": Case(what="long", prepare=steady(9.0), n_runs=2, tier=Tier.LONG),
    }
    monkeypatch.setattr(overhead, "CASES", made)
    return made


def measured(*arguments: str) -> list[dict[str, object]]:
    result = CliRunner().invoke(overhead.main, arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.usefixtures("cases")
def test_a_named_case_comes_with_the_baseline_of_the_same_run() -> None:
    lines = measured("detect")
    assert [line["case"] for line in lines] == ["help", "detect"]
    assert lines[1]["ratio"] == 2.0
    assert lines[1]["n_runs"] == 4
    assert lines[1]["peak_mib"] == 10.0


@pytest.mark.usefixtures("cases")
def test_without_a_name_the_cases_of_a_tier_are_measured() -> None:
    assert [line["case"] for line in measured()] == ["help", "detect", "start"]
    assert [line["case"] for line in measured("--tier", "long")] == ["engine-mark"]


@pytest.mark.usefixtures("cases")
def test_without_a_gpu_one_line_says_so() -> None:
    result = CliRunner().invoke(overhead.main, ["--tier", "gpu"])
    assert result.exit_code == 1
    assert result.output == "Nothing was measured: there is no CUDA GPU here.\n"


def test_a_red_gate_ends_the_measuring(cases: dict[str, Case]) -> None:
    def refuse(_folder: Path) -> Callable[[], Run]:
        raise GateError("the answer is wrong")

    cases["detect"] = Case(what="wrong", prepare=refuse, baseline="help")
    result = CliRunner().invoke(overhead.main, ["detect"])
    assert result.exit_code == 1
    assert result.output == "Nothing more was measured: detect: the answer is wrong\n"


def test_every_baseline_is_a_case_that_comes_first_and_needs_no_more() -> None:
    names = list(overhead.CASES)
    for name, case in overhead.CASES.items():
        if case.baseline is not None:
            assert names.index(case.baseline) < names.index(name)
            assert overhead.CASES[case.baseline].tier is case.tier
            assert overhead.CASES[case.baseline].n_threads == case.n_threads


def test_gpu_cases_are_there_where_a_gpu_is() -> None:
    has_gpu_cases = any(case.tier is Tier.GPU for case in overhead.CASES.values())
    assert has_gpu_cases is torch.cuda.is_available()
