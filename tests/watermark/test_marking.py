from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_files import load
from tests.watermark.test_gumbel import golden_logits
from tokenmark.watermark.context import contexts_of, first_occurrence
from tokenmark.watermark.gumbel import race_large_u, winners
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.marking import MarkingState, RepeatScope
from tokenmark.watermark.prf import philox
from tokenmark.watermark.profiles import PROFILES

MARKS = load("tm1_vectors.json")["marks"]
# vLLM's scopes of repeated contexts that have a counterpart here.
SCOPES = {"single_turn": RepeatScope.COMPLETION, "all": RepeatScope.CONVERSATION}


def is_generated_here(options: dict[str, Any]) -> bool:
    """Whether vLLM drew the golden by one key and by rules that this project has."""
    max_history = options.get("maxh", 8192)
    n_ids = options.get("n", 64) + len(options.get("prompt", []))
    return (
        "dual" not in options
        and options.get("scope", "single_turn") in SCOPES
        and (max_history is None or max_history >= n_ids)
    )


GOLDENS = {
    name: row
    for name, row in load("vllm_goldens.json")["golden"].items()
    if is_generated_here(row["gen"])
}


def run(state: MarkingState, token_ids: list[int], logps: list[float]) -> list[int]:
    marked = []
    for token_id, logp in zip(token_ids, logps, strict=True):
        marked.append(int(state.decide().marked))
        state.append(token_id, log_probability=logp if state.needs_log_probability else None)
    return marked


@pytest.mark.parametrize("row", MARKS)
def test_marked_positions_of_the_vectors(row: dict[str, Any]) -> None:
    state = MarkingState(row["context_width"], padding=None)
    assert run(state, row["token_ids"], row["logps"]) == row["marked"]


def test_warmup_ends_at_the_stated_surprise_and_not_before() -> None:
    ids, logps = list(range(20)), [-1.0] * 20
    marked = run(MarkingState(2, padding=None, warmup_nats=8.0), ids, logps)
    assert marked == [0] * 8 + [1] * 12
    assert run(MarkingState(2, padding=None, warmup_nats=0.0), ids, logps) == [0] * 2 + [1] * 18


def test_warmup_never_lasts_past_thirty_two_positions() -> None:
    marked = run(MarkingState(2, padding=None), list(range(40)), [0.0] * 40)
    assert marked == [0] * 32 + [1] * 8


def test_a_context_that_occurred_during_warmup_counts_as_repeated() -> None:
    ids = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 10]
    marked = run(MarkingState(2, padding=None), ids, [-1.0] * len(ids))
    # Position 11 has the context (1, 2), first seen at position 2, inside the warm-up.
    assert marked[-3:] == [1, 1, 0]


def test_conversation_scope_counts_the_prompt_and_the_seam() -> None:
    ids = [7, 5, 6, 9, 8, 7, 3]
    logps = [-9.0] + [-0.1] * 6
    completion = run(MarkingState(2, padding=None), ids, logps)
    assert completion == [0, 0, 1, 1, 1, 1, 1]
    state = MarkingState(2, padding=None, scope=RepeatScope.CONVERSATION, prompt_ids=[5, 6, 8])
    # (5, 6) stands in the prompt and (8, 7) lies across the seam of prompt and answer.
    assert run(state, ids, logps) == [0, 0, 1, 0, 1, 1, 0]


def test_a_needed_probability_may_not_be_left_out() -> None:
    state = MarkingState(2, padding=None)
    state.decide()
    with pytest.raises(AssertionError):
        state.append(1, log_probability=None)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 5), st.sampled_from([None, -1]))
def test_without_warmup_marked_is_what_the_detector_scores(
    ids: list[int], width: int, padding: int | None
) -> None:
    state = MarkingState(width, padding=padding, warmup_nats=0.0)
    decisions = []
    for token_id in ids:
        decisions.append(state.decide())
        state.append(token_id, log_probability=None)
    contexts = contexts_of(np.array(ids, dtype=np.int64), width, padding=padding)
    n_without = len(ids) - len(contexts)
    assert all(decision.context is None for decision in decisions[:n_without])
    given_contexts = [decision.context for decision in decisions[n_without:]]
    assert given_contexts == [tuple(context) for context in contexts.tolist()]
    marked = [decision.marked for decision in decisions]
    assert marked == [False] * n_without + first_occurrence(contexts).tolist()


def test_padding_gives_the_first_position_a_context_which_warmup_still_holds_back() -> None:
    ids, logps = list(range(20)), [-3.0] * 20
    assert run(MarkingState(4, padding=-1, warmup_nats=0.0), ids, logps) == [1] * 20
    assert run(MarkingState(4, padding=-1), ids, logps) == [0] * 3 + [1] * 17
    # Position 4 has the context (7,), first seen at position 1, inside the warm-up.
    assert run(MarkingState(1, padding=-1), [7, 5, 6, 7, 8], [-3.0] * 5) == [0, 0, 0, 1, 0]


def test_conversation_scope_leaves_the_first_contexts_alone_whatever_the_padding() -> None:
    ids, logps = [7, 5, 6, 9, 8, 7, 3], [-1.0] * 7
    for padding in (None, -1):
        state = MarkingState(
            2,
            padding=padding,
            warmup_nats=0.0,
            scope=RepeatScope.CONVERSATION,
            prompt_ids=[5, 6, 8],
        )
        assert run(state, ids, logps) == [0, 0, 1, 0, 1, 1, 0]


def generate_golden(
    options: dict[str, Any], *, padding: int | None, scope: RepeatScope
) -> list[int]:
    """The ids of a golden, drawn by our rules; the likeliest id where vLLM draws without key."""
    width, profile = options.get("w", 4), PROFILES["vllm-gumbel"]
    stream_key = profile.source.stream_key(WatermarkKey.from_integer(int(options["key"])), width)
    prompt_ids = options.get("prompt", [])
    state = MarkingState(
        width, padding=padding, warmup_nats=0.0, scope=scope, prompt_ids=prompt_ids
    )
    drawn = []
    for position in range(options.get("n", 64)):
        values, decision = golden_logits(position, options)[None], state.decide()
        if decision.marked:
            states = profile.source.row_states(stream_key, np.array([decision.context]))
            words = philox.words(states, values.shape[1])
            values = race_large_u(values, philox.uniform_f32(words))
        drawn.append(int(winners(values)[0]))
        state.append(drawn[-1], log_probability=None)
    return drawn


@pytest.mark.parametrize("name", GOLDENS)
def test_vllm_goldens_come_out_id_for_id(name: str) -> None:
    options = GOLDENS[name]["gen"]
    scope = SCOPES[options.get("scope", "single_turn")]
    drawn = generate_golden(options, padding=PROFILES["vllm-gumbel"].padding, scope=scope)
    assert drawn == GOLDENS[name]["tokens"]
    # The negative controls: tm1's start, and the other scope where that one tells a difference.
    if scope is RepeatScope.COMPLETION:
        assert generate_golden(options, padding=None, scope=scope) != drawn
    other = next(each for each in SCOPES.values() if each is not scope)
    assert generate_golden(options, padding=-1, scope=other) != drawn


def test_seven_vllm_goldens_are_reproduced() -> None:
    """Of sixteen; six have two keys, two mark repeats too and one forgets old contexts."""
    assert len(load("vllm_goldens.json")["golden"]) == 16
    assert len(GOLDENS) == 7
    scopes = [row["gen"].get("scope", "single_turn") for row in GOLDENS.values()]
    assert (scopes.count("single_turn"), scopes.count("all")) == (3, 4)
