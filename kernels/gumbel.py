"""Draws one id a row of logits by the keyed exponential race: checks, and choice of the path.

Knows nothing of requests, contexts or filters: a row key says which words a row uses, a logit of
-inf that a candidate was removed. Marked and unmarked rows are the same to it.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmark.watermark.gumbel import race, winners
from tokenmark.watermark.prf.chacha8 import KEYSTREAM_WORDS, keystream

__all__ = ["Draws", "Path", "draw"]


class Path(StrEnum):
    """Which implementation ran."""

    NUMPY = "numpy"


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
        SamplingError: a row has no finite logit or holds NaN.
        ValueError: shapes or dtypes that do not fit.
    """
    n_rows, vocabulary_size = logits.shape
    if logits.dtype != torch.float32 or row_keys.dtype != np.uint32:
        raise ValueError(f"float32 logits and uint32 keys, got {logits.dtype}, {row_keys.dtype}")
    if row_keys.shape != (n_rows, 8) or symbols.shape != (n_rows,):
        raise ValueError(
            f"{n_rows} rows of logits need row keys [{n_rows}, 8] and symbols [{n_rows}], "
            f"got {row_keys.shape} and {symbols.shape}"
        )
    if vocabulary_size > KEYSTREAM_WORDS:
        raise ValueError(f"a vocabulary has at most {KEYSTREAM_WORDS} ids, got {vocabulary_size}")
    host_logits = logits.cpu().numpy()
    ids = np.empty(n_rows, dtype=np.int64)
    # Row by row: the words of one row fit the processor's cache, those of a batch do not.
    for row in range(n_rows):
        words = keystream(row_keys[row : row + 1], vocabulary_size, first=int(symbols[row]))
        ids[row] = winners(race(host_logits[row : row + 1], words))[0]
    return Draws(ids=ids, path=Path.NUMPY)
