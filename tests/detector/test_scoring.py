"""Scores and p-values against published vectors and real marked texts."""

import math
from typing import Any

import numpy as np
import pytest

from tests.golden_files import load, load_lines
from tokenmark.detector.pvalue import log_gamma_tail
from tokenmark.detector.scoring import checked_ids, score_tokens
from tokenmark.detector.tail_integrals import log_binomial_tail
from tokenmark.detector.tails import log_tail
from tokenmark.watermark.context import contexts_of
from tokenmark.watermark.errors import TokenIdError
from tokenmark.watermark.key import KeyForm, WatermarkKey
from tokenmark.watermark.profiles import PROFILES
from tokenmark.watermark.scheme import Scheme

TM1 = load("tm1_vectors.json")["detect"]
WORDS = load("vllm_prf_words.json")
GOLDENS = {
    name: row for name, row in load("vllm_goldens.json")["golden"].items() if "dual" not in name
}
DETECTIONS = [row for row in WORDS["detections"] if row["detector"] == "gumbel"]
TEXTS = load_lines("vllm_texts.jsonl")
# TextSeal's words are residues and are checked with its profile.
CONTINUOUS = ["arbi", "sglang-dual", "sglang-gumbel", "textseal-dual", "textseal-gumbel", "tm1"]
CONTINUOUS += ["vllm-dual", "vllm-gumbel"]
WORD_PROFILES = ["arbi", "sglang-gumbel", "tm1", "vllm-gumbel"]


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
    states = profile.source.row_states(profile.source.stream_key(wm_key, width), contexts)
    return float(profile.score_of_word(profile.source.words_at(states, ids)).sum()), ids.size


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


@pytest.mark.parametrize("name", WORD_PROFILES)
def test_the_largest_score_is_that_of_the_most_convincing_word(name: str) -> None:
    profile = PROFILES[name]
    ends = np.array([0, 255, 2**32 - 256, 2**32 - 1], dtype=np.uint32)
    scores = profile.score_of_word(ends)
    law = profile.law(WatermarkKey.generate(), profile.settings({}))
    assert scores.max() == pytest.approx(law.largest_score, abs=1e-5)
    assert scores.min() > 0


def random_key(scheme_name: str, generator: np.random.Generator) -> WatermarkKey:
    form = PROFILES[scheme_name].key_form
    if form is KeyForm.BYTES32:
        return WatermarkKey.from_bytes(generator.bytes(32))
    if form is KeyForm.INT64_LIST:
        return WatermarkKey.from_integers(generator.permutation(2**16)[:30].tolist(), form)
    values = generator.integers(0, 2**63, form.counts[0])
    return WatermarkKey.from_integers(values.tolist(), form)


def repeated(n_times: int) -> np.ndarray:
    return np.tile(np.array([504, 2644, 3409, 335, 260, 2671, 30]), n_times)


@pytest.mark.stat
@pytest.mark.parametrize("scheme_name", CONTINUOUS)
@pytest.mark.parametrize("text", ["random", "repetitive"])
def test_null_pvalues_are_uniform_over_keys(scheme_name: str, text: str) -> None:
    """False-alarm rate 1e-8 a case: Kolmogorov's bound, 2 exp(-2 n d^2), with n = 1,500 keys.

    Random ids, and one sentence sixty times over. Scoring repeats (the negative control) is caught.
    """
    n_keys = 1500
    generator = np.random.default_rng(20260801)
    ids = generator.integers(0, 49_152, 200) if text == "random" else repeated(60)
    scheme = Scheme(name=scheme_name, context_width=PROFILES[scheme_name].context_width)
    pvalues, control = [], []
    for _ in range(n_keys):
        key = random_key(scheme_name, generator)
        scores = score_tokens(ids, key, scheme)
        law = scheme.profile.law(key, scheme.parameters)
        pvalues.append(math.exp(log_tail(law, scores.n_scored, scores.statistic)))
        # What a detector without the mask would see: each score once for each repetition.
        n_all = 60 * scores.n_scored
        control.append(math.exp(log_tail(law, n_all, 60 * scores.statistic)))

    def distance(values: list[float]) -> float:
        ordered = np.sort(values)
        ranks = np.arange(n_keys + 1) / n_keys
        return float(max((ranks[1:] - ordered).max(), (ordered - ranks[:-1]).max()))

    bound = math.sqrt(math.log(2 / 1e-8) / (2 * n_keys))
    assert distance(pvalues) < bound
    assert distance(control) > bound


@pytest.mark.stat
@pytest.mark.parametrize("scheme_name", ["kgw-hf-cpu-lefthash", "synthid-iv", "synthid-table-cpu"])
@pytest.mark.parametrize("text", ["random", "repetitive"])
def test_null_pvalues_of_counts_are_valid_over_keys(scheme_name: str, text: str) -> None:
    """False-alarm rate 1e-8 a case: the binomial tail of the keys that fall below each level.

    Counts come in steps, so that p may be too large and never too small. Counting every position
    sixty times (the negative control) is caught.
    """
    n_keys = 40
    generator = np.random.default_rng(20260802)
    ids = generator.integers(0, 2_000, 60) if text == "random" else repeated(60)
    parameters = {"vocabulary_size": 2_000} if "kgw" in scheme_name else {}
    ids = ids % 2_000
    scheme = Scheme(
        name=scheme_name,
        context_width=PROFILES[scheme_name].context_width,
        parameters=parameters,
    )
    pvalues, control = [], []
    for _ in range(n_keys):
        key = random_key(scheme_name, generator)
        scores = score_tokens(ids, key, scheme)
        law = scheme.profile.law(key, scheme.parameters)
        pvalues.append(log_tail(law, scores.n_scored, scores.statistic))
        control.append(log_tail(law, 60 * scores.n_scored, 60 * scores.statistic))

    def worst(log_pvalues: list[float]) -> float:
        levels = (0.2, 0.05, 0.01)
        return min(
            log_binomial_tail(n_keys, sum(p <= math.log(level) for p in log_pvalues), level)
            for level in levels
        )

    assert worst(pvalues) > math.log(1e-8 / 3)
    assert worst(control) < math.log(1e-8 / 3)
