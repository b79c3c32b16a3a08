from typing import Any

import numpy as np
import pytest

from tests.golden_files import load
from tokenmark.watermark.errors import SamplingError
from tokenmark.watermark.gumbel import exponentials, race, race_large_u, score_small_x, winners
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.prf import chacha8, philox
from tokenmark.watermark.profiles import PROFILES

DRAWS = load("tm1_vectors.json")["draws"]
VLLM = load("vllm_goldens.json")["golden"]
ENDS = [0, 1, 127, 128, 2**31 - 1, 2**31, 2**32 - 129, 2**32 - 128, 2**32 - 1]


@pytest.mark.parametrize("row", DRAWS)
def test_the_winner_of_every_vector(row: dict[str, Any]) -> None:
    profile = PROFILES["tm1"]
    stream_key = profile.source.stream_key(WatermarkKey.from_hex(row["key"]), len(row["context"]))
    row_key = profile.source.row_states(stream_key, np.array([row["context"]]))
    ids, logits = zip(*row["candidates"], strict=True)
    full = np.full((1, 2**18), -np.inf, dtype=np.float32)
    full[0, list(ids)] = logits
    shifted = (np.array(ids) + row["symbol"]) % 2**20
    words = np.zeros((1, 2**18), dtype=np.uint32)
    words[0, list(ids)] = chacha8.words_at(np.repeat(row_key, len(ids), axis=0), shifted)
    assert winners(race(full, words)).tolist() == [row["winner"]]


def test_ln_e_at_both_ends_of_the_word() -> None:
    words = np.array([0, 1, 2**31, 2**32 - 129, 2**32 - 1], dtype=np.uint32)
    expected = [-22.873857, -21.775245, -0.366513, 2.852138, 3.129995]
    assert np.allclose(np.log(exponentials(words)), expected, rtol=0, atol=5e-7)


@pytest.mark.parametrize("word", ENDS)
def test_a_sole_candidate_wins_with_any_word(word: int) -> None:
    logits = np.full((1, 9), -np.inf)
    logits[0, 5] = -300.0
    words = np.zeros((1, 9), dtype=np.uint32)
    words[0, 5] = word
    assert winners(race(logits, words)).tolist() == [5]


def test_ties_go_to_the_lowest_id() -> None:
    words = np.full((1, 4), 12345, dtype=np.uint32)
    assert winners(race(np.array([[0.0, 1.0, 1.0, 0.5]]), words)).tolist() == [1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_cannot_be_drawn_from_is_named(bad: float) -> None:
    logits = np.zeros((2, 3))
    logits[1] = [bad, bad, bad]
    with pytest.raises(SamplingError, match="row 1"):
        winners(race(logits, np.ones((2, 3), dtype=np.uint32)))


def test_score_is_minus_ln_x() -> None:
    words = np.array([0, 2**31, 2**32 - 1], dtype=np.uint32)
    expected = [-np.log(0.5 / 2**32), -np.log(0.5 + 0.5 / 2**32), 0.5 / 2**32]
    assert np.allclose(score_small_x(words), expected, rtol=1e-9)


def golden_logits(position: int, options: dict[str, Any]) -> np.ndarray:
    """The published fixture of logits behind the goldens, in float32."""
    ids = np.arange(options.get("V", 128))
    logits = ((37 * ids + 17 * position) % 131 - 56) / 16
    if "dom" in options:
        logits[options["dom"]] += options["bias"] / 16
    return logits.astype(np.float32)


def is_skipped(history: list[int], n_prompt: int, options: dict[str, Any]) -> bool:
    """vLLM's own rule of repeated contexts in each of its scopes."""
    width, scope = options.get("w", 4), options.get("scope", "single_turn")
    generated = history[n_prompt:]
    if scope == "none":
        return False
    if scope == "all" and len(generated) < width:
        return True
    searched = history if scope == "all" else generated
    padded = [-1] * width + searched
    context = ([-1] * width + generated)[-width:]
    limit = options.get("maxh", 8192)
    first = 0 if limit is None else max(0, len(searched) - limit)
    return any(padded[i : i + width] == context for i in range(first, len(searched)))


SINGLE_KEY = {name: row for name, row in VLLM.items() if "dual" not in row["gen"]}


@pytest.mark.parametrize("name", SINGLE_KEY)
def test_vllm_goldens_are_generated_id_for_id(name: str) -> None:
    options = VLLM[name]["gen"]
    width, profile = options.get("w", 4), PROFILES["vllm-gumbel"]
    key = WatermarkKey.from_integer(int(options["key"]))
    stream_key = profile.source.stream_key(key, width)
    history = list(options.get("prompt", []))
    n_prompt = len(history)
    for position in range(options.get("n", 64)):
        logits = golden_logits(position, options)[None]
        if is_skipped(history, n_prompt, options):
            history.append(int(logits.argmax()))
            continue
        context = ([-1] * width + history[n_prompt:])[-width:]
        states = profile.source.row_states(stream_key, np.array([context]))
        uniform = philox.uniform_f32(philox.words(states, logits.shape[1]))
        history.append(int(winners(race_large_u(logits, uniform))[0]))
    assert history[n_prompt:] == VLLM[name]["tokens"]
