"""A whole engine around a model of a few hundred ids, for tests without weights.

The tokenizer has one id a byte, so a text of ASCII characters gives back the ids it came from. The
model draws printable ASCII only, and its logits depend on every id that it reads from its paged
cache: a block handed to two requests, or a token never computed, changes the answer.
"""

import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tokenmark.engine.answer import Mark
from tokenmark.engine.async_engine import AsyncEngine
from tokenmark.engine.block_pool import BlockPool
from tokenmark.engine.chat import ChatTemplate
from tokenmark.engine.config import EngineConfig
from tokenmark.engine.core import EngineCore
from tokenmark.engine.metrics import EngineMetrics
from tokenmark.engine.model_runner import ModelOutput
from tokenmark.engine.sampler import Sampler
from tokenmark.engine.scheduler import Scheduler, SchedulerOutput
from tokenmark.engine.served_model import ServedModel
from tokenmark.engine.text_codec import TextCodec
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.scheme import Scheme

MODEL_NAME: Final = "tiny"
EOS: Final = 256
VOCABULARY_SIZE: Final = 257

ENDS_AT_ONCE: Final = "\x04"
"""A prompt that ends with this gets an empty answer."""
SPOILS_LOGITS: Final = "\x00"
"""A prompt that ends with this gets logits that are NaN."""
STOPS_THE_ENGINE: Final = "\x18"
"""A prompt that ends with this makes the model raise."""

TINY_CONFIG: Final = EngineConfig(max_model_len=512, n_blocks=256)

_CHAT_TEMPLATE: Final = (
    "{%- for message in messages %}"
    "{%- if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('a system message comes first') }}"
    "{%- endif %}"
    "[{{ message.role }}]{{ message.content }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}[assistant]{%- endif %}"
)


def tiny_mark(scheme: Scheme | None = None) -> Mark:
    """A mark under a fixed key that is no published one."""
    key = WatermarkKey.from_hex("5e" * 32)
    return Mark(key=key, scheme=scheme or Scheme(name="tm1"))


def tiny_tokenizer_json() -> bytes:
    """A tokenizer file whose id of a byte is that byte; the last id ends an answer."""
    tokenizer = Tokenizer(models.BPE(vocab=_byte_ids(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return tokenizer.to_str().encode()


def _byte_ids() -> dict[str, int]:
    """The character by which byte-level tokenizers write each byte.

    A printable byte stands for itself; the others have characters from 256 on, in order.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [char for char in alphabet if ord(char) < 256]
    others = sorted(set(range(256)) - {ord(char) for char in printable})
    stand_ins = dict(zip(alphabet[len(printable) :], others, strict=True))
    return {char: ord(char) for char in printable} | stand_ins


class TinyRunner:
    """Logits that are a fixed function of all ids of a sequence.

    Args:
        config: sizes of the paged cache.
        step_s: how long a step takes at least.
    """

    def __init__(self, config: EngineConfig, *, step_s: float = 0.0) -> None:
        self._step_s = step_s
        self._block_size = config.block_size
        self._cache = np.zeros((config.n_blocks, config.block_size), dtype=np.int64)

    def run(self, output: SchedulerOutput) -> ModelOutput:
        time.sleep(self._step_s)
        for chunk in output.chunks:
            for offset, token_id in enumerate(chunk.token_ids):
                block, slot = divmod(chunk.start + offset, self._block_size)
                self._cache[chunk.block_ids[block], slot] = token_id
        sampling = [chunk for chunk in output.chunks if chunk.samples]
        rows = np.empty((len(sampling), VOCABULARY_SIZE), dtype=np.float32)
        for row, chunk in enumerate(sampling):
            token_ids = self._cache[list(chunk.block_ids)].reshape(-1)[: chunk.stop]
            rows[row] = logits_after(token_ids)
        return ModelOutput(tuple(chunk.request_id for chunk in sampling), torch.from_numpy(rows))


def logits_after(token_ids: NDArray[np.int64]) -> NDArray[np.float64]:
    logits = np.full(VOCABULARY_SIZE, -np.inf)
    last = int(token_ids[-1])
    if last == ord(STOPS_THE_ENGINE):
        raise RuntimeError("the tiny model was asked to fail")
    if last == ord(SPOILS_LOGITS):
        logits[:] = np.nan
    elif last == ord(ENDS_AT_ONCE):
        logits[EOS] = 0
    else:
        generator = np.random.default_rng(zlib.crc32(token_ids.tobytes()))
        logits[0x20:0x7F] = generator.normal(scale=1.5, size=0x7F - 0x20)
        # About one token in three hundred ends the answer.
        logits[EOS] = 0
    return logits


def tiny_core(
    config: EngineConfig, pool: BlockPool, *, mark: Mark | None = None, step_s: float = 0.0
) -> EngineCore:
    """An engine to be stepped by hand."""
    return EngineCore(
        scheduler=Scheduler(config, pool),
        runner=TinyRunner(config, step_s=step_s),
        sampler=Sampler(mark),
        decode=TextCodec(tiny_tokenizer_json()).decode,
    )


@dataclass(frozen=True, slots=True)
class TinyEngine:
    """A running engine as the HTTP layer sees it, and the pool behind it."""

    model: ServedModel
    pool: BlockPool


@contextmanager
def tiny_engine(
    config: EngineConfig = TINY_CONFIG,
    *,
    mark: Mark | None = None,
    step_s: float = 0.0,
    has_chat: bool = True,
) -> Iterator[TinyEngine]:
    """A running engine on a thread of its own, stopped in the end."""
    pool = BlockPool(config.n_blocks)
    metrics = EngineMetrics(CollectorRegistry())
    core = tiny_core(config, pool, mark=mark, step_s=step_s)
    with AsyncEngine(core, metrics) as engine:
        model = ServedModel(
            name=MODEL_NAME,
            engine=engine,
            metrics=metrics,
            codec=TextCodec(tiny_tokenizer_json()),
            chat=ChatTemplate(_CHAT_TEMPLATE, special_tokens={}) if has_chat else None,
            eos_ids=frozenset({EOS}),
            max_model_len=config.max_model_len,
            mark=mark,
        )
        yield TinyEngine(model, pool)
