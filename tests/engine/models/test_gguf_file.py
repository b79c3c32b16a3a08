import math
import re
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.tiny_gguf import tiny_metadata, write_gguf
from tokenmark.engine.models.gguf import read_gguf
from tokenmark.engine.models.gguf_file import can_unpack, open_gguf
from tokenmark.watermark.errors import ModelError

T = GGMLQuantizationType
QUANTIZED = (T.F32, T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1)
K_QUANTS = (T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K)


def write_one(path: Path, packed: NDArray[np.generic], encoding: T) -> Path:
    writer = GGUFWriter(None, "llama")
    writer.add_tensor("x", packed, raw_dtype=encoding)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("encoding", QUANTIZED)
@pytest.mark.parametrize("shape", [(3, 64), (17, 96), (256, 32)])
def test_numbers_come_back_as_the_format_defines_them(
    tmp_path: Path, encoding: T, shape: tuple[int, int]
) -> None:
    numbers = np.random.default_rng(7).standard_normal(shape, dtype=np.float32)
    packed = quantize(numbers, encoding)
    file = open_gguf(write_one(tmp_path / "x.gguf", packed, encoding))
    unpacked = file.unpack("x", file.packed("x"))
    np.testing.assert_array_equal(unpacked, dequantize(packed, encoding))
    # Close to what was packed, so a wrong pairing of bytes and types cannot pass: half a step of
    # the coarsest encoding, four bits over about seven standard deviations.
    assert np.abs(unpacked - numbers).max() < 0.5
    assert unpacked.dtype == np.float32
    assert unpacked.flags.writeable
    assert unpacked.flags.owndata or unpacked.base.flags.owndata


@pytest.mark.parametrize("encoding", K_QUANTS)
def test_blocks_of_256_numbers_are_read(tmp_path: Path, encoding: T) -> None:
    block_bytes = GGML_QUANT_SIZES[encoding][1]
    # Bytes below 0x40 make every half-precision scale finite.
    packed = np.random.default_rng(7).integers(0, 0x40, (6, 2 * block_bytes), dtype=np.uint8)
    file = open_gguf(write_one(tmp_path / "x.gguf", packed, encoding))
    unpacked = file.unpack("x", file.packed("x"))
    assert unpacked.shape == (6, 512)
    np.testing.assert_array_equal(unpacked, dequantize(packed, encoding))


def test_types_without_a_reader_are_known() -> None:
    assert all(can_unpack(encoding) for encoding in (*QUANTIZED, *K_QUANTS))
    assert not can_unpack(T.I32)
    assert not can_unpack(T.F64)


def test_header_agrees_with_the_reference_reader(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    file, reference = open_gguf(path), GGUFReader(path)
    assert file.tensors.keys() == {tensor.name for tensor in reference.tensors}
    for tensor in reference.tensors:
        stored = file.tensors[tensor.name]
        assert stored.offset == tensor.data_offset
        assert stored.n_bytes == tensor.n_bytes
        assert stored.shape == tuple(reversed(tensor.shape.tolist()))
    for key, expected in tiny_metadata().items():
        read = file.metadata._values[key]
        assert read == (pytest.approx(expected) if isinstance(expected, float) else expected)


def test_alignment_of_the_file_is_used(tmp_path: Path) -> None:
    writer = GGUFWriter(None, "llama")
    writer.add_custom_alignment(256)
    writer.add_tensor("x", np.arange(4, dtype=np.float32))
    writer.add_tensor("y", np.arange(4, 8, dtype=np.float32))
    path = tmp_path / "x.gguf"
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_gguf(path)
    assert file.unpack("y", file.packed("y")).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "is not a GGUF file"),
        (b"GGU", "is not a GGUF file"),
        (b"PK\x03\x04 a wheel", "is not a GGUF file"),
        (b"GGUF", "ends within its header"),
        (b"GGUF" + (1).to_bytes(4, "little") + bytes(16), "version is 1"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(16), "version is 50331648"),
        (b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16, "ends within its header"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, contents: bytes, message: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(contents)
    with pytest.raises(ModelError, match=message) as caught:
        open_gguf(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["absent.gguf", "."])
def test_unreadable_paths_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        open_gguf(tmp_path / name)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    n_header = min(tensor.offset for tensor in open_gguf(tmp_path / "whole.gguf").tensors.values())
    path = tmp_path / "cut.gguf"
    # Every byte of the fixed header, a spread over the rest, and the last byte of the data.
    for size in (*range(64), *range(64, n_header, 61), n_header, len(whole) - 32):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=re.escape(str(path))):
            open_gguf(path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_headers_raise_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(write_gguf(tmp_path / "whole.gguf").read_bytes())
    n_header = min(tensor.offset for tensor in open_gguf(tmp_path / "whole.gguf").tensors.values())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, n_header - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(whole)
    try:
        checkpoint = read_gguf(path)
    except ModelError as error:
        assert str(path) in str(error)  # noqa: PT017 - an undamaged meaning is fine, too
    else:
        n_read = sum(tensor.numel() for _, tensor in checkpoint.tensors())
        stored = checkpoint.file.tensors.values()
        assert n_read == sum(math.prod(tensor.shape) for tensor in stored)
