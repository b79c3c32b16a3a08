import dataclasses

import pytest
import torch
from torch import Tensor

from tests.demo_model import demo_checkpoint, demo_path
from tests.steps import all_logits
from tests.tiny_model import TINY, tiny_llama, tiny_tensors
from tokenmark.engine import batch
from tokenmark.engine.models import llama
from tokenmark.engine.models.llama import Llama, LlamaConfig
from tokenmark.kernels.attention import AttentionPlan, plan_attention
from tokenmark.watermark.errors import ModelError

CPU = torch.device("cpu")
PROMPT = [(7 * i * i + 3 * i) % TINY.vocab_size for i in range(50)]
CONFIGS = {
    "grouped heads": TINY,
    "one key-value head": dataclasses.replace(TINY, n_kv_heads=1),
    "every head its own": dataclasses.replace(TINY, n_kv_heads=4),
    "head_dim apart from hidden_size": dataclasses.replace(TINY, n_heads=8, head_dim=10),
    "another rotary base": dataclasses.replace(TINY, rope_theta=100_000.0, rms_eps=1e-3),
}


def theirs(config: LlamaConfig, tensors: dict[str, Tensor], prompt: list[int]) -> Tensor:
    """Logits [T, V] of Transformers for a model with these weights."""
    from transformers import LlamaConfig as TheirConfig  # noqa: PLC0415 - slow to import
    from transformers import LlamaForCausalLM  # noqa: PLC0415 - slow to import

    model = LlamaForCausalLM(
        TheirConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads,
            num_key_value_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.ffn_size,
            rms_norm_eps=config.rms_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            max_position_embeddings=config.max_positions,
            tie_word_embeddings="lm_head.weight" not in tensors,
        )
    )
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([prompt])).logits[0]
    return logits


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_logits_are_those_of_transformers(config: LlamaConfig, *, tied: bool) -> None:
    tensors = tiny_tensors(config, tied=tied)
    logits = all_logits(tiny_llama(config, tied=tied), PROMPT)
    torch.testing.assert_close(logits, theirs(config, tensors, PROMPT), atol=1e-4, rtol=0)


@pytest.mark.parametrize("n_tokens", [1, 2, 16, 17, 50])
def test_logits_of_a_prompt_do_not_depend_on_what_follows(n_tokens: int) -> None:
    model = tiny_llama()
    logits = all_logits(model, PROMPT)[:n_tokens]
    torch.testing.assert_close(all_logits(model, PROMPT[:n_tokens]), logits, atol=1e-5, rtol=0)


def test_more_rows_than_the_small_product_takes() -> None:
    prompt = PROMPT + PROMPT
    assert len(prompt) > llama._FEW_ROWS
    logits = all_logits(tiny_llama(), prompt)
    torch.testing.assert_close(logits, theirs(TINY, tiny_tensors(), prompt), atol=1e-4, rtol=0)


def test_bfloat16_is_near_float32() -> None:
    model = tiny_llama(dtype=torch.bfloat16)
    logits, exact = all_logits(model, PROMPT), all_logits(tiny_llama(), PROMPT)
    assert model.dtype == logits.dtype == torch.bfloat16
    error = (logits - exact).abs().mean() / exact.std()
    assert 0 < error < 0.05


def interleaved(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The other layout of rotary embedding: pairs are neighbours."""
    first, second = heads[..., 0::2], heads[..., 1::2]
    pairs = [first * cos - second * sin, second * cos + first * sin]
    return torch.stack(pairs, dim=-1).flatten(-2)


def test_interleaved_rotary_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    right = all_logits(model, PROMPT)
    monkeypatch.setattr(llama, "_turned", interleaved)
    assert (all_logits(model, PROMPT) - right).abs().max() > 0.1


def test_a_missing_causal_mask_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmasked(**arguments: object) -> AttentionPlan:
        plan = plan_attention(**arguments)  # type: ignore[arg-type] # passed on as they came
        groups = (
            dataclasses.replace(group, mask=group.mask[:, :, -1:].expand_as(group.mask))
            for group in plan.groups
        )
        return dataclasses.replace(plan, groups=tuple(groups))

    model = tiny_llama()
    right = all_logits(model, PROMPT)[-1]
    monkeypatch.setattr(batch, "plan_attention", unmasked)
    assert (all_logits(model, PROMPT)[-1] - right).abs().max() > 0.1


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"model.layers.1.mlp.up_proj.weight": None},
            "model.layers.1.mlp.up_proj.weight is missing",
        ),
        ({"model.layers.2.mlp.up_proj.weight": torch.ones(48, 32)}, "layers.2.* is unknown"),
        ({"model.norm.weight": torch.ones(31)}, r"norm.weight .* shape \[32\] .* got \[31\]"),
        ({"lm_head.weight": torch.ones(32, 97)}, r"lm_head.weight .* shape \[97, 32\]"),
        # Would fill its part of the fused matrix if only the sum of the rows were checked.
        (
            {"model.layers.0.self_attn.q_proj.weight": torch.ones(16, 32)},
            r"q_proj.* got \[16, 32\]",
        ),
    ],
    ids=["missing", "extra", "short norm", "transposed head", "misshapen part"],
)
def test_wrong_tensors_are_named(tensors: dict[str, Tensor | None], message: str) -> None:
    merged = tiny_tensors() | tensors
    given = ((name, tensor) for name, tensor in merged.items() if tensor is not None)
    with pytest.raises(ModelError, match=message):
        Llama.from_tensors(TINY, given, dtype=torch.float32, device=CPU)


def test_a_tensor_that_comes_twice_is_refused() -> None:
    twice = [*tiny_tensors().items(), ("model.norm.weight", torch.ones(32))]
    with pytest.raises(ModelError, match=r"model\.norm\.weight is unknown or comes twice"):
        Llama.from_tensors(TINY, twice, dtype=torch.float32, device=CPU)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("vocab_size", 0, "vocab_size .* positive and finite, got 0"),
        ("n_layers", -1, "n_layers .* got -1"),
        ("rms_eps", float("nan"), "rms_eps .* got nan"),
        ("rope_theta", float("inf"), "rope_theta .* got inf"),
        ("n_kv_heads", 3, "multiple of n_kv_heads=3, got 4"),
        ("head_dim", 7, "head_dim .* even, got 7"),
    ],
)
def test_shapes_that_no_model_has(field: str, value: float, message: str) -> None:
    fields = dataclasses.asdict(TINY) | {field: value}
    with pytest.raises(ModelError, match=message):
        LlamaConfig(**fields)


@pytest.mark.weights
def test_the_demo_model_is_the_one_that_transformers_reads() -> None:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - slow to import

    path, checkpoint = demo_path(), demo_checkpoint()
    tensors = checkpoint.tensors()
    model = Llama.from_tensors(checkpoint.config, tensors, dtype=torch.float32, device=CPU)
    other = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    for prompt in ([1], list(range(100, 400, 3)), [1, 4093, 198, 2683, 359, 253, 5356, 5646]):
        with torch.inference_mode():
            expected = other(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(all_logits(model, prompt), expected, atol=1e-3, rtol=0)
