"""The GGUF container: metadata and where the tensors lie. Knows nothing of any architecture.

The header is parsed here, in one pass with every length checked against the file, because a
vocabulary of 50 thousand tokens must not take seconds and a damaged file must not be half read.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from tokenmark.watermark.errors import ModelError

__all__ = [
    "GgufFile",
    "GgufMetadata",
    "MetadataValue",
    "StoredTensor",
    "can_unpack",
    "open_gguf",
]

MetadataValue = bool | int | float | str | list[bool] | list[int] | list[float] | list[str]

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MAX_DIMENSIONS: Final = 4
_DEFAULT_ALIGNMENT: Final = 32
_BLOCKS_PER_ROW: Final = 256

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_STRING: Final = 8
_ARRAY: Final = 9
# Value types by number, as `struct` writes them; strings and arrays have no fixed size.
_SCALARS: Final[Mapping[int, str]] = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
)


class GgufMetadata:
    """Typed access to the metadata of one file, with errors that name file, key and rule."""

    __slots__ = ("_path", "_values")

    def __init__(self, path: Path, values: Mapping[str, MetadataValue]) -> None:
        self._path = path
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def error(self, message: str) -> ModelError:
        """An error about this file."""
        return ModelError(f"{self._path}: {message}")

    def _value(self, key: str, default: object) -> object:
        value = self._values.get(key, default)
        if value is None:
            raise self.error(f"metadata {key!r} is missing; convert the model anew")
        return value

    def wrong(self, key: str, expected: str) -> ModelError:
        """An error about a value of another kind than `expected`."""
        return self.error(f"metadata {key!r} must be {expected}; convert the model anew")

    def text(self, key: str, *, default: str | None = None) -> str:
        """The value as a string; the default, if any, where the key is missing."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def integer(self, key: str, *, default: int | None = None) -> int:
        """The value as one integer; `True` is none."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(key, "one integer")
        return value

    def real(self, key: str, *, default: float | None = None) -> float:
        """The value as one floating-point number."""
        value = self._value(key, default)
        if not isinstance(value, float):
            raise self.wrong(key, "one floating-point number")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """The value as a truth value."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """The value as a list of strings."""
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of strings")
        return tuple(value)

    def integers(self, key: str) -> tuple[int, ...]:
        """The value as a list of integers."""
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise self.wrong(key, "a list of integers")
        return tuple(value)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies in the file and how its numbers are packed."""

    shape: tuple[int, ...]
    """Sizes as torch counts them, the contiguous dimension last."""
    encoding: GGMLQuantizationType
    offset: int
    """First byte, counted from the beginning of the file."""
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GgufFile:
    """An open GGUF file. Made by `open_gguf`; the file must not change while this is in use."""

    path: Path
    metadata: GgufMetadata = field(repr=False)
    tensors: Mapping[str, StoredTensor] = field(repr=False)
    contents: mmap.mmap = field(repr=False)

    def packed(self, name: str) -> NDArray[np.uint8]:  # [rows, bytes a row], read-only
        """The bytes of a tensor as stored."""
        tensor = self.tensors[name]
        stored = np.frombuffer(self.contents, np.uint8, tensor.n_bytes, tensor.offset)
        return stored.reshape(math.prod(tensor.shape[:-1]), -1)

    def unpack(self, name: str, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The numbers of a tensor from its packed rows, in its shape and in memory of their own."""
        tensor = self.tensors[name]
        block_bytes = GGML_QUANT_SIZES[tensor.encoding][1]
        # `dequantize` works on sixteen rows at a time. Blocks are independent of rows, so rows of
        # 256 blocks make its steps long enough to be fast and short enough to stay in the cache.
        n_blocks = math.gcd(tensor.n_bytes // block_bytes, _BLOCKS_PER_ROW)
        rows = packed.reshape(-1, n_blocks * block_bytes)
        numbers: NDArray[np.float32] = dequantize(rows, tensor.encoding)
        if tensor.encoding is GGMLQuantizationType.F32:
            numbers = numbers.copy()
        return numbers.reshape(tensor.shape)


def can_unpack(encoding: GGMLQuantizationType) -> bool:
    """Whether numbers of this encoding can be read."""
    block = np.zeros((1, GGML_QUANT_SIZES[encoding][1]), dtype=np.uint8)
    try:
        dequantize(block, encoding)
    except NotImplementedError:
        return False
    return True


def open_gguf(path: Path) -> GgufFile:
    """The header of a GGUF file, versions 2 and 3, little-endian.

    Raises:
        ModelError: the file cannot be read, is no GGUF file, is cut short or is damaged.
    """
    try:
        with path.open("rb") as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:
                raise ModelError(f"{path} is not a GGUF file; give a model file that ends in .gguf")
            contents = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(
            f"{path} cannot be read: {error.strerror or error}; give the path of a .gguf file"
        ) from error
    try:
        metadata, tensors = _parse(contents)
    except _DamagedError as error:
        raise ModelError(
            f"{path} cannot be used: {error}; download it again or convert the model anew"
        ) from error
    return GgufFile(
        path=path,
        metadata=GgufMetadata(path, metadata),
        tensors=MappingProxyType(tensors),
        contents=contents,
    )


class _DamagedError(Exception):
    """What is wrong with the bytes; `open_gguf` adds the name of the file."""


class _Cursor:
    """Reads values one after the other and never past the end."""

    __slots__ = ("_contents", "_size", "offset")

    def __init__(self, contents: mmap.mmap) -> None:
        self._contents = contents
        self._size = len(contents)
        self.offset = len(_MAGIC)

    def take(self, n_bytes: int) -> bytes:
        end = self.offset + n_bytes
        if end > self._size:
            raise _DamagedError("it ends within its header")
        taken = self._contents[self.offset : end]
        self.offset = end
        return taken

    def u32(self) -> int:
        value: int = _U32.unpack(self.take(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack(self.take(8))[0]
        return value

    def text(self) -> str:
        raw = self.take(self.u64())
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _DamagedError(f"a string before byte {self.offset} is not UTF-8") from error

    def value(self) -> MetadataValue:
        kind = self.u32()
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        return self._numbers(kind, 1)[0]

    def _array(self) -> MetadataValue:
        kind, count = self.u32(), self.u64()
        if kind == _STRING:
            # Each string raises at the end of the file, so a wrong count cannot loop for long.
            return [self.text() for _ in range(count)]
        return self._numbers(kind, count)

    def _numbers(self, kind: int, count: int) -> list[bool] | list[int] | list[float]:
        code = _SCALARS.get(kind)
        if code is None:
            raise _DamagedError(f"a metadata value before byte {self.offset} has type {kind}")
        raw = self.take(count * struct.calcsize(f"<{code}"))
        return list(struct.unpack(f"<{count}{code}", raw))


def _parse(contents: mmap.mmap) -> tuple[dict[str, MetadataValue], dict[str, StoredTensor]]:
    cursor = _Cursor(contents)
    version = cursor.u32()
    if version not in _VERSIONS:
        raise _DamagedError(f"its GGUF version is {version}, this program reads 2 and 3")
    n_tensors, n_values = cursor.u64(), cursor.u64()
    metadata = {}
    for _ in range(n_values):
        key = cursor.text()
        metadata[key] = cursor.value()
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise _DamagedError(f"general.alignment must be a positive integer, got {alignment!r}")
    records = [_tensor_record(cursor) for _ in range(n_tensors)]
    start = -(-cursor.offset // alignment) * alignment
    tensors = {}
    for name, tensor in records:
        placed = StoredTensor(tensor.shape, tensor.encoding, start + tensor.offset, tensor.n_bytes)
        if placed.offset + placed.n_bytes > len(contents):
            raise _DamagedError(f"it ends before tensor {name} does")
        tensors[name] = placed
    return metadata, tensors


def _tensor_record(cursor: _Cursor) -> tuple[str, StoredTensor]:
    """A tensor's name and layout; its offset still counts from the beginning of the data."""
    name, n_dimensions = cursor.text(), cursor.u32()
    if not 1 <= n_dimensions <= _MAX_DIMENSIONS:
        raise _DamagedError(f"tensor {name} has {n_dimensions} dimensions")
    shape = tuple(cursor.u64() for _ in range(n_dimensions))[::-1]
    number, offset = cursor.u32(), cursor.u64()
    try:
        encoding = GGMLQuantizationType(number)
    except ValueError as error:
        raise _DamagedError(f"tensor {name} has the unknown type {number}") from error
    block_size, block_bytes = GGML_QUANT_SIZES[encoding]
    if 0 in shape or shape[-1] % block_size:
        raise _DamagedError(f"tensor {name} of shape {shape} does not fill {encoding.name} blocks")
    n_bytes = math.prod(shape) // block_size * block_bytes
    return name, StoredTensor(shape, encoding, offset, n_bytes)
