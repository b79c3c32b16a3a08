"""The demo model for tests marked `weights`: fetched once into this user's cache."""

from functools import cache
from pathlib import Path

from tokenmark.engine.models.demo import fetch_demo
from tokenmark.engine.models.gguf import GgufCheckpoint, read_gguf
from tokenmark.watermark.locations import cache_folder


@cache
def demo_path() -> Path:
    return fetch_demo(cache_folder(), print)


@cache
def demo_checkpoint() -> GgufCheckpoint:
    return read_gguf(demo_path())
