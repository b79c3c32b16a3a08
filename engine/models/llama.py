"""The Llama decoder on a paged key-value cache. Knows nothing of requests, files or sampling."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor
from torch.nn import functional

from tokenmark.engine.batch import Batch
from tokenmark.kernels.attention import paged_attention, write_kv
from tokenmark.watermark.errors import ModelError

__all__ = ["Llama", "LlamaConfig"]

_EMBEDDING: Final = "model.embed_tokens.weight"
_HEAD: Final = "lm_head.weight"
# Up to so many rows a matrix product is bound by reading the weights.
_FEW_ROWS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """The shape of a Llama decoder (Touvron et al., 2023), with grouped heads.

    Args:
        vocab_size: rows of the embedding.
        hidden_size: width of the residual stream.
        n_layers: number of decoder layers.
        n_heads: query heads a layer.
        n_kv_heads: key-value heads a layer, a divisor of `n_heads`.
        head_dim: width of one head, even.
        ffn_size: width of the feed-forward layer.
        rms_eps: what RMSNorm adds to the mean square.
        rope_theta: base of the rotary frequencies.
        max_positions: longest sequence that the model was made for.

    Raises:
        ModelError: a value is not positive, or heads do not divide as they must.
    """

    vocab_size: int
    hidden_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_size: int
    rms_eps: float
    rope_theta: float
    max_positions: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value: float = getattr(self, name)
            if not 0 < value < math.inf:
                raise ModelError(
                    f"{name} of the model must be positive and finite, got {value};"
                    " the model file is damaged or not a Llama"
                )
        if self.n_heads % self.n_kv_heads:
            raise ModelError(
                f"n_heads of the model must be a multiple of n_kv_heads={self.n_kv_heads},"
                f" got {self.n_heads}; the model file is damaged or not a Llama"
            )
        if self.head_dim % 2:
            raise ModelError(
                f"head_dim of the model must be even, got {self.head_dim};"
                " rotary embedding turns pairs, choose another model"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layer:
    """The weights of one decoder layer; E is the hidden, F the feed-forward size."""

    attention_norm: Tensor  # [E] float32
    qkv: Tensor  # [(n_heads + 2 n_kv_heads) head_dim, E]
    attention_out: Tensor  # [E, n_heads head_dim]
    ffn_norm: Tensor  # [E] float32
    gate_up: Tensor  # [2 F, E]
    down: Tensor  # [E, F]

    @classmethod
    def empty(cls, config: LlamaConfig, *, dtype: torch.dtype, device: torch.device) -> Self:
        """A layer whose weights are still to be filled in."""
        size, attended = config.hidden_size, config.n_heads * config.head_dim
        n_rows = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim
        return cls(
            # The norms stay in float32, in which they are computed.
            attention_norm=torch.empty(size, dtype=torch.float32, device=device),
            qkv=torch.empty(n_rows, size, dtype=dtype, device=device),
            attention_out=torch.empty(size, attended, dtype=dtype, device=device),
            ffn_norm=torch.empty(size, dtype=torch.float32, device=device),
            gate_up=torch.empty(2 * config.ffn_size, size, dtype=dtype, device=device),
            down=torch.empty(size, config.ffn_size, dtype=dtype, device=device),
        )

    def parts(self, config: LlamaConfig) -> dict[str, Tensor]:
        """Where each tensor of a checkpoint belongs, by its name behind the layer's prefix."""
        n_kv_rows = config.n_kv_heads * config.head_dim
        query, key, value = self.qkv.tensor_split([-2 * n_kv_rows, -n_kv_rows])
        gate, up = self.gate_up.chunk(2)
        return {
            "input_layernorm.weight": self.attention_norm,
            "self_attn.q_proj.weight": query,
            "self_attn.k_proj.weight": key,
            "self_attn.v_proj.weight": value,
            "self_attn.o_proj.weight": self.attention_out,
            "post_attention_layernorm.weight": self.ffn_norm,
            "mlp.gate_proj.weight": gate,
            "mlp.up_proj.weight": up,
            "mlp.down_proj.weight": self.down,
        }


class Llama:
    """A Llama decoder for inference; made by `from_tensors`."""

    __slots__ = ("_embedding", "_final_norm", "_head", "_layers", "_rotary", "config")

    def __init__(
        self,
        config: LlamaConfig,
        *,
        embedding: Tensor,  # [V, E]
        layers: tuple[_Layer, ...],
        final_norm: Tensor,  # [E] float32
        head: Tensor,  # [V, E]
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = layers
        self._final_norm = final_norm
        self._head = head
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self._rotary = (1.0 / config.rope_theta**exponents).to(embedding.device)  # [head_dim / 2]

    @classmethod
    def from_tensors(
        cls,
        config: LlamaConfig,
        tensors: Iterable[tuple[str, Tensor]],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Self:
        """The model with the weights of a checkpoint; it computes in `dtype` on `device`.

        Args:
            config: the shape of the model.
            tensors: every weight once, in any order, by its name in Hugging Face's Llama. Without
                `lm_head.weight` the head is the embedding. The tensors are copied.
            dtype: of the matrices and the KV cache.
            device: where to.

        Raises:
            ModelError: a tensor is missing, not known or of another shape.
        """
        matrix = (config.vocab_size, config.hidden_size)
        embedding = torch.empty(matrix, dtype=dtype, device=device)
        head = torch.empty(matrix, dtype=dtype, device=device)
        final_norm = torch.empty(config.hidden_size, dtype=torch.float32, device=device)
        layers = tuple(
            _Layer.empty(config, dtype=dtype, device=device) for _ in range(config.n_layers)
        )
        unfilled = {_EMBEDDING: embedding, _HEAD: head, "model.norm.weight": final_norm}
        for i, layer in enumerate(layers):
            parts = layer.parts(config)
            unfilled |= {f"model.layers.{i}.{name}": part for name, part in parts.items()}
        _fill(unfilled, tensors)
        return cls(
            config,
            embedding=embedding,
            layers=layers,
            final_norm=final_norm,
            head=embedding if _HEAD in unfilled else head,
        )

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in, and what its KV cache must hold."""
        return self._embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._embedding.device

    @torch.inference_mode()
    def forward(
        self,
        batch: Batch,
        kv_cache: Tensor,  # [n_layers, 2, n_blocks, block_size, n_kv_heads, head_dim]
    ) -> Tensor:  # [R, V]
        """Logits behind the last token of every chunk that samples, in the order of the batch.

        Writes the keys (index 0) and values (index 1) of all T tokens into the cache.
        """
        config = self.config
        n_turned = config.n_heads + config.n_kv_heads
        angles = batch.positions[:, None, None].float() * self._rotary
        cos, sin = angles.cos(), angles.sin()
        hidden = functional.embedding(batch.token_ids, self._embedding)
        for layer, (key_cache, value_cache) in zip(self._layers, kv_cache, strict=True):
            projected = _linear(self._norm(hidden, layer.attention_norm), layer.qkv)
            heads = projected.view(len(projected), -1, config.head_dim)
            turned = _turned(heads[:, :n_turned], cos, sin)
            queries, keys = turned.tensor_split([config.n_heads], dim=1)
            write_kv(keys, heads[:, n_turned:], key_cache, value_cache, batch.slot_mapping)
            attended = paged_attention(queries, key_cache, value_cache, batch.attention)
            hidden = hidden + _linear(attended.flatten(1), layer.attention_out)
            gate, up = _linear(self._norm(hidden, layer.ffn_norm), layer.gate_up).chunk(2, dim=1)
            hidden = hidden + _linear(functional.silu(gate) * up, layer.down)
        last = self._norm(hidden.index_select(0, batch.sample_rows), self._final_norm)
        # Samplers read row by row, so a row must lie together.
        return _linear(last, self._head).contiguous()

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        normed = functional.rms_norm(
            hidden.float(), weight.shape, weight=weight, eps=self.config.rms_eps
        )
        return normed.to(hidden.dtype)


def _fill(unfilled: dict[str, Tensor], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Copy the tensors to their places and take these out of `unfilled`."""
    for name, tensor in tensors:
        place = unfilled.pop(name, None)
        if place is None:
            raise ModelError(
                f"tensor {name} is unknown or comes twice; the file is not a plain Llama model"
            )
        if place.shape != tensor.shape:
            raise ModelError(
                f"tensor {name} must have the shape {list(place.shape)} by the model's config,"
                f" got {list(tensor.shape)}; fetch the model again or choose another"
            )
        place.copy_(tensor)
    missing = next((name for name in unfilled if name != _HEAD), None)
    if missing is not None:
        raise ModelError(f"tensor {missing} is missing from the model; fetch the model again")


def _linear(
    rows: Tensor,  # [T, I]
    weight: Tensor,  # [O, I]
) -> Tensor:  # [T, O]
    if rows.device.type == "cpu" and rows.dtype == torch.float32 and len(rows) <= _FEW_ROWS:
        # The product of the transposes streams the weights up to twice as fast in MKL's sgemm.
        return (weight @ rows.t()).t()
    return functional.linear(rows, weight)


def _turned(
    heads: Tensor,  # [T, H, head_dim]
    cos: Tensor,  # [T, 1, head_dim / 2] float32
    sin: Tensor,  # [T, 1, head_dim / 2] float32
) -> Tensor:  # [T, H, head_dim]
    """Rotary embedding (Su et al., 2021), pairs being the i-th entries of a head's two halves."""
    first, second = heads.float().chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned.to(heads.dtype)
