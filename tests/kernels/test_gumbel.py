import numpy as np
import pytest
import torch

from tests.statistics import g_test_log10_pvalue
from tokenmark.kernels.gumbel import Path, draw
from tokenmark.watermark.gumbel import race, winners
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.prf import chacha8
from tokenmark.watermark.scheme import PROFILES

PROFILE = PROFILES["tm1"]
STREAM_KEY = PROFILE.stream_key(WatermarkKey.from_hex("5e" * 32), 2)


def row_keys(n_rows: int) -> np.ndarray:
    contexts = np.stack([np.arange(n_rows), np.arange(n_rows) // 7], axis=1)
    return PROFILE.row_states(STREAM_KEY, contexts)


@pytest.mark.parametrize("vocabulary_size", [1, 7, 127, 2048, 2049, 49_152])
@pytest.mark.parametrize("symbol", [0, 1, 2**20 - 1])
def test_the_path_draws_what_the_reference_draws(vocabulary_size: int, symbol: int) -> None:
    logits = np.random.default_rng(1).normal(size=(3, vocabulary_size)).astype(np.float32)
    keys = row_keys(3)
    drawn = draw(torch.from_numpy(logits), keys, np.full(3, symbol))
    indices = (np.arange(vocabulary_size) + symbol) % 2**20
    words = np.stack([chacha8.words_at(np.repeat(k[None], indices.size, 0), indices) for k in keys])
    assert drawn.path is Path.NUMBA
    assert np.array_equal(drawn.ids, winners(race(logits, words)))


def test_no_rows_is_no_draw() -> None:
    drawn = draw(torch.zeros(0, 9), row_keys(0), np.zeros(0, dtype=np.int64))
    assert drawn.ids.shape == (0,)


def test_a_sole_candidate_wins_whatever_its_word() -> None:
    logits = torch.full((50, 300), -torch.inf)
    logits[:, 211] = -80.0
    assert set(draw(logits, row_keys(50), np.zeros(50, dtype=np.int64)).ids.tolist()) == {211}


@pytest.mark.parametrize(
    ("logits", "keys", "symbols"),
    [
        (torch.zeros(2, 9, dtype=torch.float64), row_keys(2), np.zeros(2, dtype=np.int64)),
        (torch.zeros(2, 9), row_keys(3), np.zeros(2, dtype=np.int64)),
        (torch.zeros(2, 9), row_keys(2), np.zeros(1, dtype=np.int64)),
        (torch.zeros(1, 2**20 + 1), row_keys(1), np.zeros(1, dtype=np.int64)),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    logits: torch.Tensor, keys: np.ndarray, symbols: np.ndarray
) -> None:
    with pytest.raises(ValueError, match=r"logits must|row states|symbols must|words for"):
        draw(logits, keys, symbols)


@pytest.mark.stat
def test_draws_follow_the_softmax_law_over_contexts() -> None:
    """False-alarm rate 1e-8: a G-test over 20,000 contexts, candidates from 0.07 down to 8e-4.

    Words cut to their top eight bits, the negative control, are caught.
    """
    n_draws, vocabulary_size = 20_000, 64
    logits = np.linspace(0, -4.5, vocabulary_size).astype(np.float32)
    law = np.exp(logits.astype(np.float64))
    law /= law.sum()
    keys = row_keys(n_draws)
    rows = torch.from_numpy(logits).expand(n_draws, -1)
    ids = draw(rows, keys, np.zeros(n_draws, dtype=np.int64)).ids
    counts = np.bincount(ids, minlength=vocabulary_size)
    assert g_test_log10_pvalue(counts, law) > -8
    words = np.concatenate(
        [chacha8.keystream(part, vocabulary_size) for part in np.split(keys, 20)]
    )
    coarse = winners(race(rows.numpy(), words & np.uint32(0xFF000000)))
    assert g_test_log10_pvalue(np.bincount(coarse, minlength=vocabulary_size), law) < -8
