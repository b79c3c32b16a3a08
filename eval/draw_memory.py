"""The memory that one draw of a large batch takes, measured in a process of its own.

Knows nothing of time. Run as a module it draws once and prints how far the process grew, in MiB.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click
import numpy as np
import torch

from tokenmark.eval.measuring import Case, GateError, Run
from tokenmark.eval.reference_draw import check_ids, reference_draws
from tokenmark.kernels.gumbel import draw
from tokenmark.kernels.rows import Filters, RowKeys
from tokenmark.watermark.prf.family import Family

__all__ = ["MEMORY_CASES", "growth_mib", "main"]

_N_ROWS: Final = 64
_N_IDS: Final = 262_144
_LOGITS_MIB: Final = _N_ROWS * _N_IDS * 4 / 2**20
# A temporary of one byte an entry would be four times as much.
_LIMIT_MIB: Final = _LOGITS_MIB / 16
_STATUS: Final = Path("/proc/self/status")
_CHECKED_ROWS: Final = (0, _N_ROWS - 1)


def growth_mib(call: Callable[[], object]) -> float:
    """How far this process rises above its present memory while a call runs; on Linux only."""
    # Sets the peak back to what there is now.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _memory_kib("VmRSS")
    call()
    return (_memory_kib("VmHWM") - before) / 1024


def _memory_kib(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1])


def _filters(n_rows: int) -> Filters:
    filters = Filters.none(n_rows)
    filters.temperatures[:] = 0.8
    filters.top_p[:] = 0.95
    return filters


@click.command()
def main() -> None:
    """Draw from a large batch, filtered; print seconds and growth as JSON."""
    generator = np.random.default_rng(0)
    family = Family.CHACHA8
    states = generator.integers(2**32, size=(_N_ROWS, family.state_words), dtype=np.uint32)
    keys, filters = RowKeys.of_family(family, states), _filters(_N_ROWS)
    # Loads what is compiled, and starts the threads.
    draw(torch.zeros(_N_ROWS, 2**13), keys, filters)
    logits = torch.randn(_N_ROWS, _N_IDS, generator=torch.Generator().manual_seed(0))
    drawn = []

    def call() -> None:
        drawn.append(draw(logits, keys, filters))

    started = time.perf_counter()
    growth = growth_mib(call)
    seconds = time.perf_counter() - started
    if growth_mib(logits.clone) < _LOGITS_MIB / 2:
        raise GateError("a copy of the logits was not seen to take memory")
    for row in _CHECKED_ROWS:
        one = slice(row, row + 1)
        row_keys = RowKeys.of_family(family, states[one])
        wanted = reference_draws(logits[one].numpy(), row_keys, _filters(1))
        check_ids(drawn[0].ids[one].numpy(), wanted)
    click.echo(json.dumps({"seconds": seconds, "growth_mib": growth}))


def _measured() -> Run:
    done = subprocess.run(
        [sys.executable, "-m", "tokenmark.eval.draw_memory"],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise GateError(f"the process ended with status {done.returncode}")
    found = json.loads(done.stdout)
    return Run(seconds=found["seconds"], peak_mib=found["growth_mib"], n_entries=_N_ROWS * _N_IDS)


def _prepare(_folder: Path) -> Callable[[], Run]:
    growth = _measured().peak_mib
    assert growth is not None
    if growth > _LIMIT_MIB:
        raise GateError(f"a draw took {growth:.1f} MiB beside logits of {_LOGITS_MIB:.0f} MiB")
    return _measured


MEMORY_CASES: Final[Mapping[str, Case]] = {
    "draw-memory": Case(
        what="growth of the process in a draw of 64 rows of 262,144 (64 MiB), top-p 0.95",
        prepare=_prepare,
        n_runs=3,
    )
}
"""Every case by name."""


if __name__ == "__main__":
    main()
