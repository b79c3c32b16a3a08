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
from tokenmark.kernels.gumbel import Draws, draw
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
        keys = self._row_keys([row.answer for row in rows])
        draws = draw(logits, keys, filters_of([row.request.params for row in rows]))
        statuses, ids = draws.status.tolist(), draws.ids.tolist()
        have_choice = draws.has_choice.tolist()
        outcome: list[int | SamplingError] = []
        for index, row in enumerate(rows):
            if statuses[index] != RowStatus.DRAWN:
                outcome.append(_error(row, RowStatus(statuses[index])))
                continue
            token_id, had_choice = ids[index], have_choice[index]
            if row.request.params.is_greedy and had_choice:
                # Of likeliest ids that tie, the lowest; no key decides.
                token_id = int(logits[index].argmax())
            log_probability = None
            if row.answer.needs_log_probability:
                log_probability = _log_probability(row, logits[index], draws, index)
            row.answer.append(token_id, had_choice=had_choice, log_probability=log_probability)
            outcome.append(token_id)
        return outcome

    def _row_keys(self, answers: Sequence[Answer]) -> RowKeys:
        n_rows = len(answers)
        request_keys = np.zeros((n_rows, STATE_WORDS), dtype=np.uint32)
        for row, answer in enumerate(answers):
            request_keys[row] = answer.request_key
        positions = np.array([answer.position for answer in answers], dtype=np.int64)
        keys = RowKeys.of_family(Family.CHACHA8, chacha8.ordinary_row_keys(request_keys, positions))
        contexts = {
            row: context
            for row, answer in enumerate(answers)
            if (context := answer.decide()) is not None
        }
        if contexts:
            assert self._mark is not None
            marked = np.array(list(contexts))
            states = self._mark.row_states(np.array(list(contexts.values()), dtype=np.int64))
            keys.states[marked] = 0
            keys.states[marked, : states.shape[1]] = states
            keys.families[marked] = self._mark.family
            keys.symbols[marked] = self._symbols([answers[row] for row in marked], states)
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


def _log_probability(row: Row, logits: Tensor, draws: Draws, index: int) -> float:
    """ln of the drawn id's probability among what the filters left."""
    # By a tensor: a GPU multiplies by the reciprocal of a number, and rounds otherwise.
    scaled = logits.float() / draws.floors.new_tensor(row.request.params.temperature)
    left = scaled[scaled >= draws.floors[index]]
    return float(scaled[draws.ids[index]] - left.logsumexp(dim=0))
