"""Opens a model by name: the demo model or a local GGUF file. Knows nothing of how models compute.

The model's tokenizer file goes into the cache under an id made from its own bytes. A key entry
stores that id with the file's SHA-256, and a detector on this machine finds the file by it; a model
file whose tokenizer is byte for byte that of the demo model gets the id "demo".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch

from tokenmark.engine.models.demo import fetch_demo
from tokenmark.engine.models.gguf import GgufCheckpoint, read_gguf
from tokenmark.engine.models.llama import LlamaConfig
from tokenmark.engine.models.tokenizer_file import tokenizer_json
from tokenmark.watermark.errors import ModelError
from tokenmark.watermark.tokenizers import TokenizerReference, store_tokenizer

__all__ = ["Checkpoint", "load_checkpoint"]

_DEMO: Final = "demo"
_SUFFIX: Final = ".gguf"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """All that serving a model needs; made by `load_checkpoint`."""

    name: str
    """What clients call the model: "demo", or the file's name without its ending."""
    config: LlamaConfig
    eos_ids: frozenset[int]
    chat_template: str | None = field(repr=False)
    """A Jinja template, or None where the model has no chat format."""
    tokenizer: TokenizerReference
    tokenizer_json: bytes = field(repr=False)
    gguf: GgufCheckpoint = field(repr=False)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names of Hugging Face's Llama state dict with float32 tensors, one at a time."""
        return self.gguf.tensors()


def load_checkpoint(source: str, *, cache: Path, progress: Callable[[str], None]) -> Checkpoint:
    """The model that `source` names: `demo`, or the path of a .gguf file.

    The demo model is fetched if it is not in the cache, and the model's tokenizer file is put
    there. Weights are read only when they are iterated.

    Raises:
        ModelError: the name is not understood, or the model cannot be fetched or read.
        TokenizerError: the cache cannot be written.
    """
    if source == _DEMO:
        name, path = _DEMO, fetch_demo(cache, progress)
    elif source.lower().endswith(_SUFFIX):
        path = Path(source)
        name = path.stem
    else:
        raise ModelError(
            f"the model {source!r} is not understood; give `{_DEMO}` or the path of a {_SUFFIX}"
            " file"
        )
    gguf = read_gguf(path)
    try:
        data = tokenizer_json(gguf.tokenizer)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    _, reference = store_tokenizer(data, cache=cache)
    return Checkpoint(
        name=name,
        config=gguf.config,
        eos_ids=frozenset({gguf.tokenizer.eos_id}),
        chat_template=gguf.chat_template,
        tokenizer=reference,
        tokenizer_json=data,
        gguf=gguf,
    )
