"""Writes GGUF files of a tiny random Llama with a byte-level vocabulary."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

from tokenmark.engine.models.llama import LlamaConfig

MERGES = ("t h", "th e", "Ġ the", "1 2", "Ġ 1")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOKENS = (*SPECIAL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES))
TOKEN_TYPES = (*(3 for _ in SPECIAL), *(1 for _ in TOKENS[len(SPECIAL) :]))
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CONFIG = LlamaConfig(
    vocab_size=len(TOKENS),
    hidden_size=32,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,  # not hidden_size / n_heads, so that nothing can confuse the two
    ffn_size=64,
    rms_eps=2.0**-17,
    rope_theta=1e5,
    max_positions=128,
)

Metadata = dict[str, Any]
Weights = dict[str, NDArray[np.float32]]


def tiny_metadata() -> Metadata:
    """The metadata of `CONFIG`; a test changes what it wants broken."""
    return {
        "general.name": "Tiny",
        "llama.vocab_size": CONFIG.vocab_size,
        "llama.embedding_length": CONFIG.hidden_size,
        "llama.block_count": CONFIG.n_layers,
        "llama.attention.head_count": CONFIG.n_heads,
        "llama.attention.head_count_kv": CONFIG.n_kv_heads,
        "llama.attention.key_length": CONFIG.head_dim,
        "llama.attention.value_length": CONFIG.head_dim,
        "llama.feed_forward_length": CONFIG.ffn_size,
        "llama.attention.layer_norm_rms_epsilon": CONFIG.rms_eps,
        "llama.rope.freq_base": CONFIG.rope_theta,
        "llama.rope.dimension_count": CONFIG.head_dim,
        "llama.context_length": CONFIG.max_positions,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": list(TOKENS),
        "tokenizer.ggml.token_type": list(TOKEN_TYPES),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def tiny_weights(*, seed: int = 0, tied: bool = True) -> Weights:
    """Random tensors under their GGUF names, rows of q and k in GGUF's order."""
    generator = np.random.default_rng(seed)
    hidden, ffn = CONFIG.hidden_size, CONFIG.ffn_size
    q_rows, kv_rows = CONFIG.n_heads * CONFIG.head_dim, CONFIG.n_kv_heads * CONFIG.head_dim
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (CONFIG.vocab_size, hidden)}
    for number in range(CONFIG.n_layers):
        shapes |= {
            f"blk.{number}.attn_norm": (hidden,),
            f"blk.{number}.attn_q": (q_rows, hidden),
            f"blk.{number}.attn_k": (kv_rows, hidden),
            f"blk.{number}.attn_v": (kv_rows, hidden),
            f"blk.{number}.attn_output": (hidden, q_rows),
            f"blk.{number}.ffn_norm": (hidden,),
            f"blk.{number}.ffn_gate": (ffn, hidden),
            f"blk.{number}.ffn_up": (ffn, hidden),
            f"blk.{number}.ffn_down": (hidden, ffn),
        }
    shapes["output_norm"] = (hidden,)
    if not tied:
        shapes["output"] = (CONFIG.vocab_size, hidden)
    return {
        f"{name}.weight": generator.standard_normal(shape, dtype=np.float32) / 4
        for name, shape in shapes.items()
    }


def write_gguf(
    path: Path,
    *,
    metadata: Metadata | None = None,
    weights: Weights | None = None,
    encoding: GGMLQuantizationType = GGMLQuantizationType.F32,
    architecture: str = "llama",
) -> Path:
    """A GGUF file of the given parts; matrices are packed in `encoding`, vectors never."""
    writer = GGUFWriter(None, architecture)
    for key, value in (tiny_metadata() if metadata is None else metadata).items():
        _adder(writer, value)(key, value)
    for name, numbers in (tiny_weights() if weights is None else weights).items():
        used = encoding if numbers.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(numbers, used), raw_dtype=used)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _adder(writer: GGUFWriter, value: object) -> Callable[[str, Any], None]:
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    return adders[type(value)]
