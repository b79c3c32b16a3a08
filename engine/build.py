"""Builds a served model from a checkpoint: weights, cache, scheduler, sampler, engine.

Knows nothing of where the checkpoint came from or of HTTP.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

import torch
from prometheus_client import CollectorRegistry

from tokenmark.engine.answer import Answer, Mark, UnmarkedReason, request_key
from tokenmark.engine.async_engine import AsyncEngine
from tokenmark.engine.block_pool import BlockPool
from tokenmark.engine.chat import ChatTemplate
from tokenmark.engine.config import EngineConfig
from tokenmark.engine.core import EngineCore
from tokenmark.engine.metrics import EngineMetrics
from tokenmark.engine.model_runner import ModelRunner, cache_blocks, cache_memory, default_dtype
from tokenmark.engine.models.llama import Llama
from tokenmark.engine.models.loader import Checkpoint
from tokenmark.engine.request import Request, SamplingParams
from tokenmark.engine.sampler import Sampler
from tokenmark.engine.scheduler import Scheduler
from tokenmark.engine.served_model import ServedModel
from tokenmark.engine.text_codec import TextCodec
from tokenmark.kernels.gumbel import warm_up
from tokenmark.watermark.errors import CapacityError, ModelError, RequestError

__all__ = ["Hardware", "Stage", "build_served_model"]

_BLOCK_SIZE: Final = 16
_MAX_RUNNING: Final = 64
_WARM_UP_PROMPT: Final = 64
_WARM_UP_TOKENS: Final = 4

Made = TypeVar("Made")


class Stage(StrEnum):
    """What takes time between the command and the first request."""

    READ = "read"
    BUILD = "build"
    COMPILE = "compile"
    WARM_UP = "warm up"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Where a model computes and in which type.

    Raises:
        ModelError: there is no such device.
    """

    device: torch.device
    dtype: torch.dtype

    @classmethod
    def choose(cls, device: str, dtype: str) -> "Hardware":
        """The device of that name ("auto", "cpu", "cuda", "cuda:1") and type ("auto" or a name)."""
        name = device
        if device == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", name):
            raise ModelError(f"device {device!r} is not known; give cpu, cuda or cuda:N")
        try:
            found = torch.device(name)
            torch.empty(0, device=found)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ModelError(
                f"device {device!r} cannot be used: {reason}; choose another with --device"
            ) from error
        chosen = default_dtype(found) if dtype == "auto" else getattr(torch, dtype)
        return cls(device=found, dtype=chosen)


def build_served_model(
    checkpoint: Checkpoint,
    *,
    hardware: Hardware,
    max_model_len: int | None,
    mark: Mark | None,
    progress: Callable[[Stage], None],
) -> ServedModel:
    """A model ready to serve; its engine has still to be entered.

    Args:
        checkpoint: what to load.
        hardware: where to.
        max_model_len: most tokens of one sequence; None takes the model's own limit.
        mark: what answers are marked with, or None.
        progress: told when a stage begins.

    Raises:
        CapacityError: too little memory for one sequence, or a limit the model does not have.
        ModelError: weights that do not fit the model's description.
    """
    progress(Stage.BUILD)
    length = checkpoint.config.max_positions if max_model_len is None else max_model_len
    config = _engine_config(checkpoint, hardware, length)
    codec = TextCodec(checkpoint.tokenizer_json)
    model = _with_memory(lambda: _load_weights(checkpoint, hardware), "the model's weights")
    core = EngineCore(
        scheduler=Scheduler(config, BlockPool(config.n_blocks)),
        runner=_with_memory(lambda: ModelRunner(model, config), "the KV cache"),
        sampler=Sampler(mark),
        decode=codec.decode,
    )
    progress(Stage.COMPILE)
    # Some twenty seconds in the first start on a machine; later ones load what was compiled.
    warm_up(hardware.device, hardware.dtype)
    progress(Stage.WARM_UP)
    _warm_up(core, length)
    metrics = EngineMetrics(CollectorRegistry())
    progress(Stage.READY)
    return ServedModel(
        name=checkpoint.name,
        engine=AsyncEngine(core, metrics),
        metrics=metrics,
        codec=codec,
        chat=_chat_template(checkpoint),
        eos_ids=checkpoint.eos_ids,
        max_model_len=length,
        mark=mark,
    )


def _chat_template(checkpoint: Checkpoint) -> ChatTemplate | None:
    if checkpoint.chat_template is None:
        return None
    tokenizer = checkpoint.gguf.tokenizer
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    names = {name: tokenizer.tokens[i] for name, i in ids.items() if i is not None}
    return ChatTemplate(checkpoint.chat_template, special_tokens=names)


def _engine_config(checkpoint: Checkpoint, hardware: Hardware, length: int) -> EngineConfig:
    if not 1 <= length <= checkpoint.config.max_positions:
        raise CapacityError(
            f"max_model_len must be 1..{checkpoint.config.max_positions} for this model, "
            f"got {length}; choose another --max-model-len"
        )
    memory_bytes = cache_memory(
        checkpoint.config,
        max_model_len=length,
        max_running=_MAX_RUNNING,
        block_size=_BLOCK_SIZE,
        dtype=hardware.dtype,
        device=hardware.device,
    )
    n_blocks = cache_blocks(
        checkpoint.config,
        block_size=_BLOCK_SIZE,
        dtype=hardware.dtype,
        memory_bytes=memory_bytes,
    )
    return EngineConfig(
        max_model_len=length, n_blocks=n_blocks, block_size=_BLOCK_SIZE, max_running=_MAX_RUNNING
    )


def _load_weights(checkpoint: Checkpoint, hardware: Hardware) -> Llama:
    return Llama.from_tensors(
        checkpoint.config, checkpoint.tensors(), dtype=hardware.dtype, device=hardware.device
    )


def _with_memory(make: Callable[[], Made], what: str) -> Made:
    """What `make` makes, or a plain word that it does not fit into memory."""
    try:
        return make()
    except (MemoryError, RuntimeError) as error:
        # On a CPU, torch tells of too little memory in words only.
        is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not is_memory and "allocate" not in str(error):
            raise
        raise CapacityError(
            f"too little memory for {what}; free some, choose a smaller --max-model-len or a "
            "smaller model"
        ) from error


def _warm_up(core: EngineCore, max_model_len: int) -> None:
    """Run one short answer, so that the first client does not pay for what happens only once."""
    n_prompt = max(1, min(_WARM_UP_PROMPT, max_model_len - _WARM_UP_TOKENS))
    n_tokens = min(_WARM_UP_TOKENS, max_model_len - n_prompt)
    try:
        core.add(
            Request(
                request_id="warm-up",
                prompt_ids=(0,) * n_prompt,
                params=SamplingParams(max_tokens=n_tokens, seed=0, ignore_eos=True),
                eos_ids=frozenset(),
            ),
            Answer(request_key(0, 0), marking=None, unmarked_reason=UnmarkedReason.SERVER_UNMARKED),
        )
    except RequestError as error:
        raise CapacityError(
            f"max_model_len={max_model_len} leaves no room for an answer; raise --max-model-len"
        ) from error
    while core.has_work:
        for result in core.step():
            if result.error is not None:
                raise ModelError("the model's weights give no usable logits; fetch the model again")
