"""The slow, obvious generator: the whole sequence again for every id, one answer at a time."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tokenmark.engine.answer import Mark, request_key
from tokenmark.engine.filters import apply_filters
from tokenmark.engine.request import SamplingParams
from tokenmark.watermark.gumbel import race
from tokenmark.watermark.prf import chacha8

__all__ = ["Reference", "reference_answer"]


@dataclass(frozen=True, slots=True)
class Reference:
    """The ids, how far each was ahead in its race, and which were marked."""

    token_ids: list[int]
    gaps: list[float]
    marked: list[bool]


def reference_answer(
    next_logits: Callable[[list[int]], Tensor],
    prompt_ids: list[int],
    params: SamplingParams,
    *,
    mark: Mark | None,
    choice: int = 0,
) -> Reference:
    """An answer of exactly `max_tokens` ids; no id ends it."""
    marking = None if mark is None or params.is_greedy else mark.begin(prompt_ids)
    own_key = request_key(params.seed, choice)
    ids, gaps, marks = list[int](), list[float](), list[bool]()
    for position in range(params.max_tokens):
        logits = next_logits(prompt_ids + ids)
        if params.is_greedy:
            values = logits.numpy().astype(np.float64)
            token_id = int(values.argmax())
        else:
            logits = apply_filters(logits, params)
            row_key = chacha8.ordinary_row_keys(own_key[None], np.array([position]))
            decision = None if marking is None else marking.decide()
            if mark is not None and decision is not None and decision.marked:
                assert decision.context is not None
                row_key = chacha8.context_keys(mark.stream_key, np.array([decision.context]))
            marks.append(decision is not None and decision.marked)
            values = race(logits.numpy()[None], chacha8.keystream(row_key, logits.numel()))[0]
            token_id = int(values.argmax())
            if marking is not None:
                log_probability = float(torch.log_softmax(logits, dim=0)[token_id])
                marking.append(token_id, log_probability=log_probability)
        second, first = np.sort(values)[-2:]
        gaps.append(float(first - second))
        ids.append(token_id)
    return Reference(ids, gaps, marks)
