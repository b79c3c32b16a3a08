"""Draws one id a row of logits by the keyed exponential race: checks and the choice of the path.

Knows nothing of requests, contexts or text. Row keys say which words a row uses, filters what is
left of its logits. Marked and unmarked rows are the same to it.
"""

from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmark.kernels import gumbel_cpu
from tokenmark.kernels.rows import Filters, RowKeys
from tokenmark.watermark.errors import ModelError
from tokenmark.watermark.gumbel import uniforms
from tokenmark.watermark.prf import philox
from tokenmark.watermark.prf.family import Family

__all__ = ["Draws", "Path", "Race", "draw", "path_of", "warm_up"]


class Path(StrEnum):
    """Which implementation ran."""

    NUMBA = "numba"
    TRITON = "triton"


@dataclass(frozen=True, slots=True, eq=False)
class Race:
    """How each row's race ended."""

    x: Tensor  # [B] float64, the uniform of the winner's word; for Philox u, large where it wins
    gaps: Tensor  # [B] float64, of the winner's value over the runner-up's; inf without one


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """The winners of a batch, where the logits are; of a failed row only the status counts."""

    ids: Tensor  # [B] int64
    status: Tensor  # [B] integers, of RowStatus
    has_choice: Tensor  # [B] bool, whether the filters left more than one candidate
    floors: Tensor  # [B] float32, the smallest logits over temperature that the filters left
    log_probabilities: Tensor | None  # [B] float64, of the ids among what was left; NaN elsewhere
    race: Race | None
    path: Path


@dataclass(frozen=True, slots=True)
class _Wants:
    """What is to be told besides the ids."""

    race: bool
    log_probability: NDArray[np.bool_] | None


def draw(
    logits: Tensor,  # [B, V] float32, bfloat16 or float16; -inf where removed
    keys: RowKeys,  # of B rows
    filters: Filters | None = None,  # of B rows; None keeps all candidates
    *,
    wants_race: bool = False,
    wants_log_probability: NDArray[np.bool_] | None = None,  # [B]; None wants none
) -> Draws:
    """The id that wins each row's race over what the filters left, ties to the lowest id.

    The law of a winner is softmax(logits / temperature) over what the filters left. A row of NaN,
    of +inf or without a candidate fails alone, which its status says.

    Raises:
        ValueError: shapes, types or numbers that do not fit.
    """
    if logits.dtype not in (torch.float32, torch.bfloat16, torch.float16) or logits.ndim != 2:  # noqa: PLR2004 - rows and columns
        raise ValueError(
            "logits must be [B, V] of float32, bfloat16 or float16, "
            f"got {logits.dtype} {list(logits.shape)}"
        )
    keys.check(*logits.shape)
    if filters is not None:
        filters.check(logits.shape[0])
    run = _draw_triton if path_of(logits.device) is Path.TRITON else _draw_numba
    wants = _Wants(wants_race, wants_log_probability)
    return run(logits, keys, filters, wants)


def path_of(device: torch.device) -> Path:
    """Which path draws from logits that lie on a device."""
    return Path.NUMBA if device.type == "cpu" else Path.TRITON


def warm_up(device: torch.device, dtype: torch.dtype) -> None:
    """Compile what draws such logits, or load it from disk, ahead of the first draw.

    Raises:
        ModelError: what draws on such a device is not installed.
    """
    if path_of(device) is Path.TRITON and find_spec("triton") is None:
        raise ModelError(
            f"drawing on {device} needs Triton, which is not installed; run "
            "`pip install 'tokenmark[gpu]'`, or choose --device cpu"
        )
    for family in Family:
        keys = RowKeys.of_family(family, np.zeros((1, family.state_words), dtype=np.uint32))
        logits = torch.zeros(1, 1, dtype=dtype, device=device)
        draw(logits, keys, Filters.none(1), wants_log_probability=np.ones(1, dtype=np.bool_))


def _draw_numba(logits: Tensor, keys: RowKeys, filters: Filters | None, wants: _Wants) -> Draws:
    # A row's logits must lie side by side; those of a model do.
    rows = logits if logits.stride(1) == 1 or logits.shape[1] == 1 else logits.contiguous()
    # NumPy has no bfloat16.
    host = (rows.view(torch.uint16) if rows.dtype is torch.bfloat16 else rows).numpy()
    drawn = gumbel_cpu.draw_rows(
        host,
        keys,
        filters,
        wants_log_probability=wants.log_probability,
        n_threads=torch.get_num_threads(),
    )
    best, second = drawn.values[:, 0], drawn.values[:, 1]
    race = None
    if wants.race:
        # The difference is NaN in a row that was not drawn.
        with np.errstate(invalid="ignore"):
            race = _race(drawn.words, torch.from_numpy(best - second), keys)
    return Draws(
        ids=torch.from_numpy(drawn.ids),
        status=torch.from_numpy(drawn.status),
        has_choice=torch.from_numpy(second > -np.inf),
        floors=torch.from_numpy(drawn.floors),
        log_probabilities=None
        if wants.log_probability is None
        else torch.from_numpy(drawn.log_probabilities),
        race=race,
        path=Path.NUMBA,
    )


def _draw_triton(logits: Tensor, keys: RowKeys, filters: Filters | None, wants: _Wants) -> Draws:
    # Only where it runs: an installation that draws on CPUs has no Triton.
    from tokenmark.kernels import filters_triton, gumbel_triton  # noqa: PLC0415

    def moved(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(logits.device, non_blocking=True)

    if filters is None:
        filters = Filters.none(len(logits))
    temperatures = moved(filters.temperatures)
    floors = filters_triton.find_floors(
        logits, temperatures, moved(filters.top_k), moved(filters.top_p), moved(filters.min_p)
    )
    drawn = gumbel_triton.draw_rows(
        logits,
        moved(keys.states.view(np.int32)),
        moved(keys.symbols),
        moved(keys.families),
        temperatures,
        floors,
        present=tuple(Family(number) for number in np.unique(keys.families)),
        detailed=wants.race,
    )
    race = None
    if drawn.words is not None and drawn.gaps is not None:
        words = drawn.words.cpu().numpy().view(np.uint32)
        race = _race(words, drawn.gaps.double(), keys)
    return Draws(
        ids=drawn.ids,
        status=drawn.status,
        has_choice=drawn.has_choice,
        floors=floors,
        log_probabilities=None
        if wants.log_probability is None
        else _log_probabilities(logits, drawn.ids, temperatures, floors, wants.log_probability),
        race=race,
        path=Path.TRITON,
    )


def _log_probabilities(
    logits: Tensor,
    ids: Tensor,  # [B]
    temperatures: Tensor,  # [B]
    floors: Tensor,  # [B]
    wanted: NDArray[np.bool_],  # [B]
) -> Tensor:  # [B] float64
    found = torch.full_like(floors, torch.nan, dtype=torch.float64)
    for row in np.flatnonzero(wanted):
        scaled = logits[row].float() / temperatures[row]
        left = scaled[scaled >= floors[row]]
        found[row] = (scaled[ids[row]] - left.logsumexp(dim=0)).double()
    return found


def _race(words: NDArray[np.uint32], gaps: Tensor, keys: RowKeys) -> Race:
    is_philox = keys.families == Family.PHILOX
    x = np.where(is_philox, philox.uniform_f32(words).astype(np.float64), uniforms(words))
    return Race(x=torch.from_numpy(x).to(gaps.device), gaps=gaps)
