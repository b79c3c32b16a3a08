import math

import numpy as np
import pytest

from tokenmark.eval.measuring import GateError
from tokenmark.eval.reference_draw import check_ids, reference_draws
from tokenmark.kernels.rows import Filters, RowKeys
from tokenmark.watermark.gumbel import exponentials, race_large_u
from tokenmark.watermark.prf import chacha8, philox
from tokenmark.watermark.prf.family import Family

# Probabilities of 4, 3, 3, 2 and 0.5 in 12.5.
WEIGHTS = np.array([[3.0, 4.0, 0.5, 3.0, 2.0]])
LOGITS = np.log(WEIGHTS).astype(np.float32)


def keys_of(family: Family, n_rows: int = 1, seed: int = 0) -> RowKeys:
    shape = (n_rows, family.state_words)
    states = np.random.default_rng(seed).integers(2**32, size=shape, dtype=np.uint32)
    return RowKeys.of_family(family, states)


def filters_of(*, top_k: int | None = None, top_p: float = 1.0) -> Filters:
    filters = Filters.none(1)
    filters.top_p[:] = top_p
    if top_k is not None:
        filters.top_k[:] = top_k
    return filters


@pytest.mark.parametrize(
    ("top_k", "top_p", "n_left"),
    [
        (None, 1.0, 5),
        (1, 1.0, 1),
        (2, 1.0, 3),  # ties stay or go together
        (3, 1.0, 3),
        (4, 1.0, 4),
        (99, 1.0, 5),
        (None, 0.31, 1),
        (None, 0.33, 3),
        (None, 0.79, 3),
        (None, 0.81, 4),
        (None, 1e-9, 1),
        (4, 0.83, 3),  # 10 of the 12 that top-k left
        (4, 0.84, 4),
    ],
)
def test_the_filters_leave_what_their_definition_says(
    top_k: int | None, top_p: float, n_left: int
) -> None:
    filters = filters_of(top_k=top_k, top_p=top_p)
    assert reference_draws(LOGITS, keys_of(Family.CHACHA8), filters).n_left == n_left


def test_the_winner_has_the_best_value_of_what_is_left() -> None:
    for seed in range(20):
        keys = keys_of(Family.CHACHA8, seed=seed)
        draws = reference_draws(LOGITS, keys, filters_of(top_k=4))
        values = LOGITS[0] - np.log(exponentials(chacha8.keystream(keys.states, 5)))[0]
        values[2] = -np.inf
        second, first = np.sort(values)[-2:]
        assert draws.ids[0] == values.argmax()
        assert math.isclose(draws.gaps[0], first - second, rel_tol=1e-9)


def test_rows_of_philox_race_in_the_form_of_their_recipe() -> None:
    keys = keys_of(Family.PHILOX, n_rows=3)
    words = philox.words(keys.states[:, : philox.ROW_STATE_WORDS], 5)
    values = race_large_u(np.repeat(LOGITS, 3, axis=0), philox.uniform_f32(words))
    draws = reference_draws(np.repeat(LOGITS, 3, axis=0), keys, Filters.none(3))
    assert (draws.ids == values.argmax(axis=1)).all()


def test_a_sole_candidate_wins_by_any_margin() -> None:
    draws = reference_draws(LOGITS[:, :1], keys_of(Family.PHILOX), Filters.none(1))
    assert draws.ids == 0
    assert draws.gaps == math.inf


def test_another_id_is_told_unless_the_race_was_close() -> None:
    draws = reference_draws(LOGITS, keys_of(Family.CHACHA8), Filters.none(1))
    check_ids(draws.ids, draws)
    other = (draws.ids + 1) % 5
    with pytest.raises(GateError, match=f"row 0 drew id {other[0]}"):
        check_ids(other, draws)
    with pytest.raises(GateError):
        check_ids(other, draws, near_tie=draws.gaps[0] / 2)
    check_ids(other, draws, near_tie=draws.gaps[0] * 2)
