"""Decides, position by position, which ids of one answer are drawn with the mark's key.

Knows nothing of keys, logits or batches. A detector needs none of this: an unmarked position is one
more draw from the null.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tokenmark.watermark.context import ContextHistory

__all__ = ["DEFAULT_WARMUP_NATS", "Decision", "MarkingState", "RepeatScope"]

DEFAULT_WARMUP_NATS: Final = 8.0
"""Two answers to one prompt coincide through warm-up with probability of about e^-8."""

_WARMUP_POSITIONS: Final = 32


class RepeatScope(StrEnum):
    """Where a context counts as having occurred before."""

    COMPLETION = "completion"
    CONVERSATION = "conversation"
    """Contexts of the prompt count too. The first h positions are then never marked: without the
    prompt their contexts are not whole."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do at one position: its context where one exists, and whether to use it."""

    context: tuple[int, ...] | None
    marked: bool


class MarkingState:
    """The marking rules of one answer: alternate `decide` and `append`, once each a position.

    Args:
        context_width: ids in a context.
        padding: what fills the contexts of the first positions up; None where these have none.
        warmup_nats: surprise that the answer must have gathered before the mark begins; without
            it two runs of one prompt would coincide whenever their first ids do.
        scope: with CONVERSATION, contexts of the prompt count as occurred too.
        prompt_ids: read only with CONVERSATION.
    """

    __slots__ = (
        "_context_width",
        "_first_position",
        "_history",
        "_nats",
        "_position",
        "_tail",
        "_warmup_nats",
    )

    def __init__(
        self,
        context_width: int,
        *,
        padding: int | None,
        warmup_nats: float = DEFAULT_WARMUP_NATS,
        scope: RepeatScope = RepeatScope.COMPLETION,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        has_context_at_once = padding is not None and scope is RepeatScope.COMPLETION
        self._context_width = context_width
        self._first_position = 0 if has_context_at_once else context_width
        self._warmup_nats = warmup_nats
        self._position = 0
        self._nats = 0.0
        filling = () if padding is None else (padding,) * context_width
        self._tail: deque[int] = deque(filling, maxlen=context_width)
        self._history = ContextHistory()
        if scope is RepeatScope.CONVERSATION:
            for token_id in prompt_ids:
                self._tail.append(token_id)
                self._record()

    @property
    def needs_log_probability(self) -> bool:
        """Whether the id at this position still counts for the warm-up of a later one."""
        return self._position + 1 < _WARMUP_POSITIONS and self._warming_up

    @property
    def _warming_up(self) -> bool:
        return self._position < _WARMUP_POSITIONS and self._nats < self._warmup_nats

    def _record(self) -> bool:
        """Note the window that ends here; whether it is new."""
        if len(self._tail) < self._context_width:
            return False
        return self._history.record(tuple(self._tail))

    def decide(self) -> Decision:
        """How the next id is to be drawn; its context counts as occurred from now on."""
        is_new = self._record()
        if self._position < self._first_position:
            return Decision(context=None, marked=False)
        return Decision(context=tuple(self._tail), marked=is_new and not self._warming_up)

    def append(self, token_id: int, *, log_probability: float | None) -> None:
        """Note the id that was drawn, and ln of its probability under the law it was drawn from.

        The probability may be None where `needs_log_probability` is false.
        """
        if log_probability is None:
            assert not self.needs_log_probability
        else:
            self._nats -= log_probability
        self._tail.append(token_id)
        self._position += 1
