"""The texts that vLLM publishes, drawn again by the kernels, every position of a text at once."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.golden_files import load
from tests.watermark.test_gumbel import golden_logits
from tokenmark.kernels import gumbel
from tokenmark.kernels.gumbel import Path, draw
from tokenmark.kernels.rows import RowKeys, RowStatus
from tokenmark.watermark.context import contexts_of, first_occurrence
from tokenmark.watermark.key import KeyForm, WatermarkKey
from tokenmark.watermark.prf import philox
from tokenmark.watermark.prf.family import Family

GOLDENS = load("vllm_goldens.json")["golden"]
DERIVED = {
    int(row["key"]): (int(row["key_a"]), int(row["key_b"]))
    for row in load("vllm_prf_words.json")["derived_keys"]
}


@pytest.fixture(params=[Path.NUMBA, pytest.param(Path.TRITON, marks=pytest.mark.slow)])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each path in turn; where no GPU is, Triton runs under its interpreter."""
    chosen: Path = request.param
    monkeypatch.setattr(gumbel, "path_of", lambda _device: chosen)
    return chosen


def drawn_with(
    key: int, contexts: NDArray[np.int64], logits: torch.Tensor, path: Path
) -> list[int]:
    (secret,) = WatermarkKey.from_integers([key], KeyForm.UINT64).reveal_integers()
    stream_key = np.array([secret & 0xFFFFFFFF, secret >> 32], dtype=np.uint32)
    keys = RowKeys.of_family(Family.PHILOX, philox.row_states(stream_key, contexts))
    draws = draw(logits, keys)
    assert draws.path is path
    assert set(draws.status.tolist()) == {RowStatus.DRAWN}
    return draws.ids.tolist()


def candidates(row: dict[str, Any], path: Path) -> tuple[list[list[int]], list[int], list[bool]]:
    """What each key draws at each position, the likeliest ids, and which contexts are new."""
    options = row["gen"]
    contexts = contexts_of(np.array(row["tokens"]), options.get("w", 4), padding=-1)
    logits = np.stack([golden_logits(i, options) for i in range(len(contexts))])
    keys = DERIVED[int(options["key"])] if "dual" in options else (int(options["key"]),)
    drawn = [drawn_with(key, contexts, torch.from_numpy(logits), path) for key in keys]
    return drawn, logits.argmax(axis=1).tolist(), first_occurrence(contexts).tolist()


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_every_id_was_drawn_with_a_key_or_without_where_the_recipe_says_so(
    name: str, path: Path
) -> None:
    row = GOLDENS[name]
    drawn, likeliest, is_new = candidates(row, path)
    tokens, scope = row["tokens"], row["gen"].get("scope", "single_turn")
    n_keyed = 0
    for position, token in enumerate(tokens):
        by_key = token in {ids[position] for ids in drawn}
        n_keyed += by_key
        if scope == "single_turn" and is_new[position]:
            assert by_key, position
        else:
            assert by_key or token == likeliest[position], position
    assert n_keyed >= len(tokens) - row["dedup_skips"] - row["partial_skips"]


def test_one_of_two_keys_is_chosen_as_often_as_published(path: Path) -> None:
    """With weight 0.1 seven of 64 ids come from the second key, with 0.4 twenty-six."""
    for name, n_second in (("dual-key0-cw4-alpha0.1", 7), ("dual-keymax-cw4-alpha0.4", 26)):
        (first, second), _, _ = candidates(GOLDENS[name], path)
        tokens = GOLDENS[name]["tokens"]
        only_second = [b == t != a for a, b, t in zip(first, second, tokens, strict=True)]
        assert n_second - 2 <= sum(only_second) <= n_second


def test_another_key_draws_another_text(path: Path) -> None:
    row = next(row for row in GOLDENS.values() if "dual" not in row["gen"])
    options = row["gen"]
    contexts = contexts_of(np.array(row["tokens"]), options.get("w", 4), padding=-1)
    logits = np.stack([golden_logits(i, options) for i in range(len(contexts))])
    drawn = drawn_with(int(options["key"]) ^ 1, contexts, torch.from_numpy(logits), path)
    assert sum(a == b for a, b in zip(drawn, row["tokens"], strict=True)) < len(drawn) / 2
