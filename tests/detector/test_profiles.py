"""Every profile scores the texts that its engine's own detector, or a recomputation, has scored."""

import math

import numpy as np
import pytest

from tests.golden_files import load
from tokenmark.detector.scoring import TokenScores, score_tokens
from tokenmark.detector.tails import log_tail
from tokenmark.watermark.errors import SchemeError
from tokenmark.watermark.key import KeyForm, WatermarkKey
from tokenmark.watermark.profiles import PROFILES
from tokenmark.watermark.scheme import Scheme

# Thirty-two ids with many repeats: a run of one id, pairs that come back, ids of any size.
LISTED = [101, 7, 7, 2048, 7, 2048, 7, 2048, 500, 31, 5, 9999, 7, 2048, 7, 2048]
LISTED += [42, 42, 42, 42, 42, 42, 65535, 151643, 3, 1, 4, 1, 5, 9, 2, 6]
SYNTHID_KEYS = [654, 400, 836, 123, 340, 443, 597, 160, 57, 29, 590, 639, 13, 715, 468, 990, 966]
SYNTHID_KEYS += [226, 324, 585, 118, 504, 421, 521, 129, 669, 732, 225, 90, 960]
HASHING_KEY = 15485863
DUALS = {name: row for name, row in load("vllm_goldens.json")["golden"].items() if "dual" in name}


def scores_of(
    scheme: str,
    key: WatermarkKey,
    ids: list[int] = LISTED,
    *,
    context_width: int = 4,
    parameters: dict[str, float] | None = None,
) -> tuple[TokenScores, float]:
    """Scores, and the natural logarithm of p."""
    stated = Scheme(name=scheme, context_width=context_width, parameters=parameters or {})
    scores = score_tokens(np.array(ids, dtype=np.int64), key, stated)
    law = stated.profile.law(key, stated.parameters)
    return scores, log_tail(law, scores.n_scored, scores.statistic)


def integers(*values: int, form: KeyForm = KeyForm.UINT64) -> WatermarkKey:
    return WatermarkKey.from_integers(values, form)


@pytest.mark.parametrize(
    ("width", "n_scored", "n_repeated", "statistic", "pvalue"),
    [(4, 24, 4, 38.15584858315461, 0.005760275326087), (1, 15, 16, 14.383827627014428, 0.529825)],
)
def test_sglang_gumbel(
    width: int, n_scored: int, n_repeated: int, statistic: float, pvalue: float
) -> None:
    scores, log_pvalue = scores_of(
        "sglang-gumbel", integers(0x0123456789ABCDEF), context_width=width
    )
    assert (scores.n_scored, scores.n_repeated) == (n_scored, n_repeated)
    assert scores.statistic == pytest.approx(statistic, rel=1e-12)
    assert math.exp(log_pvalue) == pytest.approx(pvalue, rel=1e-6)


def test_sglang_dual_scores_the_key_that_the_context_chooses() -> None:
    key = integers(0x0123456789ABCDEF, 0x1111222233334444, form=KeyForm.UINT64_PAIR)
    scores, log_pvalue = scores_of("sglang-dual", key)
    assert scores.n_scored == 24
    assert scores.statistic == pytest.approx(26.67805052813283, rel=1e-12)
    assert math.exp(log_pvalue) == pytest.approx(0.275905, rel=1e-5)


def test_sglang_texts_are_scored_up_to_their_cap() -> None:
    ids = list(range(5000))
    scores, _ = scores_of("sglang-gumbel", integers(12345), ids)
    assert scores.n_scored == 4096
    assert scores.positions.tolist() == list(range(4, 4100))


def test_arbi_never_scores_the_first_id() -> None:
    scores, log_pvalue = scores_of("arbi", integers(0xC0FFEED00D1234))
    assert scores.n_scored == 27
    assert scores.statistic == pytest.approx(28.9125877, rel=1e-8)
    assert math.exp(log_pvalue) == pytest.approx(0.335941174, rel=1e-6)
    assert scores.positions[0] == 1


def test_textseal_gumbel_scores_one_id_more_than_its_own_detector() -> None:
    scores, log_pvalue = scores_of(
        "textseal-gumbel", integers(42, form=KeyForm.INT64), context_width=1
    )
    own = scores.positions >= 2
    assert (own.sum(), scores.n_scored) == (14, 15)
    # Its detector computes in float32.
    assert scores.scores[own].sum() == pytest.approx(13.1141808, rel=1e-6)
    assert -2 < log_pvalue < 0


def test_synthid_table_counts_the_bits_of_its_own_detector() -> None:
    key = integers(*SYNTHID_KEYS, form=KeyForm.INT64_LIST)
    scores, log_pvalue = scores_of("synthid-table-cpu", key)
    assert scores.n_scored == 24
    assert scores.statistic == round(0.5194444444 * 24 * 30)
    assert -3 < log_pvalue < -0.1


def test_synthid_iv_counts_the_bits_of_its_own_detector() -> None:
    key = integers(*SYNTHID_KEYS, form=KeyForm.INT64_LIST)
    scores, _ = scores_of("synthid-iv", key)
    assert scores.n_scored == 24
    assert scores.statistic == round(0.5263888889 * 24 * 30)


def test_kgw_lefthash_counts_each_draw_once() -> None:
    key = integers(HASHING_KEY, form=KeyForm.INT64)
    parameters = {"vocabulary_size": 152_000, "greenlist_ratio": 0.25}
    scores, log_pvalue = scores_of(
        "kgw-hf-cpu-lefthash", key, context_width=1, parameters=parameters
    )
    assert (scores.n_scored, scores.statistic) == (21, 9)
    # Counted with its repeats the same list has z = 3.8.
    assert math.exp(log_pvalue) > 0.01


def test_kgw_selfhash_counts_no_more_draws_than_there_are_ngrams() -> None:
    key = integers(HASHING_KEY, form=KeyForm.INT64)
    scores, _ = scores_of(
        "kgw-hf-cpu-selfhash", key, context_width=3, parameters={"vocabulary_size": 152_000}
    )
    assert scores.n_scored + scores.n_repeated == 29
    assert scores.n_scored <= 25


@pytest.mark.parametrize("name", sorted(DUALS))
def test_vllm_dual_goldens(name: str) -> None:
    """The published p is of a Gamma law of the same moments: right for one key, else too small."""
    row = DUALS[name]
    alpha = row["detect"]["alpha"]
    scores, log_pvalue = scores_of(
        "vllm-dual",
        integers(int(row["gen"]["key"])),
        row["tokens"],
        context_width=row["detect"].get("w", 4),
        parameters={"alpha": alpha},
    )
    assert scores.n_scored == row["num_scored"]
    assert scores.statistic == pytest.approx(row["score"], rel=1e-9)
    ratio = math.exp(log_pvalue) / row["p_value"]
    assert ratio == pytest.approx(1, rel=1e-9) if alpha == 1 else 1 < ratio < 1e4


def test_vllm_texts_of_one_key_say_nothing_under_two() -> None:
    row = next(row for name, row in DUALS.items() if "alpha0.4" in name)
    _, log_pvalue = scores_of("vllm-gumbel", integers(int(row["gen"]["key"])), row["tokens"])
    assert log_pvalue > math.log(1e-3)


def test_every_profile_says_how_far_it_is_checked() -> None:
    assert len(PROFILES) == 12
    assert all(profile.evidence for profile in PROFILES.values())


def test_a_parameter_must_be_known_in_range_and_stated_where_there_is_no_default() -> None:
    for name, parameters, message in [
        ("vllm-dual", {"alpha": 1.5}, "alpha must be a number from 0 to 1, got 1.5"),
        ("vllm-dual", {"beta": 1.0}, "has no parameter 'beta'; it has alpha"),
        ("tm1", {"alpha": 0.1}, "has no parameter 'alpha'; it has none"),
        ("kgw-hf-cpu-lefthash", {}, "needs the parameter vocabulary_size"),
        ("kgw-hf-cpu-lefthash", {"vocabulary_size": 1.5}, "vocabulary_size must be an integer"),
        ("kgw-hf-cpu-lefthash", {"vocabulary_size": math.nan}, "must be an integer"),
    ]:
        with pytest.raises(SchemeError, match=message):
            Scheme(name=name, context_width=1, parameters=parameters)


def test_a_scheme_with_parameters_survives_its_wire_form() -> None:
    scheme = Scheme(name="vllm-dual", parameters={"alpha": 0.25})
    assert Scheme.from_json(scheme.to_json()) == scheme
    assert scheme.to_json()["parameters"] == {"alpha": 0.25}
    with pytest.raises(SchemeError, match=r"parameters\.alpha must be a number, got str"):
        Scheme.from_json(scheme.to_json() | {"parameters": {"alpha": "0.1"}})
