import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.tiny_engine import tiny_tokenizer_json
from tokenmark.detector.detector import DetectionKey, Detector
from tokenmark.detector.normalise import ViewName
from tokenmark.detector.report import NO_MARK_SENTENCE, Reason, Verdict, _decimal
from tokenmark.detector.tokens import TextTokenizer
from tokenmark.watermark.errors import DocumentError, SchemeError, TokenIdError, TokenizerError
from tokenmark.watermark.gumbel import race, winners
from tokenmark.watermark.key import KeyForm, WatermarkKey
from tokenmark.watermark.payload import PayloadLayout
from tokenmark.watermark.prf import chacha8
from tokenmark.watermark.scheme import Scheme

SCHEME = Scheme(name="tm1", context_width=2)
KEY = WatermarkKey.from_hex("5e" * 32)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_bytes(tiny_tokenizer_json())
    return TextTokenizer(str(path))


def key_entry(
    tokenizer: TextTokenizer | None = None, *, key: WatermarkKey = KEY, scheme: Scheme = SCHEME
) -> DetectionKey:
    return DetectionKey(name="k", key=key, scheme=scheme, tokenizer=tokenizer)


def marked_ids(n: int, *, first: int = ord("a"), stop: int = ord("z") + 1) -> list[int]:
    """Ids drawn evenly from a range under the key, every position marked but the first two."""
    ids = [first, first + 1]
    stream_key = SCHEME.profile.source.stream_key(KEY, 2)
    logits = np.full((1, stop), -np.inf)
    logits[0, first:] = 0.0
    while len(ids) < n:
        row_key = chacha8.context_keys(stream_key, np.array([ids[-2:]]))
        ids.append(int(winners(race(logits, chacha8.keystream(row_key, stop)))[0]))
    return ids


MARKED = "".join(map(chr, marked_ids(60)))


def test_a_mark_is_found_and_only_under_its_key(tokenizer: TextTokenizer) -> None:
    detection = Detector([key_entry(tokenizer)], level=1e-6).detect_text(MARKED)
    assert detection.verdict is Verdict.WATERMARKED
    assert KEY.key_id in detection.verdict_text
    other = key_entry(tokenizer, key=WatermarkKey.from_hex("5f" * 32))
    assert Detector([other]).detect_text(MARKED).verdict is not Verdict.WATERMARKED


def test_the_level_holds_for_all_keys_together(tokenizer: TextTokenizer) -> None:
    others = [WatermarkKey.from_bytes(bytes([i]) * 32) for i in range(1, 10)]
    keys = [key_entry(tokenizer, key=key) for key in [*others, KEY]]
    detection = Detector(keys, level=1e-3).detect_text(MARKED)
    best = detection.best
    assert best.key_id == KEY.key_id
    assert best.tests == len(keys)
    assert best.log_pvalue_corrected == pytest.approx(best.log_pvalue + math.log(10))
    assert len(detection.signals) == len(keys)


def test_text_and_ids_say_the_same(tokenizer: TextTokenizer) -> None:
    detector = Detector([key_entry(tokenizer)])
    (of_text,) = detector.detect_text(MARKED).signals
    (of_ids,) = detector.detect_ids([ord(c) for c in MARKED]).signals
    assert (of_text.view, of_ids.view) == (ViewName.RAW, None)
    assert dataclasses.replace(of_text, view=None) == of_ids


def test_what_was_changed_without_changing_words_is_seen_through(tokenizer: TextTokenizer) -> None:
    detector = Detector([key_entry(tokenizer)], level=1e-6)
    hidden = "\u200b".join(MARKED[i : i + 3] for i in range(0, len(MARKED), 3))
    detection = detector.detect_text(hidden)
    (signal,) = detection.signals
    assert detection.verdict is Verdict.WATERMARKED
    assert (signal.view, signal.tests) == (ViewName.WIDE, 2)
    (plain,) = detector.detect_text(MARKED).signals
    assert signal.statistic == plain.statistic
    assert signal.log_pvalue_corrected == pytest.approx(plain.log_pvalue + math.log(2))
    assert "19 zero-width characters removed before scoring" in detection.warnings
    assert "2 tests of 1 key" in detection.verdict_text


def test_views_with_the_same_ids_are_one_test(tokenizer: TextTokenizer) -> None:
    detection = Detector([key_entry(tokenizer)]).detect_text(MARKED)
    assert [signal.tests for signal in detection.signals] == [1]
    assert not detection.warnings


def test_the_prompt_is_not_scored(tokenizer: TextTokenizer) -> None:
    detector = Detector([key_entry(tokenizer)])
    alone = detector.detect_text(MARKED)
    together = detector.detect_text("What now? " + MARKED, prompt="What now? ")
    assert together.signals == alone.signals
    assert together.warnings
    elsewhere = detector.detect_text(MARKED, prompt="What now? ")
    assert elsewhere.signals == alone.signals
    assert "does not begin with the prompt" in elsewhere.warnings[0]
    ids = [ord(c) for c in "What now? " + MARKED]
    (of_ids,) = detector.detect_ids(ids, prompt_ids=ids[:10]).signals
    assert of_ids == dataclasses.replace(alone.signals[0], view=None)


@pytest.mark.parametrize(
    ("n_tokens", "verdict", "reason"),
    [
        (5, Verdict.INCONCLUSIVE, Reason.TOO_SHORT),
        (30, Verdict.INCONCLUSIVE, Reason.LOW_POWER),
        (200, Verdict.NOT_DETECTED, None),
    ],
)
def test_a_text_without_a_mark_is_judged_by_what_it_could_show(
    n_tokens: int, verdict: Verdict, reason: Reason | None
) -> None:
    ids = np.random.default_rng(3).integers(0, 50_000, n_tokens)
    detection = Detector([key_entry()]).detect_ids(ids)
    assert (detection.verdict, detection.reason) == (verdict, reason)
    assert detection.verdict_text.endswith(NO_MARK_SENTENCE)
    assert "human" not in json.dumps(detection.to_json())


def test_what_cannot_be_tested_is_refused(tokenizer: TextTokenizer) -> None:
    with pytest.raises(DocumentError, match="2 tokens, and a token can be scored only after"):
        Detector([key_entry(tokenizer)]).detect_text("ab")
    with pytest.raises(TokenizerError, match="bound to no tokenizer"):
        Detector([key_entry()]).detect_text(MARKED)
    with pytest.raises(TokenIdError, match="number 3 is 257; the vocabulary"):
        Detector([key_entry(tokenizer)]).detect_ids([1, 2, 3, 257, 5])
    with pytest.raises(TokenIdError, match=r"number 0 is -1; scheme tm1"):
        Detector([key_entry()]).detect_ids([-1, 2, 3])
    with pytest.raises(SchemeError, match="carries a payload"):
        key_entry(scheme=Scheme(name="tm1", payload=PayloadLayout(slots=1, bits=8)))


def test_the_json_is_complete(tokenizer: TextTokenizer) -> None:
    result = Detector([key_entry(tokenizer)]).detect_text(MARKED).to_json()
    assert json.loads(json.dumps(result)) == result
    assert set(result) == {"object", "verdict", "reason", "verdict_text", "signals", "warnings"}
    signals = result["signals"]
    assert isinstance(signals, list)
    assert signals[0].keys() >= {
        "scheme", "key_id", "outcome", "log10_pvalue", "log10_pvalue_corrected", "tests",
        "correction", "level", "n_tokens", "n_scored", "n_repeated", "statistic", "expected_null",
        "power", "tokenizer",
    }  # fmt: skip
    assert KEY.reveal_text() not in json.dumps(result)


def test_a_long_text_has_a_finite_log_p() -> None:
    ids = marked_ids(1500, first=0, stop=20_000)
    once, twice = (Detector([key_entry()]).detect_ids(text).best for text in (ids, ids * 2))
    assert -math.inf < once.log_pvalue < -5000
    assert twice.n_repeated == 1500 - 2
    assert twice.log_pvalue == pytest.approx(once.log_pvalue, rel=0.01)


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is not a tokenizer file"):
        TextTokenizer(str(path))


def test_settings_of_the_tokenizer_file_cut_nothing_off(tmp_path: Path) -> None:
    settings = json.loads(tiny_tokenizer_json())
    settings["truncation"] = {
        "direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    settings["padding"] = {
        "strategy": {"Fixed": 99}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "x",
    }  # fmt: skip
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(settings))
    assert TextTokenizer(str(path)).encode(MARKED).tolist() == [ord(c) for c in MARKED]


@pytest.mark.parametrize(
    ("log10", "shown"), [(-3.0000001, "1.0e-3"), (-0.0000001, "1.0e+0"), (-8.7, "2.0e-9")]
)
def test_a_probability_is_shown_with_one_digit_before_the_point(log10: float, shown: str) -> None:
    assert _decimal(log10) == shown


def test_a_key_whose_scheme_has_too_few_ids_is_left_out_beside_others(
    tokenizer: TextTokenizer,
) -> None:
    small = DetectionKey(
        name="small",
        key=WatermarkKey.from_integers([5], KeyForm.INT64),
        scheme=Scheme(
            name="kgw-hf-cpu-lefthash", context_width=1, parameters={"vocabulary_size": 50}
        ),
        tokenizer=tokenizer,
    )
    detection = Detector([small, key_entry(tokenizer)]).detect_text(MARKED)
    assert [signal.key_name for signal in detection.signals] == ["k"]
    assert [signal.tests for signal in detection.signals] == [1]
    (warning,) = detection.warnings
    assert warning == "key 'small' was not tested: its scheme has fewer ids than the text"
    with pytest.raises(TokenIdError, match=r"allows 0\.\.49"):
        Detector([small]).detect_text(MARKED)
