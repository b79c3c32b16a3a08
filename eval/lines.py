"""The JSON line of a case, from its runs. Knows nothing of how they were made."""

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import torch

from tokenmark.eval.measuring import Case, Run, Tier
from tokenmark.eval.paired_ratio import MIN_PAIRS, ratio_interval

__all__ = ["lines_of"]

_PACKAGES: Final = ("tokenmark", "numpy", "numba", "tokenizers", "torch", "triton")
_DIGITS: Final = 4

Line = dict[str, object]


def lines_of(cases: Mapping[str, Case], runs: Mapping[str, Sequence[Run]]) -> list[Line]:
    """A line for each case that has runs; fields without a value are left out.

    A ratio is of the medians of a case and its baseline. Where each run has a peer of its own it is
    the mean of the runs' step ratios, and comes with its 95 % interval if there are enough of them.
    """
    return [_line(name, cases[name], runs) for name in runs]


def _line(name: str, case: Case, runs: Mapping[str, Sequence[Run]]) -> Line:
    own = runs[name]
    line: Line = {"case": name, "what": case.what, **_figures(own), "n_runs": len(own)}
    ratio = None
    if case.baseline is not None:
        line["baseline"] = case.baseline
        ratio = _median_s(own) / _median_s(runs[case.baseline])
    peers = [run.peer for run in own if run.peer is not None]
    if peers:
        line["peer"] = _figures(peers)
        sums = [run.seconds / peer.seconds for run, peer in zip(own, peers, strict=True)]
        line["ratio_of_sums"] = round(statistics.geometric_mean(sums), 5)
        ratios = [run.step_ratio for run in own if run.step_ratio is not None] or sums
        ratio = statistics.geometric_mean(ratios)
        if len(ratios) >= MIN_PAIRS:
            interval = ratio_interval(ratios)
            line["ratio_interval"] = [round(interval.low, 5), round(interval.high, 5)]
    if ratio is not None:
        line["ratio"] = round(ratio, 5)
        line["times_faster"] = _rounded(1 / ratio)
    return {
        **line,
        "threads": case.n_threads or torch.get_num_threads(),
        "device": _device(case),
        "versions": {"python": platform.python_version(), **_versions()},
        "date": datetime.now(UTC).date().isoformat(),
    }


def _figures(runs: Sequence[Run]) -> Line:
    """What the runs took."""
    seconds = [run.seconds for run in runs]
    low, median, high = statistics.quantiles(seconds, n=4)
    figures: Line = {
        "median_s": _rounded(median),
        "quartiles_s": [_rounded(low), _rounded(high)],
        "min_s": _rounded(min(seconds)),
    }
    last = runs[-1]
    if last.n_entries is not None:
        figures["ns_per_entry"] = _rounded(median / last.n_entries * 1e9)
        figures["min_ns_per_entry"] = _rounded(min(seconds) / last.n_entries * 1e9)
    if last.n_tokens is not None:
        figures["tokens_per_s"] = _rounded(last.n_tokens / median)
    first = [run.first_s for run in runs if run.first_s is not None]
    if first:
        figures["first_step_s"] = _rounded(statistics.median(first))
    peaks = [run.peak_mib for run in runs if run.peak_mib is not None]
    if peaks:
        figures["peak_mib"] = _rounded(max(peaks))
    return figures


def _median_s(runs: Sequence[Run]) -> float:
    return statistics.median(run.seconds for run in runs)


def _rounded(figure: float) -> float:
    return float(f"{figure:.{_DIGITS}g}")


def _device(case: Case) -> str:
    if case.tier is Tier.GPU:
        return torch.cuda.get_device_name()
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()}, {os.cpu_count()} cores, {capability}"


def _versions() -> Mapping[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            # Triton is not installed where nothing could run it.
            continue
    return found
