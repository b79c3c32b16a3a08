"""A random Llama small enough for any test, from a fixed seed. Knows nothing of files."""

from collections.abc import Iterator

import torch
from torch import Tensor

from tokenmark.engine.models.llama import Llama, LlamaConfig

__all__ = ["TINY", "tiny_llama", "tiny_tensors"]

TINY = LlamaConfig(
    vocab_size=97,
    hidden_size=32,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    ffn_size=48,
    rms_eps=1e-5,
    rope_theta=10_000.0,
    max_positions=128,
)


def _shapes(config: LlamaConfig, *, tied: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    size, ffn_size = config.hidden_size, config.ffn_size
    n_query_rows = config.n_heads * config.head_dim
    n_kv_rows = config.n_kv_heads * config.head_dim
    yield "model.embed_tokens.weight", (config.vocab_size, size)
    for i in range(config.n_layers):
        prefix = f"model.layers.{i}"
        yield f"{prefix}.input_layernorm.weight", (size,)
        yield f"{prefix}.self_attn.q_proj.weight", (n_query_rows, size)
        yield f"{prefix}.self_attn.k_proj.weight", (n_kv_rows, size)
        yield f"{prefix}.self_attn.v_proj.weight", (n_kv_rows, size)
        yield f"{prefix}.self_attn.o_proj.weight", (size, n_query_rows)
        yield f"{prefix}.post_attention_layernorm.weight", (size,)
        yield f"{prefix}.mlp.gate_proj.weight", (ffn_size, size)
        yield f"{prefix}.mlp.up_proj.weight", (ffn_size, size)
        yield f"{prefix}.mlp.down_proj.weight", (size, ffn_size)
    yield "model.norm.weight", (size,)
    if not tied:
        yield "lm_head.weight", (config.vocab_size, size)


def tiny_tensors(
    config: LlamaConfig = TINY, *, tied: bool = True, seed: int = 0
) -> dict[str, Tensor]:
    """The weights of a model, by Hugging Face's names, float32; the same for the same seed.

    They are large enough that attention is far from uniform and logits spread over several units.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in _shapes(config, tied=tied):
        noise = torch.randn(shape, generator=generator)
        # A matrix keeps the scale of its input; a norm stays near one.
        tensors[name] = 1 + 0.2 * noise if len(shape) == 1 else 1.5 * noise / shape[1] ** 0.5
    return tensors


def tiny_llama(
    config: LlamaConfig = TINY,
    *,
    tied: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Llama:
    """The model of `tiny_tensors` on the CPU."""
    tensors = tiny_tensors(config, tied=tied, seed=seed)
    return Llama.from_tensors(config, tensors.items(), dtype=dtype, device=torch.device("cpu"))
