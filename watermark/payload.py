"""The message that a mark may carry: layout, symbols, and the slot of a position's context.

Knows nothing of keys or scores. A message identifies a deployment or a session; it must never hold
personal data, since whoever has the key can read it from the text.
"""

from dataclasses import dataclass

from tokenmark.watermark.errors import SchemeError

__all__ = ["PayloadLayout"]

_MAX_SYMBOL_BITS = 20
_MAX_MESSAGE_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadLayout:
    """How a message is cut: `slots` symbols of `bits` bits each, the lowest bits in slot 0."""

    slots: int
    bits: int

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= _MAX_SYMBOL_BITS:
            raise SchemeError(f"payload bits must be 1..{_MAX_SYMBOL_BITS}, got {self.bits}")
        if self.slots < 1 or self.slots * self.bits > _MAX_MESSAGE_BITS:
            raise SchemeError(
                f"payload slots x bits must be 1..{_MAX_MESSAGE_BITS}, "
                f"got {self.slots} x {self.bits}"
            )

    @property
    def message_bits(self) -> int:
        """Length of the whole message."""
        return self.slots * self.bits

    def symbols(self, message: int) -> tuple[int, ...]:
        """The symbol of each slot.

        Message 0 is reserved: its words are those of no message at all.

        >>> PayloadLayout(slots=2, bits=4).symbols(0xA7)
        (7, 10)
        """
        if not 0 < message < 2**self.message_bits:
            raise SchemeError(
                f"a payload of this key is an integer from 1 to 2^{self.message_bits} - 1, "
                f"got {message}"
            )
        mask = 2**self.bits - 1
        return tuple((message >> (slot * self.bits)) & mask for slot in range(self.slots))
