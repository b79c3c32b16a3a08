"""A text that is edited without losing where each of its characters came from.

Knows nothing of which edits are made, or why.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Edits", "MappedText", "TraitTable", "in_lines_with", "runs"]

_N_CODE_POINTS = 0x110000
_LINE_FEED = 0x0A
# No trait has all bits.
_UNKNOWN = 0xFFFF

Mask = NDArray[np.bool_]
Codes = NDArray[np.uint32]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Edits:
    """Ranges of a text and what takes their place; in order, none empty, none overlapping."""

    starts: Indices  # [k]
    ends: Indices  # [k], exclusive
    lengths: Indices  # [k], of the replacements
    codes: Codes  # [sum of lengths], the replacements one after the other

    def __len__(self) -> int:
        return self.starts.size

    @classmethod
    def of(cls, edits: Iterable[tuple[int, int, str]]) -> "Edits":
        """Edits from (start, end, replacement), in order."""
        starts, ends, texts = tuple(zip(*edits, strict=True)) or ((), (), ())
        return cls(
            np.array(starts, dtype=np.int64),
            np.array(ends, dtype=np.int64),
            np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)),
            _codes_of("".join(texts)),
        )

    @classmethod
    def removal(cls, mask: Mask) -> "Edits":
        """Edits that remove each character of a mask over the text."""
        positions = np.flatnonzero(mask)
        none = np.zeros(0, dtype=np.uint32)
        return cls(positions, positions + 1, np.zeros_like(positions), none)

    @classmethod
    def replacement(cls, positions: Indices, codes: Codes) -> "Edits":
        """Edits that put one code point in the place of another."""
        return cls(positions, positions + 1, np.ones_like(positions), codes)

    @classmethod
    def by_table(cls, codes: Codes, table: Mapping[str, str]) -> "Edits":
        """Edits that replace each character of a table wherever it stands."""
        row_of = np.zeros(_N_CODE_POINTS, dtype=np.uint8)
        longest = max(map(len, table.values()))
        rows = np.zeros((len(table) + 1, longest), dtype=np.uint32)
        lengths = np.zeros(len(table) + 1, dtype=np.int64)
        for row, (old, new) in enumerate(table.items(), start=1):
            row_of[ord(old)] = row
            rows[row, : len(new)] = _codes_of(new)
            lengths[row] = len(new)
        found = row_of[codes]
        positions = np.flatnonzero(found)
        which = found[positions]
        is_used = np.arange(longest) < lengths[which, None]
        return cls(positions, positions + 1, lengths[which], rows[which][is_used])

    def without(self, mask: Mask) -> "Edits":
        """The edits, all of single characters by single characters, that begin outside a mask."""
        kept = ~mask[self.starts]
        return Edits.replacement(self.starts[kept], self.codes[kept])


@dataclass(frozen=True, slots=True)
class MappedText:
    """Code points, and the range of the text as sent that each of them stands for."""

    text: str
    codes: Codes  # [n]
    starts: Indices  # [n], ascending
    ends: Indices  # [n], exclusive, ascending

    @classmethod
    def of(cls, text: str) -> "MappedText":
        """A text that stands for itself."""
        starts = np.arange(len(text), dtype=np.int64)
        return cls(text, _codes_of(text), starts, starts + 1)

    @property
    def is_ascii(self) -> bool:
        """Whether there is nothing but ASCII, so that most rules have nothing to do."""
        return self.text.isascii()

    def edited(self, edits: Edits) -> "MappedText":
        """The text with the edits made; a replacement stands for all that it replaces."""
        if not len(edits):
            return self
        n = self.codes.size
        edge = np.zeros(n + 1, dtype=np.int8)
        edge[edits.starts] += 1
        edge[edits.ends] -= 1
        is_edited = np.cumsum(edge[:n], dtype=np.int8).view(np.bool_)
        repeats = (~is_edited).astype(np.int64)
        repeats[edits.starts] = edits.lengths
        source = np.repeat(np.arange(n, dtype=np.int64), repeats)
        is_new = is_edited[source]
        codes = self.codes[source]
        codes[is_new] = edits.codes
        ends = self.ends[source]
        ends[is_new] = np.repeat(self.ends[edits.ends - 1], edits.lengths)
        return MappedText(_text_of(codes), codes, self.starts[source], ends)


class TraitTable:
    """A trait of code points, asked for once for each that ever occurs."""

    __slots__ = ("_table", "_trait")

    def __init__(self, trait: Callable[[int], int]) -> None:
        self._trait = trait
        self._table: NDArray[np.uint16] | None = None

    def of(self, codes: Codes) -> NDArray[np.uint16]:
        """The trait of each code point of a text."""
        if self._table is None:
            self._table = np.full(_N_CODE_POINTS, _UNKNOWN, dtype=np.uint16)
        traits = self._table[codes]
        unknown = codes[traits == _UNKNOWN]
        if not unknown.size:
            return traits
        occurs = np.zeros(_N_CODE_POINTS, dtype=np.bool_)
        occurs[unknown] = True
        distinct = np.flatnonzero(occurs)
        self._table[distinct] = [self._trait(code) for code in distinct.tolist()]
        return self._table[codes]


def runs(mask: Mask) -> tuple[Indices, Indices]:
    """Starts and exclusive ends of the longest ranges where a mask holds."""
    change = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return change[::2], change[1::2]


def in_lines_with(mask: Mask, codes: Codes) -> Mask:
    """Which characters share their line with one of the mask."""
    line = np.cumsum(codes == _LINE_FEED)
    holds = np.zeros(int(line[-1]) + 1 if line.size else 0, dtype=np.bool_)
    holds[line[mask]] = True
    shared: Mask = holds[line]
    return shared


def _codes_of(text: str) -> Codes:
    # Lone surrogates are no text, yet a JSON string may hold them.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _text_of(codes: Codes) -> str:
    return codes.astype("<u4", copy=False).tobytes().decode("utf-32-le", "surrogatepass")
