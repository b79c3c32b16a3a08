"""Draws the next id of every row of a batch: filters, row keys, then one kernel for all rows.

Knows nothing of text, blocks or clients. What a row draws depends on its own logits and its own
keys only, never on its neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmark.engine.answer import Answer, Mark
from tokenmark.engine.filters import apply_filters
from tokenmark.engine.request import Request
from tokenmark.kernels.gumbel import draw
from tokenmark.watermark.errors import SamplingError
from tokenmark.watermark.prf import chacha8

__all__ = ["Row", "Sampler"]


@dataclass(frozen=True, slots=True)
class Row:
    """A request whose next id is to be drawn, and its drawing state."""

    request: Request
    answer: Answer


class Sampler:
    """Draws ids and notes each in its answer's state.

    Args:
        mark: what marked rows are drawn with; None on a server that marks nothing.
    """

    def __init__(self, mark: Mark | None) -> None:
        self._mark = mark

    def sample(
        self,
        rows: Sequence[Row],
        logits: Tensor,  # [B, V] float32
    ) -> list[int | SamplingError]:
        """The drawn id of each row, or the error that only this row has."""
        # Filters and the draw run on the host.
        logits = logits.cpu()
        outcome: list[int | SamplingError] = [_unusable(row) for row in rows]
        drawn = []
        for index in np.flatnonzero(_usable_rows(logits)).tolist():
            row, row_logits = rows[index], _allowed(logits[index], rows[index].request)
            if row.request.params.is_greedy:
                outcome[index] = likeliest = int(row_logits.argmax())
                row.answer.append(likeliest, had_choice=False)
                continue
            filtered = apply_filters(row_logits, row.request.params)
            # Temperature may have lifted huge logits out of float32, and all ids may be forbidden.
            if bool(torch.isfinite(filtered.amax())):
                drawn.append((index, filtered))
        if drawn:
            stacked = torch.stack([filtered for _, filtered in drawn])
            ids = self._draw([rows[index].answer for index, _ in drawn], stacked)
            for (index, filtered), token_id in zip(drawn, ids.tolist(), strict=True):
                outcome[index] = _append(rows[index].answer, token_id, filtered)
        return outcome

    def _draw(self, answers: Sequence[Answer], logits: Tensor) -> NDArray[np.int64]:
        row_keys = chacha8.ordinary_row_keys(
            np.stack([answer.request_key for answer in answers]),
            np.array([answer.position for answer in answers]),
        )
        symbols = np.zeros(len(answers), dtype=np.int64)
        contexts = {
            row: context
            for row, answer in enumerate(answers)
            if (context := answer.decide()) is not None
        }
        if contexts:
            assert self._mark is not None
            marked = np.array(list(contexts))
            context_rows = np.array(list(contexts.values()), dtype=np.int64)
            keys = chacha8.context_keys(self._mark.stream_key, context_rows)
            row_keys[marked] = keys
            symbols[marked] = self._symbols([answers[row] for row in marked], keys)
        return draw(logits, row_keys, symbols).ids

    def _symbols(
        self, answers: Sequence[Answer], context_keys: NDArray[np.uint32]
    ) -> NDArray[np.int64]:
        """The payload symbol that each marked position carries, 0 without a message."""
        assert self._mark is not None
        layout = self._mark.scheme.payload
        if layout is None:
            return np.zeros(len(answers), dtype=np.int64)
        slots = chacha8.payload_slots(context_keys, layout.slots)
        return np.array(
            [
                answer.symbols[slot] if answer.symbols else 0
                for answer, slot in zip(answers, slots, strict=True)
            ],
            dtype=np.int64,
        )


def _usable_rows(logits: Tensor) -> NDArray[np.bool_]:
    """Rows that hold a finite maximum: not all masked, no NaN, no +inf."""
    if logits.shape[0] == 0:
        return np.zeros(0, dtype=np.bool_)
    return torch.isfinite(logits.amax(dim=1)).numpy()


def _unusable(row: Row) -> SamplingError:
    return SamplingError(
        f"the model gave no usable logits at position {row.request.n_output} of the answer "
        "(NaN or infinite); the request was ended, others go on"
    )


def _allowed(logits: Tensor, request: Request) -> Tensor:
    """The row without ids that may not come yet: an end before `min_tokens`."""
    if request.is_eos_allowed:
        return logits
    return logits.index_fill(0, torch.tensor(sorted(request.eos_ids)), -torch.inf)


def _append(answer: Answer, token_id: int, filtered: Tensor) -> int:
    """Note the id, with its probability under the filtered law where the warm-up needs it."""
    log_probability = None
    if answer.needs_log_probability:
        log_probability = float(filtered[token_id] - filtered.logsumexp(dim=0))
    n_candidates = int(torch.isfinite(filtered).sum())
    answer.append(token_id, had_choice=n_candidates > 1, log_probability=log_probability)
    return token_id
