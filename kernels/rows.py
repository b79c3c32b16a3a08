"""What every path of the draw takes and gives. Knows nothing of how words are made or raced."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.watermark.prf.family import Family

__all__ = ["STATE_WORDS", "Filters", "RowKeys", "RowStatus"]

STATE_WORDS: Final = 8
"""Words of a row's state as kernels take it; a shorter one is filled up with zeros."""

# Comparing types of arrays with these costs a tenth of comparing them with NumPy's classes.
_UINT8, _UINT32, _INT64 = np.dtype(np.uint8), np.dtype(np.uint32), np.dtype(np.int64)
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_SYMBOL_LIMITS: Final = np.array([family.symbol_limit for family in Family], dtype=np.uint64)
_ID_LIMITS: Final = np.array([family.id_limit for family in Family])


class RowStatus(IntEnum):
    """What became of a row."""

    DRAWN = 0
    NO_CANDIDATE = 1
    """All its logits are -inf."""
    NOT_FINITE = 2
    """One of its logits, divided by the temperature, is NaN or +inf."""


@dataclass(frozen=True, slots=True, eq=False)
class RowKeys:
    """Whose words decide the race of each row."""

    states: NDArray[np.uint32]  # [B, 8]; of a Philox row the last three are 0
    symbols: NDArray[np.int64]  # [B] in [0, 2^20); 0 with Philox, which carries no payload
    families: NDArray[np.uint8]  # [B] of Family

    @classmethod
    def of_family(
        cls,
        family: Family,
        states: NDArray[np.uint32],  # [B, S], as `tokenmark.watermark.prf` makes them
        symbols: NDArray[np.int64] | None = None,  # [B], all 0 by default
    ) -> "RowKeys":
        """Rows that are all of one family."""
        n_rows, n_words = states.shape
        padded = np.zeros((n_rows, STATE_WORDS), dtype=np.uint32)
        padded[:, :n_words] = states
        if symbols is None:
            symbols = np.zeros(n_rows, dtype=np.int64)
        return cls(padded, symbols, np.full(n_rows, family, dtype=np.uint8))

    def check(self, n_rows: int, n_columns: int) -> None:
        """Raise ValueError unless these are keys for so many rows of logits."""
        _check_array("row states", self.states, _UINT32, (n_rows, STATE_WORDS))
        _check_array("symbols", self.symbols, _INT64, (n_rows,))
        _check_array("families", self.families, _UINT8, (n_rows,))
        if n_rows == 0:
            return
        if self.families.max() >= len(Family):
            raise ValueError(f"families are below {len(Family)}, got {self.families.max()}")
        # Compared as unsigned numbers, so that a negative symbol is too large.
        limits = _SYMBOL_LIMITS[self.families]
        is_wrong = self.symbols.view(np.uint64) >= limits
        if is_wrong.any():
            row = is_wrong.argmax()
            raise ValueError(
                f"symbols of {Family(self.families[row]).name} lie in [0, {limits[row]}), "
                f"got {self.symbols[row]} in row {row}"
            )
        if n_columns > _ID_LIMITS.min():
            family = Family(self.families[_ID_LIMITS[self.families].argmin()])
            if n_columns > family.id_limit:
                raise ValueError(
                    f"{family.name} has words for {family.id_limit} ids, got {n_columns} columns"
                )


@dataclass(frozen=True, slots=True, eq=False)
class Filters:
    """What is done to each row before its race, in this order.

    1. Logits are divided by the temperature, in float32.
    2. top-k: a candidate stays if fewer than k candidates have a larger logit.
    3. top-p: a candidate stays if those with larger logits, of what top-k left, have together less
       than the probability p.
    4. min-p: a candidate stays if it is at least that fraction as likely as the likeliest one.

    So candidates of equal logit stay or go together, and which are left is told by one number: the
    smallest logit that stays.
    """

    temperatures: NDArray[np.float32]  # [B], above 0
    top_k: NDArray[np.int64]  # [B], at least 1; V or more keeps all
    top_p: NDArray[np.float64]  # [B], above 0; 1 keeps all
    min_p: NDArray[np.float64]  # [B], from 0, which keeps all, to 1

    @classmethod
    def none(cls, n_rows: int) -> "Filters":
        """Filters that keep every candidate of every row, at temperature 1."""
        return cls(
            temperatures=np.ones(n_rows, dtype=np.float32),
            top_k=np.full(n_rows, np.iinfo(np.int64).max),
            top_p=np.ones(n_rows),
            min_p=np.zeros(n_rows),
        )

    def check(self, n_rows: int) -> None:
        """Raise ValueError unless these are filters for so many rows."""
        _check_array("temperatures", self.temperatures, _FLOAT32, (n_rows,))
        _check_array("top_k", self.top_k, _INT64, (n_rows,))
        _check_array("top_p", self.top_p, _FLOAT64, (n_rows,))
        _check_array("min_p", self.min_p, _FLOAT64, (n_rows,))
        # Each rule is written so that NaN breaks it.
        rules = (
            ("temperatures", self.temperatures > 0, "above 0"),
            ("top_k", self.top_k >= 1, "at least 1"),
            ("top_p", (self.top_p > 0) & (self.top_p <= 1), "above 0 and at most 1"),
            ("min_p", (self.min_p >= 0) & (self.min_p <= 1), "from 0 to 1"),
        )
        for name, holds, rule in rules:
            if not holds.all():
                raise ValueError(
                    f"{name} must be {rule}, got {getattr(self, name)[~holds][0]} "
                    f"in row {np.flatnonzero(~holds)[0]}"
                )


def _check_array(
    name: str, array: NDArray[np.generic], dtype: np.dtype[np.generic], shape: tuple[int, ...]
) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"{name} must be {dtype} {list(shape)}, got {array.dtype} {list(array.shape)}"
        )
