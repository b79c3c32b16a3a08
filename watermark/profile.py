"""What a detector and a generator must know of one recipe of marks. Knows no particular recipe."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmark.watermark.errors import SchemeError
from tokenmark.watermark.key import KeyForm, WatermarkKey
from tokenmark.watermark.null_law import NullLaw
from tokenmark.watermark.prf.family import Family

__all__ = ["VOCABULARY_SIZE", "Parameter", "Profile", "Settings", "WordSource"]

Words = NDArray[np.unsignedinteger]
Integers = NDArray[np.integer]
Scores = NDArray[np.float64]
Settings = Mapping[str, float]
"""The values of a profile's parameters by name."""

VOCABULARY_SIZE: Final = "vocabulary_size"
"""The parameter of marks that depend on the number of ids that a model's head has."""


@dataclass(frozen=True, slots=True)
class WordSource:
    """Where the words of one key come from; [N] contexts at once."""

    stream_key: Callable[[WatermarkKey, int], Words]  # key, h -> one row
    row_states: Callable[[Words, Integers], Words]  # row, contexts [N, h] -> [N, S]
    words_at: Callable[[Words, Integers], Words]  # [N, S], ids [N] -> [N]

    def words(self, key: WatermarkKey, contexts: Integers, ids: Integers) -> Words:  # [N]
        """The words of ids behind their contexts."""
        states = self.row_states(self.stream_key(key, contexts.shape[1]), contexts)
        return self.words_at(states, ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A public number that a scheme may state beside its context width."""

    name: str
    default: float | None  # None: it must be stated
    low: float
    high: float
    is_integer: bool = False

    def check(self, value: float) -> float:
        """The value, if it is allowed.

        Raises:
            SchemeError: it is outside the range, or no integer where one is needed.
        """
        is_allowed = self.low <= value <= self.high
        if not is_allowed or (self.is_integer and value != math.floor(value)):
            kind = "an integer" if self.is_integer else "a number"
            raise SchemeError(
                f"{self.name} must be {kind} from {self.low:g} to {self.high:g}, got {value:g}"
            )
        return int(value) if self.is_integer else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One recipe: how a key and a context become evidence of the id that follows.

    Args:
        name: of the scheme.
        key_form: what its secret looks like.
        context_widths: the ids before the target that may be chosen.
        context_width: the default of these.
        padding: fills contexts at the start of a text; None means that a short context is not
            scored.
        n_unscored: ids at the start of a text that are never scored, whatever the padding.
        max_contexts: how many different contexts of one text may be marked; None is no limit.
        id_limit: ids are below it.
        parameters: what else a scheme states.
        scores: evidence of ids behind contexts, one score each; small under the null.
        law: of one score under the null; some depend on the key.
        masks_contexts: whether the engine leaves repeated contexts unmarked, so that they are not
            scored.
        draws: what decides an id's evidence, a row of numbers each; where two are equal the later
            one is no evidence of its own and is not scored. None where that is the context.
        source: the words that marked ids are drawn with, where there is one word a position.
        score_of_word: the score of such a word.
        family: the words as kernels know them; None where this engine cannot write the mark.
        carries_payload: whether a message can be carried.
        evidence: how far the recipe is checked.
    """

    name: str
    key_form: KeyForm
    context_widths: range
    context_width: int = 4
    padding: int | None
    n_unscored: int = 0
    max_contexts: int | None = None
    id_limit: int
    parameters: tuple[Parameter, ...] = ()
    scores: Callable[[WatermarkKey, Settings, Integers, Integers], Scores]
    law: Callable[[WatermarkKey, Settings], NullLaw]
    masks_contexts: bool = True
    draws: Callable[[WatermarkKey, Settings, Integers, Integers], NDArray[np.int64]] | None = None
    source: WordSource | None = None
    score_of_word: Callable[[Words], Scores] | None = None
    family: Family | None = None
    carries_payload: bool = False
    evidence: str

    def settings(self, given: Settings) -> Settings:
        """The values of all parameters, defaults where none is given.

        Raises:
            SchemeError: a parameter that this profile does not have, or a value out of range.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in given:
            if name not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise SchemeError(f"scheme {self.name} has no parameter {name!r}; {has}")
        stated = {name: given.get(name, parameter.default) for name, parameter in known.items()}
        for name, value in stated.items():
            if value is None:
                raise SchemeError(f"scheme {self.name} needs the parameter {name}; state it")
        return {
            name: known[name].check(value) for name, value in stated.items() if value is not None
        }
