"""The ids that a draw must give, from the definitions: by sorting, masses in float64.

Knows nothing of speed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenmark.eval.measuring import GateError
from tokenmark.kernels.rows import Filters, RowKeys
from tokenmark.watermark.gumbel import race, race_large_u, winners
from tokenmark.watermark.prf import chacha8, philox
from tokenmark.watermark.prf.family import Family

__all__ = ["ReferenceDraws", "check_ids", "reference_draws"]

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceDraws:
    """The winners of a batch."""

    ids: NDArray[np.int64]  # [B]
    gaps: NDArray[np.float64]  # [B], of the winner's value over the runner-up's; inf without one
    n_left: NDArray[np.int64]  # [B], candidates that the filters left


def reference_draws(
    logits: Logits,  # [B, V]
    keys: RowKeys,
    filters: Filters,  # without min-p
) -> ReferenceDraws:
    """The winner of each row's race over what top-k and top-p leave of it."""
    assert not filters.min_p.any()
    n_rows = len(logits)
    ids, n_left = np.empty(n_rows, dtype=np.int64), np.empty(n_rows, dtype=np.int64)
    gaps = np.empty(n_rows)
    for row in range(n_rows):
        scaled = logits[row] / filters.temperatures[row]
        floor = _floor(scaled, int(filters.top_k[row]), float(filters.top_p[row]))
        left = np.where(scaled >= floor, scaled, np.float32(-np.inf))
        values = _race(left[None], keys, row)
        ids[row] = winners(values)[0]
        n_left[row] = np.isfinite(left).sum()
        second, first = np.partition(np.append(values[0], -np.inf), -2)[-2:]
        gaps[row] = first - second
    return ReferenceDraws(ids, gaps, n_left)


def check_ids(
    ids: NDArray[np.int64],  # [B]
    reference: ReferenceDraws,
    *,
    near_tie: float = 0.0,
) -> None:
    """Raise GateError unless every row drew the reference's id.

    Args:
        ids: what was drawn.
        reference: what should have been.
        near_tie: rows whose two best are no farther apart may have drawn another id.
    """
    for row in np.flatnonzero((ids != reference.ids) & (reference.gaps > near_tie)):
        raise GateError(f"row {row} drew id {ids[row]}, the reference draws {reference.ids[row]}")


def _floor(scaled: Logits, top_k: int, top_p: float) -> np.float32:
    """The smallest of a row's logits that stays."""
    ordered = np.sort(scaled)[::-1]
    ordered = ordered[ordered >= ordered[min(top_k, ordered.size) - 1]]
    masses = np.exp(ordered.astype(np.float64) - ordered[0])
    # Of equal logits the first has only larger ones before it.
    first_of_equals = np.searchsorted(-ordered, -ordered)
    before = np.concatenate([[0.0], masses.cumsum()])[first_of_equals]
    # The sum may have been rounded otherwise than its last partial one.
    stays = (before < top_p * masses.sum()) | (top_p == 1)
    return np.float32(ordered[stays][-1])


def _race(logits: Logits, keys: RowKeys, row: int) -> NDArray[np.floating]:
    """The values of one row, [1, V]."""
    family, n_ids = Family(keys.families[row]), logits.shape[1]
    state = keys.states[row : row + 1, : family.state_words]
    if family is Family.PHILOX:
        return race_large_u(logits, philox.uniform_f32(philox.words(state, n_ids)))
    return race(logits, chacha8.keystream(state, n_ids, first=int(keys.symbols[row])))
