"""MT19937 words, and the shuffle that PyTorch's CPU generator makes of them.

Knows nothing of tokens or marks. Seeds are any integers, of which the low 32 bits count: PyTorch
keeps no more of a seed, and of a negative one those of its two's complement.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["PERMUTATION_LIMIT", "in_permutation_head", "permutation", "words"]

Words = NDArray[np.uint32]

PERMUTATION_LIMIT: Final = (2**32 - 1) // 20
"""PyTorch shuffles this many items and more by another rule, with words of 64 bits."""


def words(seed: int, n_words: int) -> Words:  # [n_words]
    """The first outputs after `init_genrand(seed)`.

    >>> words(5489, 2)
    array([3499211612,  581869302], dtype=uint32)
    """
    # NumPy promises that the streams of RandomState never change.
    generator = np.random.RandomState(seed % 2**32)
    return generator.randint(0, 2**32, size=n_words, dtype=np.uint32)


def permutation(seed: int, n_items: int) -> Words:  # [n_items]
    """What `torch.randperm(n_items)` returns on a CPU: Fisher-Yates from the front.

    >>> permutation(15485863, 1000)[:3]
    array([958, 725, 179], dtype=uint32)
    """
    items = list(range(n_items))
    for place, partner in enumerate(_partners(seed, n_items, n_items - 1).tolist()):
        items[place], items[partner] = items[partner], items[place]
    return np.array(items, dtype=np.uint32)


def in_permutation_head(
    seed: int,
    n_items: int,
    n_head: int,  # below n_items
    items: NDArray[np.integer],  # [K]
) -> NDArray[np.bool_]:  # [K]
    """Whether each item is among the first `n_head` of the permutation, without the permutation.

    Step i of the shuffle swaps places i and partner(i) >= i and settles place i for good. An item
    that waits at a place is settled when a step has this place as its partner. Otherwise the step
    of its own place, if the head has one, sends it to wait at the partner.
    """
    partners = _partners(seed, n_items, n_head)
    settled = np.zeros(len(items), dtype=np.bool_)
    for number, item in enumerate(items.tolist()):
        place, step = item, 0
        settled[number] = found = bool((partners == place).any())
        while not found and place < n_head:
            place, step = int(partners[place]), place + 1
            settled[number] = found = bool((partners[step:] == place).any())
    return settled


def _partners(
    seed: int,
    n_items: int,
    n_steps: int,
) -> Words:  # [n_steps]
    steps = np.arange(n_steps, dtype=np.uint32)
    return words(seed, n_steps) % (np.uint32(n_items) - steps) + steps
