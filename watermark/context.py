"""Contexts of token ids and which of them are repeated. Knows nothing of keys or scores.

This is the project's only meaning of "repeated context": a context is repeated when the same ids,
in the same order, were the context of an earlier position of the same text. The target does not
matter. Generator and detector both ask here, one step at a time or all at once.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["ContextHistory", "contexts_of", "first_occurrence"]


def contexts_of(
    token_ids: NDArray[np.int64],  # [T]
    context_width: int,
    *,
    padding: int | None,
) -> NDArray[np.int64]:  # [N, h]
    """The context of every position that has one, oldest id first, in order.

    Without padding the first `context_width` positions have none (N = T - h, or 0); with padding
    they are filled up on the left (N = T). The context of position i excludes id i itself.

    >>> contexts_of(np.array([5, 6, 7]), 2, padding=None)
    array([[5, 6]])
    >>> contexts_of(np.array([5, 6]), 2, padding=-1)
    array([[-1, -1],
           [-1,  5]])
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    if padding is not None:
        ids = np.concatenate([np.full(context_width, padding, dtype=np.int64), ids])
    if ids.size <= context_width:
        return np.empty((0, context_width), dtype=np.int64)
    return np.lib.stride_tricks.sliding_window_view(ids[:-1], context_width)


def first_occurrence(
    contexts: NDArray[np.int64],  # [N, h]
) -> NDArray[np.bool_]:  # [N]
    """True where a context has not occurred at an earlier position."""
    mask = np.zeros(contexts.shape[0], dtype=np.bool_)
    if mask.size:
        rows = np.ascontiguousarray(contexts)
        # One opaque item a row: np.unique compares whole contexts and stays O(N log N).
        items = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
        mask[np.unique(items, return_index=True)[1]] = True
    return mask


class ContextHistory:
    """The contexts that have occurred so far in one text, for a generator; O(1) a step.

    >>> history = ContextHistory()
    >>> history.record((1, 2)), history.record((2, 1)), history.record((1, 2))
    (True, True, False)
    """

    __slots__ = ("_seen",)

    def __init__(self, occurred: Iterable[Sequence[int]] = ()) -> None:
        self._seen = {tuple(context) for context in occurred}

    def record(self, context: Sequence[int]) -> bool:
        """Note that the context has occurred; whether that was its first occurrence."""
        before = len(self._seen)
        self._seen.add(tuple(context))
        return len(self._seen) > before
