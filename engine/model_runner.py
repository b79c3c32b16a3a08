"""A model with its key-value cache. Knows nothing of queues, sampling or texts."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import psutil
import torch
from torch import Tensor

from tokenmark.engine.batch import build_batch
from tokenmark.engine.config import EngineConfig
from tokenmark.engine.models.llama import Llama, LlamaConfig
from tokenmark.engine.scheduler import SchedulerOutput
from tokenmark.watermark.errors import CapacityError

__all__ = [
    "ModelOutput",
    "ModelRunner",
    "available_memory",
    "cache_blocks",
    "cache_memory",
    "default_dtype",
]

# The other half is for the steps' own tensors, the rest of the process and the machine.
_FRACTION_OF_AVAILABLE: Final = 0.5
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True, eq=False)
class ModelOutput:
    """What one step computed.

    Args:
        request_ids: the R requests that sample, in the order of the rows.
        logits: [R, V], in the type the model computes in.
    """

    request_ids: tuple[str, ...]
    logits: Tensor


class ModelRunner:
    """Computes steps and keeps the keys and values of all tokens computed so far.

    Raises:
        CapacityError: `max_model_len` is more than the model has positions for.
    """

    __slots__ = ("_block_size", "_kv_cache", "_model")

    def __init__(self, model: Llama, config: EngineConfig) -> None:
        if config.max_model_len > model.config.max_positions:
            raise CapacityError(
                f"max_model_len={config.max_model_len} is more than the model's"
                f" {model.config.max_positions} positions; choose a smaller --max-model-len"
            )
        self._model = model
        self._block_size = config.block_size
        shape = (config.n_blocks, config.block_size, model.config.n_kv_heads, model.config.head_dim)
        self._kv_cache = _zeros(
            (model.config.n_layers, 2, *shape), dtype=model.dtype, device=model.device
        )

    def run(self, output: SchedulerOutput) -> ModelOutput:
        """Compute the chunks of one step; their blocks hold their keys and values afterwards."""
        model = self._model
        batch = build_batch(
            output, block_size=self._block_size, dtype=model.dtype, device=model.device
        )
        return ModelOutput(batch.sample_ids, model.forward(batch, self._kv_cache))


def _zeros(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    # Attention multiplies slots that nobody has written by zero, so they must be finite.
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # NumPy leaves the zeros to the system, which hands out pages as blocks are first written: a
    # start takes no time, and memory that is never used is never taken.
    n_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(n_bytes, dtype=np.uint8)).view(dtype).view(shape)


def _bytes_per_token(config: LlamaConfig, dtype: torch.dtype) -> int:
    return 2 * config.n_layers * config.n_kv_heads * config.head_dim * dtype.itemsize


def cache_blocks(
    config: LlamaConfig, *, block_size: int, dtype: torch.dtype, memory_bytes: int
) -> int:
    """How many blocks of `block_size` tokens a KV cache of that memory holds, perhaps none."""
    return memory_bytes // (block_size * _bytes_per_token(config, dtype))


def available_memory(device: torch.device) -> int:
    """Bytes that are free where a KV cache would lie."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def cache_memory(
    config: LlamaConfig,
    *,
    max_model_len: int,
    max_running: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Bytes to give to a KV cache on the device.

    Half of what is available, but never more than `max_running` sequences of `max_model_len` tokens
    can fill.

    Raises:
        CapacityError: half of what is available does not hold one such sequence.
    """
    n_blocks = -(-max_model_len // block_size)
    needed = n_blocks * block_size * _bytes_per_token(config, dtype)
    granted = int(available_memory(device) * _FRACTION_OF_AVAILABLE)
    if granted < needed:
        raise CapacityError(
            f"the KV cache of one sequence of max_model_len={max_model_len} needs"
            f" {-(-needed // _MIB)} MiB, and {granted // _MIB} MiB are available for it;"
            " choose a smaller --max-model-len or free memory"
        )
    return min(granted, needed * max_running)


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on GPUs and on CPUs with instructions for it, else float32.

    A CPU without them computes bfloat16 slower than float32.
    """
    if device.type != "cpu":
        return torch.bfloat16
    # These probes are underscored in PyTorch, which offers no other name for them.
    has_bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # noqa: SLF001
    return torch.bfloat16 if has_bfloat16 else torch.float32
