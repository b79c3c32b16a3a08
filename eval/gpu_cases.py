"""Cases of the draw on a GPU, beside a plain kernel and an empty one. Knows nothing of engines.

What is timed are kernels alone, captured in a CUDA graph with their arguments on the device: that
is how an engine replays a step, and the host takes no part in it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tokenmark.eval.measuring import Case, Run, Tier
from tokenmark.eval.plain_philox_triton import launch_nothing, plain_draw
from tokenmark.eval.reference_draw import check_ids, reference_draws
from tokenmark.kernels.gumbel_triton import draw_rows
from tokenmark.kernels.rows import Filters, RowKeys
from tokenmark.watermark.prf.family import Family

__all__ = ["GPU_CASES", "check_draw", "keyed_draw", "philox_draw"]

_N_IDS: Final = 128_256
_MANY_ROWS: Final = 256
_CALLS_PER_GRAPH: Final = 20
_REPLAYS: Final = 10
_N_RUNS: Final = 100
# The kernels' logarithm is in float32; races closer than this may end otherwise.
_NEAR_TIE: Final = 1e-4
# The reference takes a while a row.
_N_CHECKED: Final = 16

Draw = Callable[[], Tensor]  # [B] int64


def keyed_draw(logits: Tensor, keys: RowKeys) -> Draw:
    """This project's draw of the logits, unfiltered, with keys of one family."""
    device, n_rows = logits.device, len(logits)
    states = torch.from_numpy(keys.states.view(np.int32)).to(device)
    symbols, families = (torch.from_numpy(a).to(device) for a in (keys.symbols, keys.families))
    temperatures = torch.ones(n_rows, device=device)
    floors = torch.full((n_rows,), -torch.inf, device=device)
    present = (Family(keys.families[0]),)
    return lambda: (
        draw_rows(logits, states, symbols, families, temperatures, floors, present=present).ids
    )


def philox_draw(logits: Tensor, keys: RowKeys) -> Draw:
    """The plain kernel's draw of the logits, with Philox keys."""
    states = torch.from_numpy(keys.states.view(np.int32)).to(logits.device)
    return lambda: plain_draw(logits, states)


def check_draw(draw: Draw, logits: Tensor, keys: RowKeys) -> None:
    """Raise GateError unless the first rows draw the reference's ids."""
    some = slice(_N_CHECKED)
    wanted = reference_draws(
        logits[some].float().cpu().numpy(),
        RowKeys(keys.states[some], keys.symbols[some], keys.families[some]),
        Filters.none(len(logits[some])),
    )
    check_ids(draw()[some].cpu().numpy(), wanted, near_tie=_NEAR_TIE)


def _timed(call: Callable[[], object], n_entries: int | None) -> Callable[[], Run]:
    """What runs a call from a graph and takes the device's own time of it."""
    # Compiles, which a capture must not.
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS_PER_GRAPH):
            call()

    def run() -> Run:
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        started.record()
        for _ in range(_REPLAYS):
            graph.replay()
        ended.record()
        ended.synchronize()
        seconds = started.elapsed_time(ended) / 1000
        return Run(seconds=seconds / (_REPLAYS * _CALLS_PER_GRAPH), n_entries=n_entries)

    return run


def _drawing(
    make: Callable[[Tensor, RowKeys], Draw], family: Family, n_rows: int
) -> Callable[[Path], Callable[[], Run]]:
    def prepare(_folder: Path) -> Callable[[], Run]:
        generator = torch.Generator("cuda").manual_seed(0)
        logits = torch.randn(n_rows, _N_IDS, generator=generator, device="cuda")
        logits = (2 * logits).to(torch.bfloat16)
        shape = (n_rows, family.state_words)
        states = np.random.default_rng(0).integers(2**32, size=shape, dtype=np.uint32)
        keys = RowKeys.of_family(family, states)
        draw = make(logits, keys)
        check_draw(draw, logits, keys)
        return _timed(draw, logits.numel())

    return prepare


def _empty_launch(_folder: Path) -> Callable[[], Run]:
    return _timed(launch_nothing, None)


def _case(
    what: str, prepare: Callable[[Path], Callable[[], Run]], baseline: str | None = None
) -> Case:
    return Case(what=what, prepare=prepare, n_runs=_N_RUNS, baseline=baseline, tier=Tier.GPU)


GPU_CASES: Final[Mapping[str, Case]] = {
    "gpu-plain-256": _case(
        "plain Philox kernel: 256 rows of 128,256 in bfloat16",
        _drawing(philox_draw, Family.PHILOX, _MANY_ROWS),
    ),
    "gpu-tm1-256": _case(
        "draw with words of tm1: 256 rows of 128,256 in bfloat16",
        _drawing(keyed_draw, Family.CHACHA8, _MANY_ROWS),
        baseline="gpu-plain-256",
    ),
    "gpu-philox-256": _case(
        "draw with Philox words: 256 rows of 128,256 in bfloat16",
        _drawing(keyed_draw, Family.PHILOX, _MANY_ROWS),
        baseline="gpu-plain-256",
    ),
    "gpu-empty": _case("launch of an empty kernel", _empty_launch),
    "gpu-tm1-1": _case(
        "draw with words of tm1: one row of 128,256 in bfloat16",
        _drawing(keyed_draw, Family.CHACHA8, 1),
        baseline="gpu-empty",
    ),
}
"""Every case by name."""
