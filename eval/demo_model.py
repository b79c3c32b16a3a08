"""The demo model, a text for it to read, and the logits it then has. Knows nothing of measuring."""

import dataclasses
from functools import cache
from importlib.resources import files
from typing import Final

import torch
from torch import Tensor

from tokenmark.engine.batch import build_batch
from tokenmark.engine.models.llama import Llama
from tokenmark.engine.models.loader import Checkpoint, load_checkpoint
from tokenmark.engine.scheduler import ScheduledChunk, SchedulerOutput
from tokenmark.engine.text_codec import TextCodec
from tokenmark.watermark.locations import cache_folder

__all__ = ["demo_checkpoint", "demo_llama", "prose_ids", "real_logits"]

_PROSE: Final = "austen-pride-and-prejudice-1.txt"
_N_ROWS: Final = 32
_ROW_DISTANCE: Final = 32
_CPU: Final = torch.device("cpu")


@cache
def demo_checkpoint() -> Checkpoint:
    """The demo model, fetched if it is not in the cache; its weights are not read yet.

    Raises:
        ModelError: it cannot be fetched.
    """
    return load_checkpoint("demo", cache=cache_folder(), progress=lambda _: None)


def demo_llama(dtype: torch.dtype) -> Llama:
    """The demo model on the CPU, its weights read anew."""
    checkpoint = demo_checkpoint()
    return Llama.from_tensors(checkpoint.config, checkpoint.tensors(), dtype=dtype, device=_CPU)


def prose_ids(n_ids: int) -> tuple[int, ...]:
    """The first ids of a novel's first chapter, which has some 1,060."""
    prose = files("tokenmark.eval").joinpath(_PROSE).read_text(encoding="utf-8")
    ids = TextCodec(demo_checkpoint().tokenizer_json).encode(prose)
    assert len(ids) >= n_ids
    return tuple(ids[:n_ids])


@cache
def real_logits() -> Tensor:  # [32, V] float32
    """The demo model's logits behind every 32nd id of the chapter."""
    model, n_ids = demo_llama(torch.float32), _N_ROWS * _ROW_DISTANCE
    chunk = ScheduledChunk(
        "chapter", start=0, token_ids=prose_ids(n_ids), block_ids=(0,), samples=True
    )
    batch = build_batch(
        SchedulerOutput(chunks=(chunk,), preempted=()),
        block_size=n_ids,
        dtype=model.dtype,
        device=model.device,
    )
    rows = torch.arange(_ROW_DISTANCE - 1, n_ids, _ROW_DISTANCE)
    config = model.config
    kv_shape = (config.n_layers, 2, 1, n_ids, config.n_kv_heads, config.head_dim)
    kv_cache = torch.zeros(kv_shape, dtype=model.dtype)
    return model.forward(dataclasses.replace(batch, sample_rows=rows), kv_cache)
