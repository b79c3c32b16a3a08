import dataclasses

import pytest

from tokenmark.engine.config import EngineConfig
from tokenmark.watermark.errors import CapacityError


@pytest.mark.parametrize(
    "name",
    [
        "max_model_len",
        "n_blocks",
        "block_size",
        "max_batched_tokens",
        "max_running",
        "max_queued",
    ],
)
def test_every_limit_is_at_least_one(name: str) -> None:
    limits = {"max_model_len": 1, "n_blocks": 1} | {name: 0}
    with pytest.raises(CapacityError, match=rf"^{name} must be at least 1, got 0"):
        EngineConfig(**limits)


def test_the_blocks_hold_one_whole_sequence() -> None:
    assert EngineConfig(max_model_len=64, n_blocks=4).n_blocks_of(64) == 4
    with pytest.raises(CapacityError, match=r"hold 64 tokens.*max_model_len=65.*--max-model-len"):
        EngineConfig(max_model_len=65, n_blocks=4)


def test_a_configuration_does_not_change() -> None:
    config = EngineConfig(max_model_len=64, n_blocks=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.n_blocks = 5  # type: ignore[misc]  # the attempt is what is tested


@pytest.mark.parametrize(("n_tokens", "n_blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (64, 4)])
def test_blocks_are_filled_in_whole(n_tokens: int, n_blocks: int) -> None:
    assert EngineConfig(max_model_len=64, n_blocks=4).n_blocks_of(n_tokens) == n_blocks
