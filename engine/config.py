"""The limits an engine runs under. Knows nothing of models, devices or command lines."""

from dataclasses import dataclass

from tokenmark.watermark.errors import CapacityError

__all__ = ["EngineConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How much one engine may hold and do at once.

    Args:
        max_model_len: most tokens one sequence may have, prompt and answer together.
        n_blocks: blocks of KV cache on the device.
        block_size: tokens a block holds.
        max_batched_tokens: token budget of one step, over all its sequences.
        max_running: most sequences that hold KV blocks at the same time.
        max_queued: most requests that may wait for admission.

    Raises:
        CapacityError: a limit is below 1, or the blocks cannot hold one whole sequence.

    >>> EngineConfig(max_model_len=64, n_blocks=8).n_blocks_of(17)
    2
    """

    max_model_len: int
    n_blocks: int
    block_size: int = 16
    max_batched_tokens: int = 512
    max_running: int = 64
    max_queued: int = 1024

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value: int = getattr(self, name)
            if value < 1:
                raise CapacityError(f"{name} must be at least 1, got {value}; raise it")
        n_held = self.n_blocks * self.block_size
        if n_held < self.max_model_len:
            raise CapacityError(
                f"{self.n_blocks} KV blocks of {self.block_size} tokens hold {n_held} tokens, "
                f"too few for one sequence of max_model_len={self.max_model_len}; "
                "choose a smaller --max-model-len or free memory for more blocks"
            )

    def n_blocks_of(self, n_tokens: int) -> int:
        """Number of blocks that `n_tokens` tokens fill, the last one perhaps in part."""
        return -(-n_tokens // self.block_size)
