"""Schemes: the versioned public parameters of a mark, and the registry of what each name means.

Knows nothing of secrets at rest, of text or of models. A profile is the recipe behind a name; a
scheme is a profile's name with its parameters, as a keyring or a result states it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.watermark.errors import SchemeError
from tokenmark.watermark.gumbel import score_small_x
from tokenmark.watermark.key import KeyForm, WatermarkKey, hkdf_sha256
from tokenmark.watermark.payload import PayloadLayout
from tokenmark.watermark.prf import chacha8, philox
from tokenmark.watermark.prf.family import Family

__all__ = ["PROFILES", "Profile", "Scheme"]

Words = NDArray[np.uint32]
Integers = NDArray[np.integer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One recipe: how a key and a context become words, and how a word becomes evidence.

    `padding` fills contexts at the start of a text; None means that a short context is not scored.
    `family` says what kind of words a marked id is drawn with; `row_states` gives its states.
    `score` is Exp(1) under the null, so that the sum over n positions is Gamma(n, 1); no word
    scores more than `largest_score`.
    `evidence` says how far the recipe is checked.
    """

    name: str
    key_form: KeyForm
    context_widths: range
    padding: int | None
    id_limit: int
    carries_payload: bool
    family: Family
    stream_key: Callable[[WatermarkKey, int], Words]  # key, h -> one row
    row_states: Callable[[Words, Integers], Words]  # row, contexts [N, h] -> [N, S]
    words_at: Callable[[Words, Integers], Words]  # [N, S], ids [N] -> [N]
    score: Callable[[Words], NDArray[np.float64]]
    largest_score: float
    evidence: str


def _tm1_stream_key(key: WatermarkKey, context_width: int) -> Words:
    info = f"tokenmark/tm1/mark/h={context_width}"
    derived = hkdf_sha256(key.reveal_bytes(), info, 32)
    return np.frombuffer(derived, dtype="<u4").astype(np.uint32)


def _integer_stream_key(key: WatermarkKey, _context_width: int) -> Words:
    return np.frombuffer(key.reveal_bytes(), dtype="<u4").astype(np.uint32)


def _score_large_u(words: Words) -> NDArray[np.float64]:
    """-ln(1 - u) in float64 of the float32 uniform, as vLLM's detector forms it."""
    return -np.log1p(-philox.uniform_f32(words).astype(np.float64))


_TM1: Final = Profile(
    name="tm1",
    key_form=KeyForm.BYTES32,
    context_widths=range(1, 9),
    padding=None,
    id_limit=chacha8.KEYSTREAM_WORDS,
    carries_payload=True,
    family=Family.CHACHA8,
    stream_key=_tm1_stream_key,
    row_states=chacha8.context_keys,
    words_at=chacha8.words_at,
    score=score_small_x,
    largest_score=33 * math.log(2),
    evidence="native; checked against the scheme's own vectors and RFC 8439",
)

_VLLM_GUMBEL: Final = Profile(
    name="vllm-gumbel",
    key_form=KeyForm.UINT64,
    # vLLM warns above 16 and knows no bound; 64 is far past any use.
    context_widths=range(1, 65),
    padding=-1,
    id_limit=2**32,
    carries_payload=False,
    family=Family.PHILOX,
    stream_key=_integer_stream_key,
    row_states=philox.row_states,
    words_at=philox.words_at,
    score=_score_large_u,
    largest_score=24 * math.log(2),
    evidence="checked against vLLM 0.32.0: words, published goldens and generated texts",
)

PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {profile.name: profile for profile in (_TM1, _VLLM_GUMBEL)}
)
"""Every scheme that can be named, by name."""

_DEFAULT_CONTEXT_WIDTH: Final = 4
_FIELDS: Final = frozenset({"scheme", "context_width", "payload"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The public parameters of a mark.

    >>> Scheme(name="tm1").to_json()
    {'scheme': 'tm1', 'context_width': 4, 'payload': None}
    """

    name: str
    context_width: int = _DEFAULT_CONTEXT_WIDTH
    payload: PayloadLayout | None = None

    def __post_init__(self) -> None:
        if self.name not in PROFILES:
            raise SchemeError(
                f"unknown scheme {self.name!r}; this version knows {', '.join(sorted(PROFILES))}"
            )
        widths = self.profile.context_widths
        if self.context_width not in widths:
            raise SchemeError(
                f"context_width of {self.name} must be {widths.start}..{widths.stop - 1}, "
                f"got {self.context_width}"
            )
        if self.payload is not None and not self.profile.carries_payload:
            raise SchemeError(f"scheme {self.name} carries no payload; leave it out")

    @property
    def profile(self) -> Profile:
        """The recipe behind the name."""
        return PROFILES[self.name]

    def to_json(self) -> dict[str, object]:
        """The wire form, as keyrings and results carry it."""
        layout = self.payload
        return {
            "scheme": self.name,
            "context_width": self.context_width,
            "payload": None if layout is None else {"slots": layout.slots, "bits": layout.bits},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> "Scheme":
        """The scheme of a wire form, which must have exactly the fields of `to_json`.

        Raises:
            SchemeError: a field is missing, unknown or of the wrong type.
        """
        if set(data) != _FIELDS:
            odd = ", ".join(sorted(set(data) ^ _FIELDS))
            raise SchemeError(
                f"a scheme has the fields {', '.join(sorted(_FIELDS))}; unknown or missing: {odd}"
            )
        name, width = data["scheme"], data["context_width"]
        if not isinstance(name, str):
            raise SchemeError(f"scheme must be a string, got {type(name).__name__}")
        return cls(
            name=name,
            context_width=_integer(width, "context_width"),
            payload=_layout_from_json(data["payload"]),
        )


def _integer(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise SchemeError(f"{field} must be an integer, got {type(value).__name__}")
    return value


def _layout_from_json(value: object) -> PayloadLayout | None:
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) != {"slots", "bits"}:
        raise SchemeError("payload must be null or an object with exactly slots and bits")
    return PayloadLayout(
        slots=_integer(value["slots"], "payload.slots"),
        bits=_integer(value["bits"], "payload.bits"),
    )
