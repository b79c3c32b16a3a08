"""Measures what things cost, each beside a baseline in the same run; run it with `make bench`.

Knows nothing of how a case does its work. Every case has a gate: what it measures must first have
given the right answer. One JSON line a case: the median, the quartiles and the minimum of the
runs, the ratio to the baseline, versions and device.

    python -m tokenmark.eval.overhead               the usual cases, a few minutes: `make bench`
    python -m tokenmark.eval.overhead tm1-flat      one of them, and its baseline
    python -m tokenmark.eval.overhead engine-mark   the whole engine, up to half an hour
    python -m tokenmark.eval.overhead --tier gpu    those that need a GPU: `make bench-gpu`
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
import torch

from tokenmark.eval.commands import CommandError
from tokenmark.eval.draw_cases import DRAW_CASES
from tokenmark.eval.draw_memory import MEMORY_CASES
from tokenmark.eval.engine_pairs import ENGINE_CASES
from tokenmark.eval.lines import lines_of
from tokenmark.eval.measuring import Case, GateError, Tier, measure
from tokenmark.eval.process_cases import PROCESS_CASES

__all__ = ["CASES", "main"]


def _gpu_cases() -> Mapping[str, Case]:
    if not torch.cuda.is_available():
        return {}
    # Only where they run: an installation that draws on CPUs has no Triton.
    from tokenmark.eval.gpu_cases import GPU_CASES  # noqa: PLC0415

    return GPU_CASES


CASES: Final[Mapping[str, Case]] = {
    **PROCESS_CASES,
    **DRAW_CASES,
    **MEMORY_CASES,
    **ENGINE_CASES,
    **_gpu_cases(),
}
"""Every case by name."""


@click.command()
@click.argument("names", metavar="[CASE]...", nargs=-1, type=click.Choice(sorted(CASES)))
@click.option(
    "--tier",
    type=click.Choice([tier.value for tier in Tier]),
    default=Tier.USUAL.value,
    show_default=True,
    help="Which cases to measure where none is named.",
)
def main(*, names: tuple[str, ...], tier: str) -> None:
    """Measure cases and print a JSON line for each."""
    chosen = dict.fromkeys(names) or [name for name, case in CASES.items() if case.tier == tier]
    if not chosen:
        raise SystemExit("Nothing was measured: there is no CUDA GPU here.")
    baselines = {CASES[name].baseline for name in chosen}
    wanted = {name: case for name, case in CASES.items() if name in chosen or name in baselines}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for runs in measure(wanted, Path(folder)):
                for line in lines_of(wanted, runs):
                    click.echo(json.dumps(line))
    except (CommandError, GateError) as error:
        raise SystemExit(f"Nothing more was measured: {error}") from None


if __name__ == "__main__":
    main()
