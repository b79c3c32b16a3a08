"""Cases of the draw on the CPU, each beside torch's sampling of the same rows, on one thread.

Knows nothing of engines. Calls are those that an engine makes: logits and ready row keys in, ids
out. Every call of a run has other keys, as every step of an answer has.
"""

import itertools
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tokenmark.eval.demo_model import real_logits
from tokenmark.eval.measuring import Case, GateError, Run
from tokenmark.eval.reference_draw import check_ids, reference_draws
from tokenmark.eval.torch_peers import draw_by_division, filter_by_sorting
from tokenmark.kernels.gumbel import draw
from tokenmark.kernels.rows import Filters, RowKeys
from tokenmark.watermark.prf.family import Family

__all__ = ["DRAW_CASES"]

_LARGE_VOCABULARY: Final = 151_936
# A run repeats its call until so much time has gone.
_MIN_RUN_S: Final = 0.002
# Rows whose keys are made ready and whose ids are checked.
_N_KEYED_ROWS: Final = 64

_PREFIXES: Final = {Family.CHACHA8: "tm1", Family.PHILOX: "philox"}
_WORDS: Final = {Family.CHACHA8: "words of tm1", Family.PHILOX: "Philox words"}

Prepare = Callable[[Path], Callable[[], Run]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Logits to draw from."""

    name: str
    what: str
    make: Callable[[], Tensor]  # [B, V]
    n_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """Filters before the draw."""

    name: str
    what: str
    top_k: int | None
    top_p: float

    def filters(self, n_rows: int) -> Filters:
        """What the draw takes."""
        filters = Filters.none(n_rows)
        filters.top_p[:] = self.top_p
        if self.top_k is not None:
            filters.top_k[:] = self.top_k
        return filters


def _normal() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return 2 * torch.randn(1, _LARGE_VOCABULARY, generator=generator)


_FLAT: Final = _Rows(
    name="flat",
    what="one flat row of 151,936",
    make=lambda: torch.zeros(1, _LARGE_VOCABULARY),
    n_runs=300,
)
_NORMAL: Final = _Rows(
    name="normal",
    what="one row of 151,936 normal logits, standard deviation 2",
    make=_normal,
    n_runs=100,
)
_BFLOAT16: Final = _Rows(
    name="bf16",
    what="the normal row in bfloat16",
    make=lambda: _normal().to(torch.bfloat16),
    n_runs=100,
)
_REAL: Final = _Rows(
    name="real",
    what="32 rows of 49,152 logits of the demo model",
    make=real_logits,
    n_runs=40,
)
_TOP_K_AND_P: Final = _Choice(name="k50-p95", what="top-k 50 and top-p 0.95", top_k=50, top_p=0.95)
_TOP_P: Final = _Choice(name="p95", what="top-p 0.95", top_k=None, top_p=0.95)


def _timed(call: Callable[[], object], n_entries: int) -> Run:
    """The mean time of a few calls, after one that brings its data back into the caches."""
    call()
    n_calls, seconds = 0, 0.0
    started = time.perf_counter()
    while seconds < _MIN_RUN_S:
        call()
        n_calls += 1
        seconds = time.perf_counter() - started
    return Run(seconds=seconds / n_calls, n_entries=n_entries)


def _keyed(rows: _Rows, choice: _Choice | None, family: Family) -> Prepare:
    """The draw of this project."""

    def prepare(_folder: Path) -> Callable[[], Run]:
        logits = rows.make()
        n_rows = len(logits)
        filters = None if choice is None else choice.filters(n_rows)
        all_keys = _row_keys(family, n_rows)
        for keys in all_keys:
            wanted = reference_draws(logits.float().numpy(), keys, filters or Filters.none(n_rows))
            check_ids(draw(logits, keys, filters).ids.numpy(), wanted)
        next_keys = itertools.cycle(all_keys)
        return lambda: _timed(lambda: draw(logits, next(next_keys), filters), logits.numel())

    return prepare


def _row_keys(family: Family, n_rows: int) -> list[RowKeys]:
    """Keys of as many batches as there are rows to check for."""
    generator = np.random.default_rng(1)
    shape = (_N_KEYED_ROWS // n_rows, n_rows, family.state_words)
    states = generator.integers(2**32, size=shape, dtype=np.uint32)
    return [RowKeys.of_family(family, of_batch) for of_batch in states]


def _unmarked(rows: _Rows, choice: _Choice | None) -> Prepare:
    """The same by torch."""
    generator = torch.Generator().manual_seed(0)

    @torch.inference_mode()
    def sample(logits: Tensor) -> Tensor:
        if choice is not None:
            logits = filter_by_sorting(logits, top_k=choice.top_k, top_p=choice.top_p)
        return draw_by_division(logits, generator)

    def prepare(_folder: Path) -> Callable[[], Run]:
        logits = rows.make()
        sole = torch.full_like(logits, -torch.inf)
        sole[:, -1] = 0
        if not (sample(sole) == sole.shape[1] - 1).all():
            raise GateError("torch drew another id than the only one there was")
        if choice is not None:
            _check_filters(logits, choice)
        return lambda: _timed(lambda: sample(logits), logits.numel())

    return prepare


def _check_filters(logits: Tensor, choice: _Choice) -> None:
    """Raise GateError unless sorting leaves as many candidates as the reference."""
    (keys, *_) = _row_keys(Family.CHACHA8, len(logits))
    wanted = reference_draws(logits.numpy(), keys, choice.filters(len(logits))).n_left
    left = filter_by_sorting(logits, top_k=choice.top_k, top_p=choice.top_p)
    found = (left > -torch.inf).sum(dim=1).numpy()
    # Sums of float32 may come to the edge of top-p one candidate sooner or later.
    for row in np.flatnonzero(abs(found - wanted) > 1):
        raise GateError(f"sorting left {found[row]} of row {row}, the reference {wanted[row]}")


def _beside_torch(
    rows: _Rows, choice: _Choice | None = None, *, families: Collection[Family] = (Family.CHACHA8,)
) -> dict[str, Case]:
    """The draw of the rows with words of each family, and torch's."""
    suffix = rows.name if choice is None else f"{rows.name}-{choice.name}"
    what = rows.what if choice is None else f"{rows.what}, {choice.what}"
    peer = f"torch-{suffix}"
    cases = {
        peer: Case(
            what=f"torch's draw: {what}",
            prepare=_unmarked(rows, choice),
            n_runs=rows.n_runs,
            n_threads=1,
        )
    }
    for family in families:
        cases[f"{_PREFIXES[family]}-{suffix}"] = Case(
            what=f"draw with {_WORDS[family]}: {what}",
            prepare=_keyed(rows, choice, family),
            n_runs=rows.n_runs,
            baseline=peer,
            n_threads=1,
        )
    return cases


DRAW_CASES: Final[Mapping[str, Case]] = {
    **_beside_torch(_FLAT, families=tuple(Family)),
    **_beside_torch(_NORMAL, families=tuple(Family)),
    **_beside_torch(_BFLOAT16),
    **_beside_torch(_REAL),
    **_beside_torch(_NORMAL, _TOP_K_AND_P),
    **_beside_torch(_NORMAL, _TOP_P),
    **_beside_torch(_REAL, _TOP_K_AND_P),
    **_beside_torch(_REAL, _TOP_P),
}
"""Every case by name."""
