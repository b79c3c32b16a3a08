"""The result of a detection: verdict, signals, warnings, and their JSON form.

Knows nothing of how a signal was computed. The JSON is the public contract; its fields keep their
meaning. There is no verdict "human": a missing mark does not show who wrote a text.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tokenmark.detector.normalise import ViewName
from tokenmark.watermark.tokenizers import TokenizerReference

__all__ = ["NO_MARK_SENTENCE", "Detection", "Outcome", "Power", "Reason", "Signal", "Verdict"]

NO_MARK_SENTENCE: Final = "A missing mark does not show that a person wrote the text."

_LN_10: Final = math.log(10)


class Verdict(StrEnum):
    """What the evidence says of the whole text."""

    WATERMARKED = "watermarked"
    NOT_DETECTED = "not_detected"
    INCONCLUSIVE = "inconclusive"


class Outcome(StrEnum):
    """What one test says."""

    DETECTED = "detected"
    NOT_DETECTED = "not_detected"
    INCONCLUSIVE = "inconclusive"


class Reason(StrEnum):
    """Why a test is inconclusive."""

    TOO_SHORT = "too_short"
    LOW_POWER = "low_power"
    NO_CALIBRATION = "no_calibration"
    """How much evidence such a mark leaves in a text is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Probability that marked text of this length would have been detected, by kind of text.

    None where it is not known.
    """

    prose: float | None
    low_entropy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One key tested on one text, in the view that says most; None of ids that were given.

    Probabilities are natural logarithms; JSON has base ten.
    """

    scheme: str
    key_id: str
    key_name: str
    outcome: Outcome
    reason: Reason | None
    log_pvalue: float
    log_pvalue_corrected: float
    tests: int
    level: float
    n_tokens: int
    n_scored: int
    n_repeated: int
    statistic: float
    expected_null: float
    smallest_decisive_length: int
    power: Power
    view: ViewName | None
    tokenizer: TokenizerReference | None

    @property
    def log10_pvalue_corrected(self) -> float:
        """Corrected p-value as a base ten logarithm."""
        return self.log_pvalue_corrected / _LN_10

    def to_json(self) -> dict[str, object]:
        """The signal as the service and the command line state it."""
        reference = self.tokenizer
        return {
            "type": "watermark",
            "scheme": self.scheme,
            "key_id": self.key_id,
            "key_name": self.key_name,
            "outcome": str(self.outcome),
            "reason": None if self.reason is None else str(self.reason),
            "log10_pvalue": self.log_pvalue / _LN_10,
            "log10_pvalue_corrected": self.log10_pvalue_corrected,
            "tests": self.tests,
            "correction": "bonferroni",
            "level": self.level,
            "n_tokens": self.n_tokens,
            "n_scored": self.n_scored,
            "n_repeated": self.n_repeated,
            "statistic": self.statistic,
            "expected_null": self.expected_null,
            "smallest_decisive_length": self.smallest_decisive_length,
            "power": {"prose": self.power.prose, "low_entropy": self.power.low_entropy},
            "view": None if self.view is None else str(self.view),
            "tokenizer": None
            if reference is None
            else {"id": reference.id, "sha256": reference.sha256},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """What was found in one text, and everything that was tried."""

    signals: tuple[Signal, ...]
    warnings: tuple[str, ...] = ()

    @property
    def best(self) -> Signal:
        """The signal with the strongest evidence."""
        return min(self.signals, key=lambda signal: signal.log_pvalue_corrected)

    @property
    def verdict(self) -> Verdict:
        """Watermarked if any key is detected; not detected only if no test was inconclusive."""
        outcomes = {signal.outcome for signal in self.signals}
        if Outcome.DETECTED in outcomes:
            return Verdict.WATERMARKED
        if Outcome.INCONCLUSIVE in outcomes:
            return Verdict.INCONCLUSIVE
        return Verdict.NOT_DETECTED

    @property
    def _decisive(self) -> Signal:
        """The signal that makes the verdict what it is."""
        if self.verdict is not Verdict.INCONCLUSIVE:
            return self.best
        return next(signal for signal in self.signals if signal.reason is not None)

    @property
    def reason(self) -> Reason | None:
        """Why the verdict is inconclusive, if it is."""
        return self._decisive.reason

    @property
    def verdict_text(self) -> str:
        """The verdict in plain words."""
        best = self._decisive
        n_keys = len(self.signals)
        tried = f"{n_keys} key" + ("s" if n_keys > 1 else "")
        if best.tests > n_keys:
            tried = f"{best.tests} tests of {tried}"
        evidence = (
            f"p = {_decimal(best.log10_pvalue_corrected)} after correction for {tried}, "
            f"level {best.level:g}"
        )
        if self.verdict is Verdict.WATERMARKED:
            return f"The mark of key {best.key_id} ({best.scheme}) was found: {evidence}."
        if self.verdict is Verdict.NOT_DETECTED:
            return f"No mark was found: {evidence}. {NO_MARK_SENTENCE}"
        assert best.reason is not None
        n_scored, power = best.n_scored, best.power.prose
        because = {
            Reason.TOO_SHORT: f"{n_scored} scored tokens are too few to decide",
            Reason.LOW_POWER: f"{n_scored} scored tokens would show a mark in prose with "
            f"probability {power or 0:.2f} only",
            Reason.NO_CALIBRATION: f"how much {n_scored} scored tokens show of such a mark is not "
            "known",
        }[best.reason]
        return f"No mark was found, but {because}: {evidence}. {NO_MARK_SENTENCE}"

    def to_json(self) -> dict[str, object]:
        """The detection as the service and the command line state it."""
        return {
            "object": "detection",
            "verdict": str(self.verdict),
            "reason": None if self.reason is None else str(self.reason),
            "verdict_text": self.verdict_text,
            "signals": [signal.to_json() for signal in self.signals],
            "warnings": list(self.warnings),
        }


def _decimal(log10: float) -> str:
    """A probability to two digits from its logarithm, also where it is below the float range."""
    exponent = math.floor(log10)
    mantissa = f"{10 ** (log10 - exponent):.1f}"
    return f"1.0e{exponent + 1:+d}" if mantissa == "10.0" else f"{mantissa}e{exponent:+d}"
