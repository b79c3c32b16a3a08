"""The slow, obvious generator: the whole sequence again for every id, one answer at a time."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tokenmark.engine.answer import Mark, request_key
from tokenmark.engine.request import SamplingParams
from tokenmark.watermark.gumbel import race, race_large_u
from tokenmark.watermark.prf import chacha8, philox
from tokenmark.watermark.prf.family import Family

__all__ = ["Reference", "reference_answer"]

Values = NDArray[np.float64]
Logits = NDArray[np.float32]


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
        logits = next_logits(prompt_ids + ids).numpy()
        decision = None if marking is None else marking.decide()
        if params.is_greedy:
            values = logits.astype(np.float64)
        else:
            logits = _filtered(logits, params)
            if mark is not None and decision is not None and decision.marked:
                assert decision.context is not None
                values = _marked_race(logits, mark, decision.context)
            else:
                row_key = chacha8.ordinary_row_keys(own_key[None], np.array([position]))
                values = race(logits[None], chacha8.keystream(row_key, logits.size))[0]
        token_id = int(values.argmax())
        if marking is not None:
            marking.append(token_id, log_probability=_log_probability(logits, token_id))
        second, first = np.sort(values)[-2:]
        gaps.append(float(first - second))
        ids.append(token_id)
        marks.append(decision is not None and decision.marked)
    return Reference(ids, gaps, marks)


def _marked_race(logits: Logits, mark: Mark, context: tuple[int, ...]) -> Values:
    """The race of all candidates by the scheme's own recipe."""
    states = mark.scheme.profile.source.row_states(mark.stream_key, np.array([context]))
    if mark.family is Family.CHACHA8:
        values = race(logits[None], chacha8.keystream(states, logits.size))
    else:
        uniform = philox.uniform_f32(philox.words(states, logits.size))
        values = race_large_u(logits[None], uniform).astype(np.float64)
    return values.reshape(-1)


def _filtered(logits: Logits, params: SamplingParams) -> Logits:
    """Logits over temperature, -inf where top-k, top-p or min-p remove a candidate."""
    scaled = logits / np.float32(params.temperature)
    if params.top_k is not None:
        n_larger = np.array([np.sum(scaled > value) for value in scaled])
        scaled = np.where(n_larger < params.top_k, scaled, np.float32(-np.inf))
    if params.top_p < 1:
        weights = np.exp(scaled.astype(np.float64) - scaled.max())
        mass_of_larger = np.array([weights[scaled > value].sum() for value in scaled])
        is_left = mass_of_larger < params.top_p * weights.sum()
        scaled = np.where(is_left, scaled, np.float32(-np.inf))
    if params.min_p > 0:
        floor = scaled.max() + np.float32(np.log(params.min_p))
        scaled = np.where(scaled >= floor, scaled, np.float32(-np.inf))
    return scaled


def _log_probability(logits: Logits, token_id: int) -> float:
    exact = logits.astype(np.float64)
    return float(exact[token_id] - np.logaddexp.reduce(exact))
