"""Schemes: the versioned public parameters of a mark, as a keyring or a result states them.

Knows nothing of secrets at rest, of text or of models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tokenmark.watermark.errors import SchemeError
from tokenmark.watermark.payload import PayloadLayout
from tokenmark.watermark.profile import VOCABULARY_SIZE, Profile, Settings
from tokenmark.watermark.profiles import PROFILES

__all__ = ["Scheme"]

_FIELDS: Final = frozenset({"scheme", "context_width", "payload"})
_DEFAULT_CONTEXT_WIDTH: Final = 4
# Stated only by schemes that have any.
_PARAMETERS: Final = "parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The public parameters of a mark.

    Args:
        name: of its profile.
        context_width: ids before the target.
        payload: how a message is laid out, where one may be carried.
        parameters: what else the profile needs; defaults are filled in.

    Raises:
        SchemeError: no such profile or parameter, or a value out of its range.

    >>> Scheme(name="tm1").to_json()
    {'scheme': 'tm1', 'context_width': 4, 'payload': None}
    """

    name: str
    context_width: int = _DEFAULT_CONTEXT_WIDTH
    payload: PayloadLayout | None = None
    parameters: Settings = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.name not in PROFILES:
            raise SchemeError(
                f"unknown scheme {self.name!r}; this version knows {', '.join(sorted(PROFILES))}"
            )
        widths = self.profile.context_widths
        if self.context_width not in widths:
            allowed = str(widths[0]) if len(widths) == 1 else f"{widths[0]}..{widths[-1]}"
            raise SchemeError(
                f"context_width of {self.name} must be {allowed}, got {self.context_width}"
            )
        if self.payload is not None and not self.profile.carries_payload:
            raise SchemeError(f"scheme {self.name} carries no payload; leave it out")
        object.__setattr__(self, "parameters", self.profile.settings(self.parameters))

    @property
    def profile(self) -> Profile:
        """The recipe behind the name."""
        return PROFILES[self.name]

    @property
    def id_limit(self) -> int:
        """Ids are below it: the profile's bound, or the size of a vocabulary that is stated."""
        return int(self.parameters.get(VOCABULARY_SIZE, self.profile.id_limit))

    def to_json(self) -> dict[str, object]:
        """The wire form, as keyrings and results carry it."""
        layout = self.payload
        form: dict[str, object] = {
            "scheme": self.name,
            "context_width": self.context_width,
            "payload": None if layout is None else {"slots": layout.slots, "bits": layout.bits},
        }
        if self.parameters:
            form[_PARAMETERS] = dict(self.parameters)
        return form

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> "Scheme":
        """The scheme of a wire form, which must have exactly the fields of `to_json`.

        Raises:
            SchemeError: a field is missing, unknown or of the wrong type.
        """
        odd = (set(data) - {_PARAMETERS}) ^ _FIELDS
        if odd:
            raise SchemeError(
                f"a scheme has the fields {', '.join(sorted(_FIELDS))}; "
                f"unknown or missing: {', '.join(sorted(odd))}"
            )
        name, width = data["scheme"], data["context_width"]
        if not isinstance(name, str):
            raise SchemeError(f"scheme must be a string, got {type(name).__name__}")
        return cls(
            name=name,
            context_width=_integer(width, "context_width"),
            payload=_layout_from_json(data["payload"]),
            parameters=_numbers_from_json(data.get(_PARAMETERS, {})),
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


def _numbers_from_json(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        raise SchemeError(f"parameters must be an object, got {type(value).__name__}")
    for name, number in value.items():
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise SchemeError(f"parameters.{name} must be a number, got {type(number).__name__}")
    return value
