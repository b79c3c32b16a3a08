import numpy as np
import pytest
import torch
from scipy import stats

from tokenmark.eval.torch_peers import draw_by_division, filter_by_sorting

WEIGHTS = torch.tensor([[3.0, 4.0, 0.5, 3.5, 2.0], [1.0, 1.0, 8.0, 1.0, 1.0]])
LOGITS = WEIGHTS.log()


@pytest.mark.parametrize(
    ("top_k", "top_p", "left"),
    [
        (None, 1.0, [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]),
        (1, 1.0, [[1], [2]]),
        (3, 0.6, [[1, 3], [2]]),  # 4 of 10.5, then 7.5; 8 of 10
        (None, 0.31, [[1, 3], [2]]),  # 4 of 13
        (None, 0.3, [[1], [2]]),
    ],
)
def test_sorting_leaves_what_a_filter_says(
    top_k: int | None, top_p: float, left: list[list[int]]
) -> None:
    before = LOGITS.clone()
    filtered = filter_by_sorting(LOGITS, top_k=top_k, top_p=top_p)
    stays = filtered > -torch.inf
    assert [row.nonzero().flatten().tolist() for row in stays] == left
    assert torch.equal(filtered[stays], LOGITS[stays])
    assert torch.equal(before, LOGITS)


@pytest.mark.stat
def test_its_draws_follow_the_probabilities() -> None:
    """Chi-squared over 20,000 draws: fails on right code once in 10^9."""
    rows = LOGITS[:1].expand(20_000, -1)
    ids = draw_by_division(rows, torch.Generator().manual_seed(1)).numpy()
    counts = np.bincount(ids, minlength=5)
    expected = (WEIGHTS[0] / WEIGHTS[0].sum()).double().numpy()
    expected *= len(ids) / expected.sum()
    assert stats.chisquare(counts, expected).pvalue > 1e-9
    # The control: the same draws do not fit probabilities that are a little off.
    wrong = np.roll(expected, 1)
    assert stats.chisquare(counts, wrong).pvalue < 1e-9


def test_what_was_removed_is_never_drawn() -> None:
    logits = torch.full((50, 9), -torch.inf)
    logits[:, 4] = -30.0
    ids = draw_by_division(logits, torch.Generator().manual_seed(0))
    assert ids.tolist() == [4] * 50
