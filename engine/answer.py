"""What one answer needs to be drawn: its own stream of keys and, if it is marked, the mark's.

Knows nothing of logits, batches or text.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from tokenmark.watermark.key import WatermarkKey, hkdf_sha256
from tokenmark.watermark.marking import DEFAULT_WARMUP_NATS, Decision, MarkingState, RepeatScope
from tokenmark.watermark.prf.family import Family
from tokenmark.watermark.profile import WordSource
from tokenmark.watermark.scheme import Scheme

__all__ = ["Answer", "Mark", "UnmarkedReason", "request_key"]

Words = NDArray[np.uint32]


class UnmarkedReason(StrEnum):
    """Why an answer, or all of it so far, carries no mark."""

    SERVER_UNMARKED = "server_unmarked"
    OPTED_OUT = "opted_out"
    GREEDY = "greedy"
    NO_CHOICE = "no_choice"
    TOO_SHORT = "too_short"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The mark that a server writes.

    Args:
        key: a secret of that scheme.
        scheme: its public parameters; of a profile that names a family of words.
        warmup_nats: surprise that an answer gathers before it is marked.
        repeat_scope: where a context counts as repeated.
    """

    key: WatermarkKey
    scheme: Scheme
    warmup_nats: float = DEFAULT_WARMUP_NATS
    repeat_scope: RepeatScope = RepeatScope.COMPLETION
    stream_key: Words = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        stream_key = self._source.stream_key(self.key, self.scheme.context_width)
        object.__setattr__(self, "stream_key", stream_key)

    @property
    def _source(self) -> WordSource:
        assert self.scheme.profile.source is not None, "such a mark cannot be written"
        return self.scheme.profile.source

    @property
    def family(self) -> Family:
        """What kind of words marked ids are drawn with."""
        assert self.scheme.profile.family is not None, "such a mark cannot be written"
        return self.scheme.profile.family

    def row_states(
        self,
        contexts: NDArray[np.int64],  # [N, h], as `Answer.decide` gives them
    ) -> Words:  # [N, S]
        """The states whose words draw the ids after these contexts."""
        return self._source.row_states(self.stream_key, contexts)

    def begin(self, prompt_ids: Sequence[int]) -> MarkingState:
        """The marking rules of a new answer."""
        return MarkingState(
            self.scheme.context_width,
            padding=self.scheme.profile.padding,
            warmup_nats=self.warmup_nats,
            scope=self.repeat_scope,
            prompt_ids=prompt_ids,
        )


def request_key(seed: int | None, choice: int) -> Words:
    """The 256-bit key of one answer's ordinary draws: from its seed, or fresh without one."""
    if seed is None:
        material = secrets.token_bytes(32)
    else:
        ikm = seed.to_bytes(8, "little", signed=True)
        material = hkdf_sha256(ikm, f"tokenmark/request/choice={choice}", 32)
    return np.frombuffer(material, dtype="<u4").astype(np.uint32)


class Answer:
    """The drawing state of one answer, kept across preemption and recompute.

    Args:
        request_key: [8] words, for unmarked positions.
        marking: the rules of its mark; None where the whole answer is unmarked.
        unmarked_reason: why, where `marking` is None.
        symbols: payload symbol of each slot; empty where no message is carried.
    """

    __slots__ = (
        "_had_no_choice",
        "_marking",
        "_unmarked_reason",
        "decision",
        "n_marked",
        "position",
        "request_key",
        "symbols",
    )

    def __init__(
        self,
        request_key: Words,
        *,
        marking: MarkingState | None,
        unmarked_reason: UnmarkedReason | None = None,
        symbols: tuple[int, ...] = (),
    ) -> None:
        assert (marking is None) == (unmarked_reason is not None)
        self.request_key = request_key
        self.symbols = symbols
        self.position = 0
        self.n_marked = 0
        self.decision: Decision | None = None
        self._had_no_choice = False
        self._marking = marking
        self._unmarked_reason = unmarked_reason

    def decide(self) -> tuple[int, ...] | None:
        """The context whose keyed words draw the next id, or None for an ordinary draw.

        Asking again before `append` gives the same answer, so a step may be repeated.
        """
        if self._marking is None:
            return None
        if self.decision is None:
            self.decision = self._marking.decide()
        return self.decision.context if self.decision.marked else None

    @property
    def needs_log_probability(self) -> bool:
        """Whether `append` needs the probability of the id that is drawn next."""
        return self._marking is not None and self._marking.needs_log_probability

    def append(
        self, token_id: int, *, had_choice: bool, log_probability: float | None = None
    ) -> None:
        """Note the id that was drawn after `decide`.

        Where filters had left a single candidate, no key decided anything and nothing is marked.
        """
        self.position += 1
        if self._marking is None:
            return
        assert self.decision is not None
        if self.decision.marked:
            self.n_marked += had_choice
            self._had_no_choice |= not had_choice
        self._marking.append(token_id, log_probability=log_probability)
        self.decision = None

    @property
    def unmarked_reason(self) -> UnmarkedReason | None:
        """Why no token is marked; None as soon as one is."""
        if self.n_marked:
            return None
        if self._had_no_choice:
            return UnmarkedReason.NO_CHOICE
        return self._unmarked_reason or UnmarkedReason.TOO_SHORT
