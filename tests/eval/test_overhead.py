import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tokenmark.eval import overhead
from tokenmark.eval.commands import CommandError
from tokenmark.eval.overhead import Case, Run


def steady(seconds: float) -> Callable[[Path], Callable[[], Run]]:
    return lambda _folder: lambda: Run(seconds, 10.0)


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> dict[str, Case]:
    made = {
        "help": Case(what="base", prepare=steady(0.5), n_runs=3),
        "detect": Case(what="twice as slow", prepare=steady(1.0), n_runs=4, baseline="help"),
    }
    monkeypatch.setattr(overhead, "CASES", made)
    return made


def test_a_line_has_the_ratio_to_the_baseline_of_the_same_run(cases: dict[str, Case]) -> None:
    result = CliRunner().invoke(overhead.main, ["detect"])
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["case"] for line in lines] == list(cases)
    assert lines[1]["ratio"] == 2.0
    assert lines[1]["n_runs"] == 4
    assert lines[1]["peak_mib"] == 10.0


def test_a_red_gate_measures_nothing(cases: dict[str, Case]) -> None:
    def refuse(_folder: Path) -> Callable[[], Run]:
        raise CommandError("the answer is wrong")

    cases["detect"] = Case(what="wrong", prepare=refuse)
    result = CliRunner().invoke(overhead.main, ["detect"])
    assert result.exit_code == 1
    assert "Nothing was measured: the answer is wrong" in result.output
    assert '"case"' not in result.output


@pytest.mark.weights
@pytest.mark.slow
def test_the_help_case_measures_a_real_process() -> None:
    result = CliRunner().invoke(overhead.main, ["help"])
    line = json.loads(result.stdout.splitlines()[-1])
    assert 0.01 < line["min_s"] <= line["median_s"]
    assert line["peak_mib"] > 5
