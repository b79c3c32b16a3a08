from pathlib import Path

import pytest
import torch

from tests.tiny_gguf import CHAT_TEMPLATE, CONFIG, tiny_metadata, write_gguf
from tokenmark.engine.models import loader
from tokenmark.engine.models.loader import load_checkpoint
from tokenmark.watermark.errors import ModelError
from tokenmark.watermark.locations import cache_folder
from tokenmark.watermark.tokenizers import ALIASES, resolve_tokenizer


def test_a_local_file_is_opened(tmp_path: Path) -> None:
    path, cache = write_gguf(tmp_path / "Tiny.Q8_0.gguf"), tmp_path / "cache"
    checkpoint = load_checkpoint(str(path), cache=cache, progress=print)
    assert checkpoint.name == "Tiny.Q8_0"
    assert checkpoint.config == CONFIG
    assert checkpoint.eos_ids == {2}
    assert checkpoint.chat_template == CHAT_TEMPLATE
    names = [name for name, _ in checkpoint.tensors()]
    assert len(names) == len(set(names)) == 2 + 9 * CONFIG.n_layers


def test_its_tokenizer_is_found_again_by_the_id_of_a_key(tmp_path: Path) -> None:
    path, cache = write_gguf(tmp_path / "Tiny.gguf"), tmp_path / "cache"
    checkpoint = load_checkpoint(str(path), cache=cache, progress=print)
    found, reference = resolve_tokenizer(checkpoint.tokenizer.id, cache=cache)
    assert reference == checkpoint.tokenizer
    assert found.read_bytes() == checkpoint.tokenizer_json
    assert str(tmp_path) not in reference.id


def test_the_id_tells_nothing_of_the_model_file(tmp_path: Path) -> None:
    references = [
        load_checkpoint(
            str(write_gguf(tmp_path / name)), cache=tmp_path / "cache", progress=print
        ).tokenizer
        for name in ("a.gguf", "b.GGUF")
    ]
    assert references[0] == references[1]


def test_the_alias_is_fetched_into_the_given_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fetch(cache: Path, progress: object) -> Path:
        asked.append((cache, progress))
        return write_gguf(tmp_path / "SomeFile.gguf")

    monkeypatch.setattr(loader, "fetch_demo", fetch)
    checkpoint = load_checkpoint("demo", cache=tmp_path / "cache", progress=print)
    assert asked == [(tmp_path / "cache", print)]
    assert checkpoint.name == "demo"


@pytest.mark.parametrize("source", ["Demo", "", "gpt2", "owner/model", "model.safetensors"])
def test_other_names_are_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(ModelError, match=f"{source!r} is not understood; give `demo` or"):
        load_checkpoint(source, cache=tmp_path, progress=print)


def test_an_unsupported_tokenizer_names_the_file(tmp_path: Path) -> None:
    metadata = tiny_metadata() | {"tokenizer.ggml.pre": "llama-bpe"}
    path = write_gguf(tmp_path / "t.gguf", metadata=metadata)
    with pytest.raises(ModelError, match=r"t\.gguf: .*'llama-bpe' is not supported"):
        load_checkpoint(str(path), cache=tmp_path, progress=print)


@pytest.mark.weights
def test_the_demo_model() -> None:
    checkpoint = load_checkpoint("demo", cache=cache_folder(), progress=print)
    assert (checkpoint.tokenizer.id, checkpoint.tokenizer.sha256) == ("demo", ALIASES["demo"])
    assert checkpoint.eos_ids == {2}
    assert checkpoint.chat_template is not None
    assert "<|im_end|>" in checkpoint.chat_template
    config = checkpoint.config
    assert (config.n_layers, config.n_heads, config.n_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.vocab_size, config.hidden_size, config.ffn_size) == (49152, 576, 1536)
    n_numbers = 0
    for _, tensor in checkpoint.tensors():
        assert torch.isfinite(tensor).all()
        n_numbers += tensor.numel()
    assert n_numbers == 134_515_008
    assert resolve_tokenizer("demo")[1] == checkpoint.tokenizer


@pytest.mark.weights
def test_a_copy_of_the_demo_model_has_the_same_tokenizer_id(tmp_path: Path) -> None:
    from tests.demo_model import demo_path  # noqa: PLC0415 - fetches nothing unless it runs

    link = tmp_path / "Copy.gguf"
    link.symlink_to(demo_path())
    checkpoint = load_checkpoint(str(link), cache=tmp_path, progress=print)
    assert (checkpoint.name, checkpoint.tokenizer.id) == ("Copy", "demo")
