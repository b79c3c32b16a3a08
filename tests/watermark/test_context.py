import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmark.watermark.context import ContextHistory, contexts_of, first_occurrence

token_lists = st.lists(st.integers(0, 3), max_size=60)
widths = st.integers(1, 5)


@given(token_lists, widths, st.sampled_from([None, -1]))
def test_mask_says_the_same_all_at_once_and_step_by_step(
    ids: list[int], width: int, padding: int | None
) -> None:
    contexts = contexts_of(np.array(ids, dtype=np.int64), width, padding=padding)
    history = ContextHistory()
    stepwise = [history.record(tuple(context.tolist())) for context in contexts]
    assert first_occurrence(contexts).tolist() == stepwise


@given(token_lists, widths)
def test_a_context_is_the_ids_before_its_target(ids: list[int], width: int) -> None:
    contexts = contexts_of(np.array(ids, dtype=np.int64), width, padding=None)
    expected = [ids[i - width : i] for i in range(width, len(ids))]
    assert contexts.tolist() == expected


@given(token_lists, token_lists, widths)
def test_mask_is_stable_under_appending(first: list[int], more: list[int], width: int) -> None:
    def mask(ids: list[int]) -> list[bool]:
        contexts = contexts_of(np.array(ids, dtype=np.int64), width, padding=-1)
        return first_occurrence(contexts).tolist()

    assert mask(first + more)[: len(first)] == mask(first)


@pytest.mark.parametrize("wrong", ["wrap-around", "off-by-one"])
def test_wrong_windows_are_told_apart(wrong: str) -> None:
    ids, width = np.arange(10), 4
    variants = {
        # Negative controls: the two classic mistakes give other contexts than ours.
        "wrap-around": np.stack([np.roll(ids, width - j)[:6] for j in range(width)], axis=1),
        "off-by-one": np.lib.stride_tricks.sliding_window_view(ids[1:], width)[:6],
    }
    assert not np.array_equal(contexts_of(ids, width, padding=None), variants[wrong])
