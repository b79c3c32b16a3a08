"""A string that nothing shows by accident. Knows nothing of what it is."""

from typing import NoReturn

__all__ = ["HiddenText"]


class HiddenText:
    """A string redacted in repr and str, neither pickled nor copied.

    >>> HiddenText("hunter2")
    <redacted>
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The string itself."""
        return self._text

    def __repr__(self) -> str:
        return "<redacted>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a hidden text can be neither pickled nor copied")
