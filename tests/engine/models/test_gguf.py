from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from tests.tiny_gguf import (
    CHAT_TEMPLATE,
    CONFIG,
    MERGES,
    TOKENS,
    Weights,
    tiny_metadata,
    tiny_weights,
    write_gguf,
)
from tokenmark.engine.models.gguf import TokenType, read_gguf
from tokenmark.watermark.errors import ModelError


def rotate_pairs(
    rows: NDArray[np.float64],  # [head_dim]
    position: int,
) -> NDArray[np.float64]:
    """Rotary embedding as GGUF's own engine applies it: neighbours 2i and 2i + 1 turn together."""
    angles = position * CONFIG.rope_theta ** (-np.arange(0, rows.size, 2) / rows.size)
    turned = (rows[0::2] + 1j * rows[1::2]) * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], axis=1).ravel()


def rotate_halves(
    rows: NDArray[np.float64],  # [head_dim]
    position: int,
) -> NDArray[np.float64]:
    """Rotary embedding as Hugging Face applies it: i and i + d/2 turn together."""
    half = rows.size // 2
    angles = position * CONFIG.rope_theta ** (-np.arange(half) / half)
    turned = (rows[:half] + 1j * rows[half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag])


def test_everything_but_the_weights(tmp_path: Path) -> None:
    checkpoint = read_gguf(write_gguf(tmp_path / "tiny.gguf"))
    assert checkpoint.config == CONFIG
    assert checkpoint.name == "Tiny"
    assert checkpoint.chat_template == CHAT_TEMPLATE
    tokenizer = checkpoint.tokenizer
    assert (tokenizer.model, tokenizer.pre, tokenizer.adds_bos) == ("gpt2", "smollm", False)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unknown_id) == (1, 2, 0)
    assert tokenizer.tokens == TOKENS
    assert tokenizer.merges == MERGES
    assert tokenizer.types[:4] == (*(TokenType.CONTROL,) * 3, TokenType.NORMAL)
    assert len(repr(checkpoint)) < 1000


def test_optional_metadata_has_the_defaults_of_the_format(tmp_path: Path) -> None:
    metadata = tiny_metadata()
    for key in (
        "general.name",
        "llama.vocab_size",
        "llama.attention.key_length",
        "llama.attention.value_length",
        "llama.rope.freq_base",
        "llama.rope.dimension_count",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.unknown_token_id",
        "tokenizer.ggml.add_bos_token",
        "tokenizer.chat_template",
    ):
        del metadata[key]
    metadata["llama.attention.head_count"] = 2  # so that 32 / 2 is the head size of the tensors
    weights = tiny_weights()
    for number in range(CONFIG.n_layers):
        weights[f"blk.{number}.attn_q.weight"] = weights[f"blk.{number}.attn_q.weight"][:32]
        weights[f"blk.{number}.attn_output.weight"] = weights[f"blk.{number}.attn_output.weight"][
            :, :32
        ].copy()
    checkpoint = read_gguf(write_gguf(tmp_path / "t.gguf", metadata=metadata, weights=weights))
    assert checkpoint.name == "t"
    assert checkpoint.chat_template is None
    assert checkpoint.config.head_dim == 16
    assert checkpoint.config.rope_theta == 10000.0
    assert checkpoint.config.vocab_size == len(TOKENS)
    assert checkpoint.tokenizer.bos_id is None
    assert checkpoint.tokenizer.unknown_id is None
    assert not checkpoint.tokenizer.adds_bos


@pytest.mark.parametrize("tied", [True, False])
def test_names_and_shapes_are_those_of_transformers(tmp_path: Path, *, tied: bool) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - slow to import

    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=CONFIG.vocab_size,
                hidden_size=CONFIG.hidden_size,
                num_hidden_layers=CONFIG.n_layers,
                num_attention_heads=CONFIG.n_heads,
                num_key_value_heads=CONFIG.n_kv_heads,
                head_dim=CONFIG.head_dim,
                intermediate_size=CONFIG.ffn_size,
            )
        )
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if tied:
        del expected["lm_head.weight"]
    path = write_gguf(tmp_path / "tiny.gguf", weights=tiny_weights(tied=tied))
    tensors = dict(read_gguf(path).tensors())
    assert {name: tensor.shape for name, tensor in tensors.items()} == expected
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    assert all(tensor.is_contiguous() for tensor in tensors.values())


def test_weights_that_do_not_rotate_are_as_stored(tmp_path: Path) -> None:
    weights = tiny_weights(tied=False)
    tensors = dict(read_gguf(write_gguf(tmp_path / "t.gguf", weights=weights)).tensors())
    for stored, name in (
        ("token_embd", "model.embed_tokens"),
        ("blk.0.attn_norm", "model.layers.0.input_layernorm"),
        ("blk.0.attn_v", "model.layers.0.self_attn.v_proj"),
        ("blk.0.attn_output", "model.layers.0.self_attn.o_proj"),
        ("blk.1.ffn_norm", "model.layers.1.post_attention_layernorm"),
        ("blk.1.ffn_gate", "model.layers.1.mlp.gate_proj"),
        ("blk.1.ffn_up", "model.layers.1.mlp.up_proj"),
        ("blk.1.ffn_down", "model.layers.1.mlp.down_proj"),
        ("output_norm", "model.norm"),
        ("output", "lm_head"),
    ):
        np.testing.assert_array_equal(
            tensors[f"{name}.weight"].numpy(), weights[f"{stored}.weight"]
        )


def attention_scores(
    q_weight: NDArray[np.float64],  # [n_heads * head_dim, hidden]
    k_weight: NDArray[np.float64],  # [n_kv_heads * head_dim, hidden]
    rotate: Callable[[NDArray[np.float64], int], NDArray[np.float64]],
) -> NDArray[np.float64]:  # [n_heads]
    """Products of queries at position 9 with keys at position 4, one a head."""
    generator = np.random.default_rng(3)
    x, y = generator.standard_normal((2, CONFIG.hidden_size))
    queries = (q_weight @ x).reshape(CONFIG.n_heads, CONFIG.head_dim)
    keys = (k_weight @ y).reshape(CONFIG.n_kv_heads, CONFIG.head_dim)
    group = CONFIG.n_heads // CONFIG.n_kv_heads
    return np.array(
        [rotate(query, 9) @ rotate(keys[head // group], 4) for head, query in enumerate(queries)]
    )


def test_queries_and_keys_fit_the_half_split_rotation(tmp_path: Path) -> None:
    weights = tiny_weights()
    tensors = dict(read_gguf(write_gguf(tmp_path / "t.gguf", weights=weights)).tensors())
    q_stored = weights["blk.1.attn_q.weight"].astype(np.float64)
    k_stored = weights["blk.1.attn_k.weight"].astype(np.float64)
    q_read = tensors["model.layers.1.self_attn.q_proj.weight"].numpy().astype(np.float64)
    k_read = tensors["model.layers.1.self_attn.k_proj.weight"].numpy().astype(np.float64)
    expected = attention_scores(q_stored, k_stored, rotate_pairs)
    np.testing.assert_allclose(attention_scores(q_read, k_read, rotate_halves), expected)
    # The rows as stored would not do.
    assert not np.allclose(attention_scores(q_stored, k_stored, rotate_halves), expected)


@pytest.mark.parametrize(
    ("encoding", "tolerance"),
    [
        (GGMLQuantizationType.F16, 1e-3),
        (GGMLQuantizationType.BF16, 1e-2),
        (GGMLQuantizationType.Q8_0, 1e-2),
        (GGMLQuantizationType.Q4_0, 0.2),
        (GGMLQuantizationType.Q4_1, 0.1),
    ],
)
def test_packed_weights_are_near_the_exact_ones(
    tmp_path: Path, encoding: GGMLQuantizationType, tolerance: float
) -> None:
    weights = tiny_weights()
    exact = read_gguf(write_gguf(tmp_path / "exact.gguf", weights=weights))
    packed = read_gguf(write_gguf(tmp_path / "t.gguf", weights=weights, encoding=encoding))
    for (name, expected), (packed_name, tensor) in zip(
        exact.tensors(), packed.tensors(), strict=True
    ):
        assert packed_name == name
        assert (tensor - expected).abs().max() < tolerance


def test_weights_do_not_depend_on_the_file_once_read(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "t.gguf")
    tensors = dict(read_gguf(path).tensors())
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    path.write_bytes(bytes(path.stat().st_size))
    assert all(torch.equal(tensors[name], tensor) for name, tensor in before.items())


def without(key: str) -> dict[str, Any]:
    metadata = tiny_metadata()
    del metadata[key]
    return metadata


@pytest.mark.parametrize(
    "key",
    [
        "llama.embedding_length",
        "llama.block_count",
        "llama.attention.head_count",
        "llama.feed_forward_length",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.context_length",
        "tokenizer.ggml.model",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.eos_token_id",
    ],
)
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    path = write_gguf(tmp_path / "t.gguf", metadata=without(key))
    with pytest.raises(ModelError, match=f"t.gguf: metadata '{key}' is missing.*convert"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.name", 1, "'general.name' must be a string"),
        ("llama.block_count", "two", "'llama.block_count' must be one integer"),
        ("llama.block_count", True, "'llama.block_count' must be one integer"),
        ("llama.attention.head_count", [4, 4], "head_count' must be one integer"),
        ("llama.rope.freq_base", 10000, "freq_base' must be one floating-point number"),
        ("tokenizer.ggml.add_bos_token", 1, "add_bos_token' must be true or false"),
        ("tokenizer.ggml.tokens", [1, 2], "tokens' must be a list of strings"),
        ("tokenizer.ggml.merges", "a b", "merges' must be a list of strings"),
        ("tokenizer.ggml.token_type", ["a"], "token_type' must be a list of integers"),
        ("tokenizer.ggml.token_type", [7], "must be a list of token types from 1 to 6"),
        ("tokenizer.ggml.token_type", [1, 1], "264 tokens and 2 token types"),
        ("tokenizer.ggml.eos_token_id", 264, "eos_token_id is 264, ids end at 263"),
        ("tokenizer.ggml.bos_token_id", 999, "bos_token_id is 999, ids end at 263"),
        ("llama.attention.head_count_kv", 3, "n_heads .*must be a multiple"),
        ("llama.attention.head_count", 0, "n_heads .*must be positive"),
        ("llama.block_count", 3, "tensor blk.2.attn_norm.weight is missing"),
        ("llama.feed_forward_length", 63, "ffn_gate.weight has the shape .* asks for"),
        ("llama.attention.value_length", 8, "value_length is 8 and heads have 16"),
        ("llama.rope.dimension_count", 8, "dimension_count is 8 and heads have 16"),
        ("llama.expert_count", 8, "mixture of experts"),
        ("llama.rope.scaling.type", "linear", "scaled rotary positions"),
        ("llama.rope.scale_linear", 2.0, "scaled rotary positions"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, key: str, value: object, message: str) -> None:
    path = write_gguf(tmp_path / "t.gguf", metadata=tiny_metadata() | {key: value})
    with pytest.raises(ModelError, match=message) as caught:
        read_gguf(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_unscaled_positions_may_say_so(tmp_path: Path) -> None:
    metadata = tiny_metadata() | {"llama.rope.scaling.type": "none"}
    assert read_gguf(write_gguf(tmp_path / "t.gguf", metadata=metadata)).config == CONFIG


def test_other_architectures_are_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "t.gguf", architecture="qwen3")
    with pytest.raises(ModelError, match="architecture 'qwen3' is not supported"):
        read_gguf(path)


def test_a_vocabulary_of_another_size_is_refused(tmp_path: Path) -> None:
    metadata = tiny_metadata()
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        metadata[key] = metadata[key][:-1]
    path = write_gguf(tmp_path / "t.gguf", metadata=metadata)
    with pytest.raises(ModelError, match="tokenizer has 263 tokens and the model 264"):
        read_gguf(path)


def changed_weights(name: str, numbers: NDArray[np.float32] | None) -> Weights:
    weights = tiny_weights()
    if numbers is None:
        del weights[name]
    else:
        weights[name] = numbers
    return weights


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("output_norm.weight", None, "output_norm.weight is missing"),
        ("blk.1.attn_k.weight", None, "blk.1.attn_k.weight is missing"),
        ("output_norm.weight", np.ones(31, np.float32), r"shape \(31,\).* asks for \(32,\)"),
        ("token_embd.weight", np.ones((32, 264), np.float32), r"asks for \(264, 32\)"),
        ("blk.0.attn_q.bias", np.ones(64, np.float32), "blk.0.attn_q.bias belongs to a variant"),
        ("rope_freqs.weight", np.ones(8, np.float32), "rope_freqs.weight belongs to a variant"),
    ],
)
def test_a_wrong_set_of_tensors_is_refused(
    tmp_path: Path, name: str, numbers: NDArray[np.float32] | None, message: str
) -> None:
    path = write_gguf(tmp_path / "t.gguf", weights=changed_weights(name, numbers))
    with pytest.raises(ModelError, match=message):
        read_gguf(path)


def test_numbers_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    writer = GGUFWriter(None, "llama")
    for key, value in tiny_metadata().items():
        if key.startswith("llama.") and isinstance(value, int):
            writer.add_uint32(key, value)
        elif key.startswith("llama."):
            writer.add_float32(key, value)
    writer.add_array("tokenizer.ggml.tokens", list(TOKENS))
    shape = (CONFIG.vocab_size, CONFIG.hidden_size)
    writer.add_tensor("token_embd.weight", np.zeros(shape, dtype=np.int32))
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"token_embd.weight is stored as I32, which.* F16"):
        read_gguf(path)
