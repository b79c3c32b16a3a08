from typing import Any

import pytest

from tests.golden_files import load
from tokenmark.watermark.marking import MarkingState, RepeatScope

MARKS = load("tm1_vectors.json")["marks"]


def run(state: MarkingState, token_ids: list[int], logps: list[float]) -> list[int]:
    marked = []
    for token_id, logp in zip(token_ids, logps, strict=True):
        marked.append(int(state.decide().marked))
        state.append(token_id, log_probability=logp if state.needs_log_probability else None)
    return marked


@pytest.mark.parametrize("row", MARKS)
def test_marked_positions_of_the_vectors(row: dict[str, Any]) -> None:
    state = MarkingState(row["context_width"])
    assert run(state, row["token_ids"], row["logps"]) == row["marked"]


def test_warmup_ends_at_the_stated_surprise_and_not_before() -> None:
    ids, logps = list(range(20)), [-1.0] * 20
    marked = run(MarkingState(2, warmup_nats=8.0), ids, logps)
    assert marked == [0] * 8 + [1] * 12
    assert run(MarkingState(2, warmup_nats=0.0), ids, logps) == [0] * 2 + [1] * 18


def test_warmup_never_lasts_past_thirty_two_positions() -> None:
    marked = run(MarkingState(2), list(range(40)), [0.0] * 40)
    assert marked == [0] * 32 + [1] * 8


def test_a_context_that_occurred_during_warmup_counts_as_repeated() -> None:
    ids = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 10]
    marked = run(MarkingState(2), ids, [-1.0] * len(ids))
    # Position 11 has the context (1, 2), first seen at position 2, inside the warm-up.
    assert marked[-3:] == [1, 1, 0]


def test_conversation_scope_counts_the_prompt_and_the_seam() -> None:
    ids = [7, 5, 6, 9, 8, 7, 3]
    logps = [-9.0] + [-0.1] * 6
    completion = run(MarkingState(2), ids, logps)
    assert completion == [0, 0, 1, 1, 1, 1, 1]
    state = MarkingState(2, scope=RepeatScope.CONVERSATION, prompt_ids=[5, 6, 8])
    # (5, 6) stands in the prompt and (8, 7) lies across the seam of prompt and answer.
    assert run(state, ids, logps) == [0, 0, 1, 0, 1, 1, 0]


def test_a_needed_probability_may_not_be_left_out() -> None:
    state = MarkingState(2)
    state.decide()
    with pytest.raises(AssertionError):
        state.append(1, log_probability=None)
