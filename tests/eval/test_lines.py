import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokenmark.eval.lines import lines_of
from tokenmark.eval.measuring import Case, Run


def unused(_folder: Path) -> Callable[[], Run]:
    raise AssertionError


def case(baseline: str | None = None, n_threads: int | None = None) -> Case:
    return Case(what="w", prepare=unused, baseline=baseline, n_threads=n_threads)


def line_of(case: Case, runs: list[Run]) -> dict[str, Any]:
    (line,) = lines_of({"case": case}, {"case": runs})
    found: dict[str, Any] = json.loads(json.dumps(line))
    return found


def test_a_line_has_the_ratio_to_the_median_of_the_baseline() -> None:
    cases = {"peer": case(), "ours": case(baseline="peer", n_threads=1)}
    runs = {
        "peer": [Run(seconds=s, n_entries=1000) for s in (0.03, 0.02, 0.09)],
        "ours": [Run(seconds=s, n_entries=1000) for s in (0.001, 0.00123456789, 0.002)],
    }
    peer, ours = lines_of(cases, runs)
    assert "ratio" not in peer
    assert ours["baseline"] == "peer"
    assert ours["ratio"] == 0.04115
    assert ours["times_faster"] == 24.3
    assert ours["median_s"] == 0.001235
    assert ours["min_s"] == 0.001
    assert ours["ns_per_entry"] == 1235
    assert ours["min_ns_per_entry"] == 1000
    assert ours["threads"] == 1


def test_a_line_says_where_and_with_what_it_was_measured() -> None:
    line = line_of(case(), [Run(seconds=1.0)] * 2)
    assert {"python", "tokenmark", "numpy", "numba", "torch"} <= set(line["versions"])
    assert "cores" in line["device"]
    assert line["threads"] >= 1
    assert line["n_runs"] == 2
    assert not {"ns_per_entry", "tokens_per_s", "first_step_s", "peak_mib", "peer"} & set(line)


def test_runs_with_peers_give_a_mean_ratio_with_its_interval() -> None:
    runs = [
        Run(
            seconds=1.02 if i % 2 else 1.0,
            n_tokens=200,
            first_s=0.25,
            peer=Run(seconds=1.0, n_tokens=100, first_s=0.5),
        )
        for i in range(20)
    ]
    line = line_of(case(), runs)
    low, high = line["ratio_interval"]
    assert low < line["ratio"] < high
    assert line["ratio"] == pytest.approx(1.00995, abs=1e-5)
    assert high - low == pytest.approx(2 * 2.1 * 0.010161 / 20**0.5, rel=0.02)
    assert line["tokens_per_s"] == pytest.approx(198, abs=0.1)
    assert line["first_step_s"] == 0.25
    assert line["peer"]["tokens_per_s"] == 100
    assert line["peer"]["first_step_s"] == 0.5


def test_few_runs_with_peers_give_a_ratio_without_interval() -> None:
    line = line_of(case(), [Run(seconds=2.0, peer=Run(seconds=1.0))] * 2)
    assert line["ratio"] == 2.0
    assert "ratio_interval" not in line


def test_the_largest_peak_is_stated() -> None:
    assert line_of(case(), [Run(seconds=1.0, peak_mib=m) for m in (1.0, 3.0)])["peak_mib"] == 3.0
