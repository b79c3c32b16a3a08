"""Draws the next id of every row of a batch: forbidden ids, row keys, then one kernel for all rows.

Knows nothing of text, blocks or clients. What a row draws depends on its own logits and its own
keys only, never on its neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmark.engine.answer import Answer, Mark
from tokenmark.engine.filters import filters_of
from tokenmark.engine.request import Request
from tokenmark.kernels.gumbel import draw
from tokenmark.kernels.rows import STATE_WORDS, RowKeys, RowStatus
from tokenmark.watermark.errors import SamplingError
from tokenmark.watermark.prf import chacha8
from tokenmark.watermark.prf.family import Family

__all__ = ["Row", "Sampler"]

_PROBLEMS: Final = {
    RowStatus.NO_CANDIDATE: "no id is left to draw",
    RowStatus.NOT_FINITE: "the model gave no usable logits (NaN or infinite)",
}


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

    @torch.inference_mode()
    def sample(
        self,
        rows: Sequence[Row],
        logits: Tensor,  # [B, V] float32, bfloat16 or float16; forbidden ids are removed in place
    ) -> list[int | SamplingError]:
        """The drawn id of each row, or the error that only this row has."""
        for row, row_logits in zip(rows, logits, strict=True):
            _forbid(row.request, row_logits)
        answers = [row.answer for row in rows]
        needed = [answer.needs_log_probability for answer in answers]
        draws = draw(
            logits,
            self._row_keys(answers),
            filters_of([row.request.params for row in rows]),
            wants_log_probability=np.array(needed, dtype=np.bool_),
        )
        assert draws.log_probabilities is not None
        statuses, ids = draws.status.tolist(), draws.ids.tolist()
        have_choice, log_probabilities = draws.has_choice.tolist(), draws.log_probabilities.tolist()
        outcome: list[int | SamplingError] = []
        for index, row in enumerate(rows):
            if statuses[index] != RowStatus.DRAWN:
                outcome.append(_error(row, RowStatus(statuses[index])))
                continue
            token_id, had_choice = ids[index], have_choice[index]
            if row.request.params.is_greedy and had_choice:
                # Of likeliest ids that tie, the lowest; no key decides.
                token_id = int(logits[index].argmax())
            row.answer.append(
                token_id,
                had_choice=had_choice,
                log_probability=log_probabilities[index] if needed[index] else None,
            )
            outcome.append(token_id)
        return outcome

    def _row_keys(self, answers: Sequence[Answer]) -> RowKeys:
        contexts = [answer.decide() for answer in answers]
        is_marked = np.array([context is not None for context in contexts], dtype=np.bool_)
        n_rows = len(answers)
        keys = RowKeys(
            states=np.zeros((n_rows, STATE_WORDS), dtype=np.uint32),
            symbols=np.zeros(n_rows, dtype=np.int64),
            families=np.full(n_rows, Family.CHACHA8, dtype=np.uint8),
        )
        if not is_marked.all():
            ordinary = [answer for answer, c in zip(answers, contexts, strict=True) if c is None]
            keys.states[~is_marked] = chacha8.ordinary_row_keys(
                np.stack([answer.request_key for answer in ordinary]),
                np.array([answer.position for answer in ordinary], dtype=np.int64),
            )
        if is_marked.any():
            assert self._mark is not None
            known = [context for context in contexts if context is not None]
            states = self._mark.row_states(np.array(known, dtype=np.int64))
            keys.states[is_marked, : states.shape[1]] = states
            keys.families[is_marked] = self._mark.family
            marked = [answer for answer, c in zip(answers, contexts, strict=True) if c is not None]
            keys.symbols[is_marked] = self._symbols(marked, states)
        return keys

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


def _forbid(request: Request, logits: Tensor) -> None:
    """Remove ids that may not come yet from a row: an end before `min_tokens`."""
    if not request.is_eos_allowed:
        logits[sorted(request.eos_ids)] = -torch.inf


def _error(row: Row, status: RowStatus) -> SamplingError:
    return SamplingError(
        f"{_PROBLEMS[status]} at position {row.request.n_output} of the answer; "
        "the request was ended, others go on"
    )
