"""Scores and p-values against published vectors and real marked texts."""

import math
from typing import Any

import numpy as np
import pytest

from tests.golden_files import load, load_lines
from tokenmark.detector.pvalue import log_gamma_tail
from tokenmark.detector.scoring import checked_ids, score_tokens
from tokenmark.watermark.context import contexts_of
from tokenmark.watermark.errors import TokenIdError
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.scheme import PROFILES, Scheme

TM1 = load("tm1_vectors.json")["detect"]
WORDS = load("vllm_prf_words.json")
GOLDENS = {
    name: row for name, row in load("vllm_goldens.json")["golden"].items() if "dual" not in name
}
DETECTIONS = [row for row in WORDS["detections"] if row["detector"] == "gumbel"]
TEXTS = load_lines("vllm_texts.jsonl")


def vllm_statistic(token_ids: list[int], key: int, width: int, *, dedup: bool) -> tuple[float, int]:
    """Statistic and number scored; without dedup as some vectors want it, which we never offer."""
    scheme = Scheme(name="vllm-gumbel", context_width=width)
    ids = np.array(token_ids, dtype=np.int64)
    wm_key = WatermarkKey.from_integer(key)
    if dedup:
        scores = score_tokens(ids, wm_key, scheme)
        return scores.statistic, scores.n_scored
    profile = scheme.profile
    contexts = contexts_of(ids, width, padding=profile.padding)
    states = profile.row_states(profile.stream_key(wm_key, width), contexts)
    return float(profile.score(profile.words_at(states, ids)).sum()), ids.size


def assert_agrees(statistic: float, n: int, score: float, p_value: float) -> None:
    assert statistic == pytest.approx(score, rel=1e-9)
    assert math.exp(log_gamma_tail(n, statistic)) == pytest.approx(p_value, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("row", TM1, ids=lambda row: str(row["n_scored"]))
def test_tm1_vectors(row: dict[str, Any]) -> None:
    scheme = Scheme(name="tm1", context_width=row["context_width"])
    ids = np.array(row["token_ids"], dtype=np.int64)
    for prefix in ("", "wrong_key_"):
        key = WatermarkKey.from_hex(row["wrong_key" if prefix else "key"])
        scores = score_tokens(ids, key, scheme)
        assert scores.n_scored == row["n_scored"]
        assert scores.statistic == pytest.approx(row[f"{prefix}statistic"], rel=1e-12)
        log_pvalue = log_gamma_tail(scores.n_scored, scores.statistic)
        assert log_pvalue == pytest.approx(row[f"{prefix}log_pvalue"], rel=1e-10)


@pytest.mark.parametrize("row", DETECTIONS)
def test_vllm_detections(row: dict[str, Any]) -> None:
    ids, width = WORDS["sequences"][row["seq"]], row["context_width"]
    statistic, n = vllm_statistic(ids, int(row["key"]), width, dedup=row["deduplicate_contexts"])
    assert n == row["n"]
    assert_agrees(statistic, n, row["score"], row["p_value"])


@pytest.mark.parametrize("name", GOLDENS)
def test_vllm_goldens(name: str) -> None:
    row = GOLDENS[name]
    options = row["detect"]
    statistic, n = vllm_statistic(
        row["tokens"],
        int(options.get("key", row["gen"]["key"])),
        options.get("w", 4),
        dedup=options.get("dedup", True),
    )
    assert n == row["num_scored"]
    assert_agrees(statistic, n, row["score"], row["p_value"])


@pytest.mark.parametrize("row", TEXTS, ids=lambda row: f"{row['id']}-{row['label']}")
def test_texts_that_vllm_wrote(row: dict[str, Any]) -> None:
    expected = row["expected"]
    tried = {f"key{row['key']}_dedup": (row["key"], True)}
    tried |= {f"key{row['key']}_nodedup": (row["key"], False), "key43_dedup": (43, True)}
    for field in expected.keys() & tried.keys():
        key, dedup = tried[field]
        statistic, n = vllm_statistic(row["token_ids"], key, row["context_width"], dedup=dedup)
        assert n == expected[field]["n"]
        assert_agrees(statistic, n, expected[field]["score"], expected[field]["p_value"])
    assert expected.keys() & tried.keys()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, -2, 3], "number 1 is -2"),
        ([1, 2, 2**20], f"number 2 is {2**20}"),
        ([1, 2**70], "number 1 is"),
        ([1.5, 2], "number 0 is a float"),
        ([True], "number 0 is a bool"),
        ([None], "number 0 is a NoneType"),
    ],
)
def test_bad_ids_are_named(ids: list[object], message: str) -> None:
    with pytest.raises(TokenIdError, match=message):
        checked_ids(ids, limit=2**20, limit_of="scheme tm1")


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_score_is_below_the_stated_largest(name: str) -> None:
    profile = PROFILES[name]
    ends = np.array([0, 255, 2**32 - 256, 2**32 - 1], dtype=np.uint32)
    scores = profile.score(ends)
    assert scores.max() == pytest.approx(profile.largest_score, abs=1e-5)
    assert scores.min() > 0


def repeated(n_times: int) -> np.ndarray:
    return np.tile(np.array([504, 2644, 3409, 335, 260, 2671, 30]), n_times)


@pytest.mark.stat
@pytest.mark.parametrize("scheme_name", sorted(PROFILES))
@pytest.mark.parametrize("text", ["random", "repetitive"])
def test_null_pvalues_are_uniform_over_keys(scheme_name: str, text: str) -> None:
    """False-alarm rate 1e-8 a case: Kolmogorov's bound, 2 exp(-2 n d^2), with n = 1,500 keys.

    Random ids, and one sentence sixty times over. Scoring repeats (the negative control) is caught.
    """
    n_keys = 1500
    generator = np.random.default_rng(20260801)
    ids = generator.integers(0, 49_152, 200) if text == "random" else repeated(60)
    scheme = Scheme(name=scheme_name)
    pvalues, control = [], []
    for _ in range(n_keys):
        raw = generator.bytes(32)
        key = (
            WatermarkKey.from_bytes(raw)
            if scheme_name == "tm1"
            else WatermarkKey.from_integer(int.from_bytes(raw[:8], "little"))
        )
        scores = score_tokens(ids, key, scheme)
        pvalues.append(math.exp(log_gamma_tail(scores.n_scored, scores.statistic)))
        # What a detector without the mask would see: each score once for each repetition.
        n_all = 60 * scores.n_scored
        control.append(math.exp(log_gamma_tail(n_all, 60 * scores.statistic)))

    def distance(values: list[float]) -> float:
        ordered = np.sort(values)
        ranks = np.arange(n_keys + 1) / n_keys
        return float(max((ranks[1:] - ordered).max(), (ordered - ranks[:-1]).max()))

    bound = math.sqrt(math.log(2 / 1e-8) / (2 * n_keys))
    assert distance(pvalues) < bound
    assert distance(control) > bound
