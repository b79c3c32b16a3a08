from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from tests.tiny_gguf import write_gguf
from tokenmark.engine.build import Hardware, Stage, build_served_model
from tokenmark.engine.models.loader import Checkpoint, load_checkpoint
from tokenmark.engine.served_model import ServedModel
from tokenmark.watermark.errors import CapacityError, ModelError

CPU = Hardware(device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    return load_checkpoint(str(path), cache=tmp_path / "cache", progress=print)


def build(checkpoint: Checkpoint, max_model_len: int | None = None) -> ServedModel:
    return build_served_model(
        checkpoint,
        hardware=CPU,
        max_model_len=max_model_len,
        mark=None,
        progress=lambda _stage: None,
    )


def test_the_stages_come_in_order(checkpoint: Checkpoint) -> None:
    stages: list[Stage] = []
    model = build_served_model(
        checkpoint, hardware=CPU, max_model_len=None, mark=None, progress=stages.append
    )
    assert stages == [Stage.BUILD, Stage.COMPILE, Stage.WARM_UP, Stage.READY]
    assert model.max_model_len == checkpoint.config.max_positions
    assert model.chat is not None


@pytest.mark.parametrize("length", [0, 1, 129])
def test_a_length_that_the_model_does_not_have_is_refused(
    checkpoint: Checkpoint, length: int
) -> None:
    with pytest.raises(CapacityError, match="max-model-len"):
        build(checkpoint, length)


def test_too_little_memory_for_one_sequence_is_said_with_both_numbers(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    with pytest.raises(CapacityError, match=r"needs .* MiB, and 0 MiB .*--max-model-len"):
        build(checkpoint)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "meta", "mps"])
def test_a_device_that_is_not_there_is_named(device: str) -> None:
    with pytest.raises(ModelError, match=f"device '{device}' (cannot be used|is not known)"):
        Hardware.choose(device, "auto")
