"""Scores token ids against a key. Knows nothing of text, models or HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenmark.watermark.context import contexts_of, first_occurrence
from tokenmark.watermark.errors import TokenIdError
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.scheme import Scheme

__all__ = ["TokenScores", "checked_ids", "n_scorable", "score_tokens"]


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The evidence of each scored position; by the law of its scheme under the null."""

    positions: NDArray[np.int64]  # [n_scored], indices into the token ids
    scores: NDArray[np.float64]  # [n_scored]
    n_repeated: int

    @property
    def n_scored(self) -> int:
        """How many positions were scored."""
        return self.scores.size

    @property
    def statistic(self) -> float:
        """The sum of the scores."""
        return float(self.scores.sum())


def checked_ids(
    token_ids: Sequence[object] | NDArray[np.integer],
    *,
    limit: int,
    limit_of: str,
) -> NDArray[np.int64]:
    """The ids as an array, or a clear refusal.

    Args:
        token_ids: integers; anything else is refused.
        limit: ids must lie in [0, limit).
        limit_of: what sets the limit, for the message.

    Raises:
        TokenIdError: an id that is no integer, negative, or too large.
    """
    if not isinstance(token_ids, np.ndarray):
        for index, token_id in enumerate(token_ids):
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                raise TokenIdError(
                    f"token id number {index} is a {type(token_id).__name__}; ids are integers"
                )
            if not 0 <= token_id < limit:
                raise _outside(index, token_id, limit, limit_of)
    ids = np.asarray(token_ids, dtype=np.int64).reshape(-1)
    outside = np.flatnonzero((ids < 0) | (ids >= limit))
    if outside.size:
        raise _outside(int(outside[0]), int(ids[outside[0]]), limit, limit_of)
    return ids


def _outside(index: int, token_id: int, limit: int, limit_of: str) -> TokenIdError:
    # A number of thousands of digits is no message.
    shown = str(token_id) if abs(token_id) < 2**64 else f"of {token_id.bit_length()} bits"
    return TokenIdError(
        f"token id number {index} is {shown}; {limit_of} allows 0..{limit - 1}: "
        "check that the ids come from the right tokenizer"
    )


def n_scorable(n_tokens: int, scheme: Scheme) -> int:
    """Positions with a context, repeated ones included."""
    n_unscored = 0 if scheme.profile.padding is not None else scheme.context_width
    return max(0, n_tokens - max(n_unscored, scheme.profile.n_unscored))


def score_tokens(
    token_ids: NDArray[np.int64],  # [T]
    key: WatermarkKey,
    scheme: Scheme,
) -> TokenScores:
    """Scores of all positions that have a context which is new in this text.

    Repeated contexts are always masked: the same words would count twice and the null would no
    longer hold.
    """
    profile = scheme.profile
    ids = checked_ids(token_ids, limit=scheme.id_limit, limit_of=f"scheme {scheme.name}")
    contexts = contexts_of(ids, scheme.context_width, padding=profile.padding)
    contexts = contexts[max(0, profile.n_unscored - (ids.size - contexts.shape[0])) :]
    first = ids.size - contexts.shape[0]
    is_new = np.ones(contexts.shape[0], dtype=np.bool_)
    if profile.masks_contexts:
        is_new &= first_occurrence(contexts)
    if profile.draws is not None:
        is_new &= first_occurrence(profile.draws(key, scheme.parameters, contexts, ids[first:]))
    positions = np.flatnonzero(is_new)[: profile.max_contexts]
    scores = profile.scores(key, scheme.parameters, contexts[positions], ids[first + positions])
    return TokenScores(
        positions=first + positions,
        scores=scores,
        n_repeated=int((~is_new).sum()),
    )
