"""Which KV cache blocks are free and which are held. Knows nothing of requests or tensors."""

from collections import deque
from collections.abc import Sequence

from tokenmark.watermark.errors import CapacityError

__all__ = ["BlockPool"]


class BlockPool:
    """Block ids 0 to n_blocks - 1, each either free or held by one owner.

    The block that has been free for the longest time is handed out first, so the ids that a run
    gets are the same every time. Freeing what is not held is a fault of the engine and raises
    AssertionError.

    >>> pool = BlockPool(3)
    >>> pool.allocate(2), pool.n_free
    ([0, 1], 1)
    """

    __slots__ = ("_free", "_held", "_n_blocks")

    def __init__(self, n_blocks: int) -> None:
        if n_blocks < 1:
            raise CapacityError(f"a block pool needs at least 1 block, got {n_blocks}")
        self._n_blocks = n_blocks
        self._free = deque(range(n_blocks))
        self._held: set[int] = set()

    @property
    def n_blocks(self) -> int:
        """Number of blocks, free or held."""
        return self._n_blocks

    @property
    def n_free(self) -> int:
        """Number of blocks that can be allocated."""
        return len(self._free)

    @property
    def n_held(self) -> int:
        """Number of blocks allocated and not yet freed."""
        return len(self._held)

    def can_allocate(self, n_blocks: int) -> bool:
        """Whether `allocate(n_blocks)` would succeed now."""
        return n_blocks <= self.n_free

    def allocate(self, n_blocks: int) -> list[int]:
        """The ids of `n_blocks` blocks that were free and now belong to the caller.

        Raises:
            CapacityError: fewer are free; nothing has been allocated.
        """
        if not self.can_allocate(n_blocks):
            raise CapacityError(
                f"{n_blocks} KV blocks were asked for and {self.n_free} of {self._n_blocks} are "
                "free; free some first"
            )
        block_ids = [self._free.popleft() for _ in range(n_blocks)]
        self._held.update(block_ids)
        return block_ids

    def free(self, block_ids: Sequence[int]) -> None:
        """Take back blocks that are held; all of them or, on AssertionError, none."""
        returned = set(block_ids)
        if len(returned) != len(block_ids) or not returned <= self._held:
            raise AssertionError(f"blocks freed twice or never allocated: {list(block_ids)}")
        self._held -= returned
        self._free.extend(block_ids)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is exactly once either free or held."""
        known = sorted([*self._free, *self._held])
        if known != list(range(self._n_blocks)):
            raise AssertionError(
                f"{self.n_free} free and {self.n_held} held blocks are not "
                f"0..{self._n_blocks - 1}, each once"
            )
