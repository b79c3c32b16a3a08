"""Draws one id a row of logits by the keyed exponential race: the choice of the path.

Knows nothing of requests, contexts or filters: a row key says which words a row uses, a logit of
-inf that a candidate was removed. Marked and unmarked rows are the same to it.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmark.kernels import gumbel_cpu
from tokenmark.watermark.errors import SamplingError

__all__ = ["Draws", "Path", "draw", "warm_up"]


class Path(StrEnum):
    """Which implementation ran."""

    NUMBA = "numba"


@dataclass(frozen=True, slots=True)
class Draws:
    """The winners of a batch."""

    ids: NDArray[np.int64]  # [B]
    path: Path


def draw(
    logits: Tensor,  # [B, V] float32, after temperature and filters; -inf where removed
    row_keys: NDArray[np.uint32],  # [B, 8]
    symbols: NDArray[np.int64],  # [B], payload symbols; 0 carries none
) -> Draws:
    """The id that wins each row's race over softmax(logits), ties to the lowest id.

    Raises:
        SamplingError: a row has no finite logit, or holds NaN or +inf.
        ValueError: shapes or dtypes that do not fit.
    """
    drawn = gumbel_cpu.draw_rows(
        logits.cpu().numpy(),
        row_keys,
        symbols,
        family=gumbel_cpu.Family.CHACHA8,
        n_threads=torch.get_num_threads(),
    )
    failed = np.flatnonzero(drawn.status != gumbel_cpu.RowStatus.DRAWN)
    if failed.size:
        raise SamplingError(
            f"row {failed[0]} of the logits has nothing to draw from; at least one finite logit "
            "and neither NaN nor +inf is needed"
        )
    return Draws(ids=drawn.ids, path=Path.NUMBA)


def warm_up() -> None:
    """Compile the kernel, or load it from disk, ahead of the first draw."""
    gumbel_cpu.warm_up()
