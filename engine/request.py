"""One generation request and how far it has come. Knows nothing of text, models or the mark."""

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from tokenmark.watermark.errors import RequestError

__all__ = ["FinishReason", "Request", "RequestStatus", "SamplingParams"]

_MAX_STOP_STRINGS: Final = 16
_MAX_TEMPERATURE: Final = 2.0
# Below this nothing but the likeliest id is ever drawn, and float32 logits may overflow.
_LEAST_TEMPERATURE: Final = 1e-4
_MAX_STOP_LENGTH: Final = 1024


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RequestStatus(Enum):
    """Where a request stands; a preempted one is WAITING again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the ids of one answer are drawn and when it ends.

    Args:
        max_tokens: most ids the answer may have, an eos id included.
        temperature: from 0 to 2; 0 takes the likeliest id, and so does anything below 1e-4.
        top_k: draw among the k likeliest ids; None draws among all.
        top_p: draw among the likeliest ids that together have this probability, in (0, 1].
        min_p: leave out ids less likely than this fraction of the likeliest one, in [0, 1].
        seed: signed 64-bit seed of unmarked draws; None takes a fresh one.
        stop: up to 16 strings of up to 1,024 characters; the answer ends before the first that
            occurs.
        min_tokens: ids the answer has before an eos id or a stop string may end it.
        ignore_eos: go on after an eos id.

    Raises:
        RequestError: a value is outside its range; `param` names the field.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    # Stop strings are the user's text, which no log may hold.
    stop: tuple[str, ...] = field(default=(), repr=False)
    min_tokens: int = 0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        # Each rule is written so that NaN breaks it.
        rules = (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature <= _MAX_TEMPERATURE, "from 0 to 2"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1, or absent for no limit"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
            ("seed", self.seed is None or -(2**63) <= self.seed < 2**63, "a signed 64-bit integer"),
            (
                "min_tokens",
                0 <= self.min_tokens <= self.max_tokens,
                f"from 0 to max_tokens, which is {self.max_tokens}",
            ),
        )
        for param, holds, rule in rules:
            if not holds:
                raise RequestError(
                    f"{param} must be {rule}, got {getattr(self, param)}", param=param
                )
        self._check_stop()

    def _check_stop(self) -> None:
        if len(self.stop) > _MAX_STOP_STRINGS:
            raise RequestError(
                f"stop may hold {_MAX_STOP_STRINGS} strings, got {len(self.stop)}; leave some out",
                param="stop",
            )
        longest = max(map(len, self.stop), default=0)
        if longest > _MAX_STOP_LENGTH:
            raise RequestError(
                f"a stop string may have {_MAX_STOP_LENGTH} characters, got one of {longest}; "
                "shorten it",
                param="stop",
            )
        if "" in self.stop:
            raise RequestError(
                f"stop string {self.stop.index('')} is empty and would end every answer; "
                "leave it out",
                param="stop",
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest id is taken, so that nothing is drawn."""
        return self.temperature < _LEAST_TEMPERATURE


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Request:
    """A prompt, the ids drawn for it so far, and what the engine holds for it.

    The scheduler alone changes `arrival`, `output_ids`, `n_computed`, `block_ids`, `status`,
    `finish_reason` and `n_preemptions`. Two requests are equal only if they are the same object.

    Args:
        request_id: never used twice by one engine.
        prompt_ids: at least one id.
        params: how to draw and when to end.
        eos_ids: ids that end an answer.
        choice: number of this answer among several to the same prompt.
        arrival: place in the order of arrival, from 0; None until the scheduler has accepted it.
        output_ids: ids drawn so far; they outlive a preemption.
        n_computed: leading tokens whose keys and values are in the KV blocks.
        block_ids: KV blocks held, in token order.
        status: waiting, running or finished.
        finish_reason: None until finished.
        n_preemptions: how often the blocks were taken away again.

    Raises:
        RequestError: the prompt has no ids.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    eos_ids: frozenset[int]
    choice: int = 0
    arrival: int | None = None
    output_ids: list[int] = field(default_factory=list)
    n_computed: int = 0
    block_ids: list[int] = field(default_factory=list)
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    n_preemptions: int = 0

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise RequestError("the prompt has no tokens; give it at least one", param="prompt")

    @property
    def n_prompt(self) -> int:
        """Number of prompt ids."""
        return len(self.prompt_ids)

    @property
    def n_output(self) -> int:
        """Number of ids drawn so far."""
        return len(self.output_ids)

    @property
    def n_tokens(self) -> int:
        """Number of ids known so far, prompt and answer."""
        return self.n_prompt + self.n_output

    @property
    def is_eos_allowed(self) -> bool:
        """Whether the next id may be an eos id; until then the sampler masks all of them."""
        return self.n_output >= self.params.min_tokens

    def token_ids(self, start: int, stop: int) -> tuple[int, ...]:
        """The known ids at positions [start, stop) of prompt and answer together."""
        first, last = max(start - self.n_prompt, 0), max(stop - self.n_prompt, 0)
        return self.prompt_ids[start:stop] + tuple(self.output_ids[first:last])

    def finish_reason_by_ids(self) -> FinishReason | None:
        """The reason for which the ids end the answer here, or None if it goes on.

        An eos id counts only where one was allowed: behind `min_tokens` other ids. Keeping it from
        being drawn earlier is the sampler's part, by `is_eos_allowed`. Stop strings are text, so
        the detokenizer finds them.
        """
        if not self.output_ids:
            return None
        was_eos_allowed = self.n_output > self.params.min_tokens and not self.params.ignore_eos
        if was_eos_allowed and self.output_ids[-1] in self.eos_ids:
            return FinishReason.STOP
        if self.n_output >= self.params.max_tokens:
            return FinishReason.LENGTH
        return None

    def __repr__(self) -> str:
        # Token ids are the user's text, which no log may hold.
        return (
            f"Request({self.request_id!r}, choice={self.choice}, {self.status.value}, "
            f"n_prompt={self.n_prompt}, n_output={self.n_output}, n_computed={self.n_computed}, "
            f"n_blocks={len(self.block_ids)}, n_preemptions={self.n_preemptions})"
        )
