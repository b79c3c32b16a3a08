"""The façade: keys and a text in, a Detection out. Knows nothing of files, terminals or HTTP."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenmark.detector.multiplicity import bonferroni
from tokenmark.detector.normalise import View, views
from tokenmark.detector.power import (
    LOW_ENTROPY,
    OPEN,
    PROSE,
    detection_power,
    smallest_decisive_length,
)
from tokenmark.detector.report import Detection, Outcome, Power, Reason, Signal
from tokenmark.detector.scoring import checked_ids, n_scorable, score_tokens
from tokenmark.detector.tails import log_tail
from tokenmark.detector.tokens import TextTokenizer
from tokenmark.watermark.errors import DocumentError, SchemeError, TokenizerError
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.scheme import Scheme

__all__ = ["DEFAULT_LEVEL", "DetectionKey", "Detector", "unbound_key"]

DEFAULT_LEVEL: Final = 1e-3

# A text too open to be typical would show its mark with at least this probability, or the text is
# too short to say anything; typical prose with at least that one, or the test is weak.
_OPEN_POWER: Final = 0.5
_PROSE_POWER: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionKey:
    """A key to test, with its public parameters and the tokenizer that its texts are read with."""

    name: str
    key: WatermarkKey
    scheme: Scheme
    tokenizer: TextTokenizer | None = None

    def __post_init__(self) -> None:
        if self.scheme.payload is not None:
            raise SchemeError(
                f"key {self.name!r} carries a payload, which this version cannot read; "
                "name another key with --key"
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """A text as ids: what each key scores."""

    per_key: tuple[NDArray[np.int64], ...]
    view: View | None  # None of ids that were given

    def is_like(self, other: "_Reading") -> bool:
        """Whether every key has the same ids in both."""
        pairs = zip(self.per_key, other.per_key, strict=True)
        return all(np.array_equal(own, others) for own, others in pairs)


class Detector:
    """Tests every key on every view of a text; the level holds for all tests together.

    Args:
        keys: at least one.
        level: false-alarm rate of a verdict `watermarked` on text without a mark.
    """

    def __init__(self, keys: Sequence[DetectionKey], *, level: float = DEFAULT_LEVEL) -> None:
        if not keys:
            raise ValueError("a detector needs at least one key")
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}")
        self._keys = tuple(keys)
        self._level = level

    def detect_text(self, text: str, *, prompt: str | None = None) -> Detection:
        """Detection in a text.

        Args:
            text: as it was published.
            prompt: what the model was asked; where the text begins with it, it is cut off, since
                ids that the model did not write hold no mark.

        Raises:
            TokenizerError: a key has no tokenizer.
            DocumentError: the text has too few tokens for any of the keys.
        """
        answer, warnings = _without_prefix(text, prompt)
        readings: list[_Reading] = []
        for view in views(answer):
            reading = self._read(view)
            # Two views may be cut into the same ids: that is one test, not two.
            if not any(reading.is_like(other) for other in readings):
                readings.append(reading)
        return self._detect(readings, warnings)

    def _read(self, view: View) -> _Reading:
        ids_of: dict[str, NDArray[np.int64]] = {}
        per_key = []
        for entry in self._keys:
            if entry.tokenizer is None:
                raise unbound_key(entry.name)
            sha256 = entry.tokenizer.reference.sha256
            if sha256 not in ids_of:
                ids_of[sha256] = entry.tokenizer.encode(view.text)
            per_key.append(ids_of[sha256])
        return _Reading(tuple(per_key), view)

    def detect_ids(
        self,
        token_ids: Sequence[int] | NDArray[np.integer],
        *,
        prompt_ids: Sequence[int] = (),
    ) -> Detection:
        """Detection in token ids, which must come from the tokenizer of the keys.

        Raises:
            TokenIdError: an id is no integer, negative, or outside the vocabulary.
            DocumentError: there are too few ids for any of the keys.
        """
        given = token_ids.tolist() if isinstance(token_ids, np.ndarray) else list(token_ids)
        answer, warnings = _without_prefix(given, list(prompt_ids))
        per_key = []
        for entry in self._keys:
            if entry.tokenizer is None:
                limit, limit_of = entry.scheme.id_limit, f"scheme {entry.scheme.name}"
            else:
                limit = entry.tokenizer.vocabulary_size
                limit_of = f"the vocabulary of tokenizer {entry.tokenizer.reference.id}"
            per_key.append(checked_ids(answer, limit=limit, limit_of=limit_of))
        return self._detect([_Reading(tuple(per_key), None)], warnings)

    def _detect(self, readings: Sequence[_Reading], warnings: tuple[str, ...]) -> Detection:
        """The strongest signal of each key over all readings, corrected for every test made."""
        tests = [
            (number, reading)
            for number, entry in enumerate(self._keys)
            for reading in readings
            if n_scorable(reading.per_key[number].size, entry.scheme) > 0
        ]
        if not tests:
            raise _too_short(self._keys, readings[0].per_key)
        n_short = len(self._keys) - len({number for number, _ in tests})
        if n_short:
            warnings += (f"{n_short} keys were not tested: the text is below their context",)
        # A scheme may have fewer ids than the text; without another key to test that is the error.
        fit = [(number, reading) for number, reading in tests if self._fits(number, reading)]
        unfit = {number for number, _ in tests} - {number for number, _ in fit}
        for name in (self._keys[number].name for number in sorted(unfit) if fit):
            warnings += (f"key {name!r} was not tested: its scheme has fewer ids than the text",)
        tests = fit or tests
        of_key: dict[int, list[Signal]] = {}
        for number, reading in tests:
            of_key.setdefault(number, []).append(self._test(number, reading, len(tests)))
        signals = tuple(
            min(of_one, key=lambda signal: signal.log_pvalue_corrected)
            for of_one in of_key.values()
        )
        shown = {signal.view for signal in signals}
        for view in (reading.view for reading in readings):
            if view is not None and view.name in shown:
                warnings += tuple(change.warning for change in view.changes)
        return Detection(signals=signals, warnings=tuple(dict.fromkeys(warnings)))

    def _fits(self, number: int, reading: _Reading) -> bool:
        return int(reading.per_key[number].max()) < self._keys[number].scheme.id_limit

    def _test(self, number: int, reading: _Reading, n_tests: int) -> Signal:
        entry, ids, view = self._keys[number], reading.per_key[number], reading.view
        scores = score_tokens(ids, entry.key, entry.scheme)
        law = entry.scheme.profile.law(entry.key, entry.scheme.parameters)
        log_pvalue = log_tail(law, scores.n_scored, scores.statistic)
        corrected = bonferroni(log_pvalue, n_tests)
        log_level = math.log(self._level)
        single_level = log_level - math.log(n_tests)
        decisive = smallest_decisive_length(single_level, law)
        power = Power(
            prose=detection_power(scores.n_scored, single_level, PROSE, law),
            low_entropy=detection_power(scores.n_scored, single_level, LOW_ENTROPY, law),
        )
        if corrected <= log_level:
            outcome, reason = Outcome.DETECTED, None
        else:
            best = detection_power(scores.n_scored, single_level, OPEN, law)
            reason = _doubt(power, best, is_short=scores.n_scored < decisive)
            outcome = Outcome.NOT_DETECTED if reason is None else Outcome.INCONCLUSIVE
        return Signal(
            scheme=entry.scheme.name,
            key_id=entry.key.key_id,
            key_name=entry.name,
            outcome=outcome,
            reason=reason,
            log_pvalue=log_pvalue,
            log_pvalue_corrected=corrected,
            tests=n_tests,
            level=self._level,
            n_tokens=ids.size,
            n_scored=scores.n_scored,
            n_repeated=scores.n_repeated,
            statistic=scores.statistic,
            expected_null=scores.n_scored * law.mean,
            smallest_decisive_length=decisive,
            power=power,
            view=None if view is None else view.name,
            tokenizer=None if entry.tokenizer is None else entry.tokenizer.reference,
        )


def unbound_key(name: str) -> TokenizerError:
    """What to say of a key without a tokenizer that is to test a text."""
    return TokenizerError(
        f"key {name!r} is bound to no tokenizer, so it can only test token ids; "
        "give --tokenizer FILE, or --ids with a list of ids"
    )


def _doubt(power: Power, best: float | None, *, is_short: bool) -> Reason | None:
    """Why a test that found nothing says nothing, if so; `best` is the power of open text."""
    if power.prose is None or best is None:
        return Reason.TOO_SHORT if is_short else Reason.NO_CALIBRATION
    if best < _OPEN_POWER:
        return Reason.TOO_SHORT
    return Reason.LOW_POWER if power.prose < _PROSE_POWER else None


def _too_short(keys: Sequence[DetectionKey], per_key: Sequence[NDArray[np.int64]]) -> DocumentError:
    n_tokens = max(ids.size for ids in per_key)
    width = min(entry.scheme.context_width for entry in keys)
    return DocumentError(
        f"the text has {n_tokens} tokens, and a token can be scored only after a context of "
        f"{width}; give a longer text"
    )


_Text = TypeVar("_Text", str, list[int])


def _without_prefix(text: _Text, prompt: _Text | None) -> tuple[_Text, tuple[str, ...]]:
    if not prompt:
        return text, ()
    if text[: len(prompt)] == prompt:
        return text[len(prompt) :], ("the prompt at the start of the text was not scored",)
    return text, ("the text does not begin with the prompt; all of it was scored",)
