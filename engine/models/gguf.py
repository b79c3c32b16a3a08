"""Llama checkpoints in GGUF files: shape, tokenizer and weights under Hugging Face names.

Knows nothing of how the model computes or of where the file came from.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from tokenmark.engine.models.gguf_file import GgufFile, GgufMetadata, can_unpack, open_gguf
from tokenmark.engine.models.llama import LlamaConfig
from tokenmark.watermark.errors import ModelError

__all__ = ["GgufCheckpoint", "GgufTokenizer", "TokenType", "read_gguf"]

_ARCHITECTURE: Final = "llama"
_DEFAULT_ROPE_THETA: Final = 10000.0


class TokenType(IntEnum):
    """What GGUF says a vocabulary entry is."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTokenizer:
    """The vocabulary and the rules of a tokenizer as GGUF stores them."""

    model: str
    """The family, such as "gpt2" for byte-level BPE."""
    pre: str
    """The name of the rule that splits text before merging."""
    tokens: tuple[str, ...] = field(repr=False)
    """Token texts in the order of their ids."""
    types: tuple[TokenType, ...] = field(repr=False)
    merges: tuple[str, ...] = field(repr=False)
    """Pairs "left right", strongest first."""
    bos_id: int | None
    eos_id: int
    unknown_id: int | None
    adds_bos: bool
    """Whether every text begins with `bos_id`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GgufCheckpoint:
    """A Llama model in a GGUF file; made by `read_gguf`."""

    name: str
    """What the file calls the model, else the file's own name."""
    config: LlamaConfig
    tokenizer: GgufTokenizer
    chat_template: str | None = field(repr=False)
    file: GgufFile

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names of Hugging Face's Llama state dict with float32 tensors, one at a time.

        `lm_head.weight` is absent where the model ties it to the embedding.
        """
        for slot in _slots(self.config, tied=_is_tied(self.file)):
            packed = self.file.packed(slot.stored_name)
            if slot.rotary_heads is not None:
                packed = _half_split(packed, slot.rotary_heads)
            yield slot.name, torch.from_numpy(self.file.unpack(slot.stored_name, packed))


def read_gguf(path: Path) -> GgufCheckpoint:
    """The checkpoint in a GGUF file; weights are unpacked only when they are iterated.

    Raises:
        ModelError: the file cannot be read or is damaged, the architecture is not Llama, or a
            metadata key or a tensor is missing, misshapen or of an unknown kind.
    """
    file = open_gguf(path)
    metadata = file.metadata
    _refuse_other_models(metadata)
    config = _config(metadata)
    _check_tensors(file, config)
    tokenizer = _tokenizer(metadata)
    if len(tokenizer.tokens) != config.vocab_size:
        raise ModelError(
            f"{path}: the tokenizer has {len(tokenizer.tokens)} tokens and the model"
            f" {config.vocab_size}; they must be equal, so convert the model anew"
        )
    return GgufCheckpoint(
        name=metadata.text("general.name", default=path.stem),
        config=config,
        tokenizer=tokenizer,
        chat_template=metadata.text("tokenizer.chat_template", default="") or None,
        file=file,
    )


def _refuse_other_models(metadata: GgufMetadata) -> None:
    architecture = metadata.text("general.architecture")
    if architecture != _ARCHITECTURE:
        raise metadata.error(
            f"the architecture {architecture!r} is not supported; give a model of the"
            f" architecture {_ARCHITECTURE!r}"
        )
    # Models that share the name of the architecture and not its computation.
    if metadata.integer("llama.expert_count", default=0):
        raise metadata.error("a mixture of experts is not supported; give a dense Llama model")
    # Old converters wrote the bare factor, new ones a type; both mean other angles.
    scaling = metadata.text("llama.rope.scaling.type", default="none")
    if scaling != "none" or "llama.rope.scale_linear" in metadata:
        raise metadata.error(
            "scaled rotary positions are not supported; give a model without rope scaling"
        )


def _config(metadata: GgufMetadata) -> LlamaConfig:
    n_tokens = len(metadata.texts("tokenizer.ggml.tokens"))
    vocab_size = metadata.integer("llama.vocab_size", default=n_tokens)
    hidden_size = metadata.integer("llama.embedding_length")
    n_layers = metadata.integer("llama.block_count")
    n_heads = metadata.integer("llama.attention.head_count")
    n_kv_heads = metadata.integer("llama.attention.head_count_kv", default=n_heads)
    ffn_size = metadata.integer("llama.feed_forward_length")
    rms_eps = metadata.real("llama.attention.layer_norm_rms_epsilon")
    # Converters leave the base out where it is that of the first Llama.
    rope_theta = metadata.real("llama.rope.freq_base", default=_DEFAULT_ROPE_THETA)
    max_positions = metadata.integer("llama.context_length")
    head_dim = _head_dim(metadata, hidden_size=hidden_size, n_heads=n_heads)
    try:
        return LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            n_layers=n_layers,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            ffn_size=ffn_size,
            rms_eps=rms_eps,
            rope_theta=rope_theta,
            max_positions=max_positions,
        )
    except ModelError as error:
        raise metadata.error(str(error)) from error


def _head_dim(metadata: GgufMetadata, *, hidden_size: int, n_heads: int) -> int:
    equal_share = hidden_size // max(n_heads, 1)
    head_dim = metadata.integer("llama.attention.key_length", default=equal_share)
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        size = metadata.integer(key, default=head_dim)
        if size != head_dim:
            raise metadata.error(
                f"{key} is {size} and heads have {head_dim} dimensions; heads that rotate in part"
                " or differ in size are not supported"
            )
    return head_dim


def _token_types(metadata: GgufMetadata, key: str) -> tuple[TokenType, ...]:
    known = {int(kind): kind for kind in TokenType}
    try:
        return tuple(known[number] for number in metadata.integers(key))
    except KeyError as error:
        raise metadata.wrong(key, "a list of token types from 1 to 6") from error


def _tokenizer(metadata: GgufMetadata) -> GgufTokenizer:
    tokens = metadata.texts("tokenizer.ggml.tokens")
    types = _token_types(metadata, "tokenizer.ggml.token_type")
    if len(types) != len(tokens):
        raise metadata.error(
            f"there are {len(tokens)} tokens and {len(types)} token types; convert the model anew"
        )

    def token_id(name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        if key not in metadata:
            return None
        value = metadata.integer(key)
        if not 0 <= value < len(tokens):
            raise metadata.error(f"{key} is {value}, ids end at {len(tokens) - 1}")
        return value

    eos_id = token_id("eos")
    if eos_id is None:
        raise metadata.error(
            "metadata 'tokenizer.ggml.eos_token_id' is missing, so no answer could end; convert"
            " the model anew"
        )
    return GgufTokenizer(
        model=metadata.text("tokenizer.ggml.model"),
        pre=metadata.text("tokenizer.ggml.pre", default="default"),
        tokens=tokens,
        types=types,
        merges=metadata.texts("tokenizer.ggml.merges"),
        bos_id=token_id("bos"),
        eos_id=eos_id,
        unknown_id=token_id("unknown"),
        adds_bos=metadata.flag("tokenizer.ggml.add_bos_token", default=False),
    )


@dataclass(frozen=True, slots=True)
class _Slot:
    """One tensor that the model needs: its two names and its shape."""

    stored_name: str
    name: str
    shape: tuple[int, ...]
    rotary_heads: int | None = None


def _slots(config: LlamaConfig, *, tied: bool) -> Iterator[_Slot]:
    """Every tensor of the model in the order of computation."""
    hidden, vocab = config.hidden_size, config.vocab_size
    yield _Slot("token_embd.weight", "model.embed_tokens.weight", (vocab, hidden))
    for number in range(config.n_layers):
        yield from _layer_slots(config, f"blk.{number}", f"model.layers.{number}")
    yield _Slot("output_norm.weight", "model.norm.weight", (hidden,))
    if not tied:
        yield _Slot("output.weight", "lm_head.weight", (vocab, hidden))


def _layer_slots(config: LlamaConfig, stored: str, name: str) -> Iterator[_Slot]:
    hidden, ffn = config.hidden_size, config.ffn_size
    n_heads, n_kv_heads = config.n_heads, config.n_kv_heads
    q_rows, kv_rows = n_heads * config.head_dim, n_kv_heads * config.head_dim
    for stored_part, part, shape, rotary_heads in (
        ("attn_norm", "input_layernorm", (hidden,), None),
        ("attn_q", "self_attn.q_proj", (q_rows, hidden), n_heads),
        ("attn_k", "self_attn.k_proj", (kv_rows, hidden), n_kv_heads),
        ("attn_v", "self_attn.v_proj", (kv_rows, hidden), None),
        ("attn_output", "self_attn.o_proj", (hidden, q_rows), None),
        ("ffn_norm", "post_attention_layernorm", (hidden,), None),
        ("ffn_gate", "mlp.gate_proj", (ffn, hidden), None),
        ("ffn_up", "mlp.up_proj", (ffn, hidden), None),
        ("ffn_down", "mlp.down_proj", (hidden, ffn), None),
    ):
        yield _Slot(f"{stored}.{stored_part}.weight", f"{name}.{part}.weight", shape, rotary_heads)


def _is_tied(file: GgufFile) -> bool:
    return "output.weight" not in file.tensors


def _half_split(
    packed: NDArray[np.uint8],  # [heads * head_dim, bytes a row]
    n_heads: int,
) -> NDArray[np.uint8]:
    """Rows in the order of Hugging Face's rotary embedding, which pairs row i with i + d/2.

    GGUF pairs neighbours, 2i with 2i + 1. Rows are packed one by one, so they move as bytes.
    """
    n_rows, n_bytes = packed.shape
    pairs = packed.reshape(n_heads, n_rows // n_heads // 2, 2, n_bytes)
    return pairs.swapaxes(1, 2).reshape(n_rows, n_bytes)


def _check_tensors(file: GgufFile, config: LlamaConfig) -> None:
    """Refuse a file that lacks a tensor, has one of another shape, or has one too many."""
    needed = set()
    for slot in _slots(config, tied=_is_tied(file)):
        tensor = file.tensors.get(slot.stored_name)
        if tensor is None:
            raise ModelError(
                f"{file.path}: tensor {slot.stored_name} is missing; download the file again"
            )
        if tensor.shape != slot.shape:
            raise ModelError(
                f"{file.path}: tensor {slot.stored_name} has the shape {tensor.shape}, the"
                f" metadata asks for {slot.shape}; convert the model anew"
            )
        if not can_unpack(tensor.encoding):
            raise ModelError(
                f"{file.path}: tensor {slot.stored_name} is stored as {tensor.encoding.name}, which"
                " cannot be read; give a file in F16, BF16, Q8_0 or Q4_K"
            )
        needed.add(slot.stored_name)
    extra = sorted(file.tensors.keys() - needed)
    if extra:
        # Such a tensor changes what the model computes: biases, rotary factors, adapters.
        raise ModelError(
            f"{file.path}: tensor {extra[0]} belongs to a variant of Llama that is not supported;"
            " give a plain Llama model"
        )
