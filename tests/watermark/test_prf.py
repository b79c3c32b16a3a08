"""The published vectors of the primitives, then every vector of the schemes built on them."""

from typing import Any

import numpy as np
import pytest

from tests.golden_files import load
from tokenmark.watermark.key import WatermarkKey, hkdf_sha256
from tokenmark.watermark.prf import chacha8, philox
from tokenmark.watermark.profiles import PROFILES

TM1 = load("tm1_vectors.json")
VLLM = load("vllm_prf_words.json")
CONTEXTS = [(key["key"], row) for key in TM1["keys"] for row in key["contexts"]]

KEY_0_TO_31 = np.frombuffer(bytes(range(32)), dtype="<u4").astype(np.uint32)


def little_endian_words(digits: str) -> list[int]:
    return np.frombuffer(bytes.fromhex(digits), dtype="<u4").tolist()


def tm1_row_key(key: str, context: list[int]) -> np.ndarray:
    profile = PROFILES["tm1"]
    stream_key = profile.source.stream_key(WatermarkKey.from_hex(key), len(context))
    return profile.source.row_states(stream_key, np.array([context]))


def test_twenty_rounds_give_the_rfc_8439_block() -> None:
    block = chacha8.chacha_block(
        KEY_0_TO_31[None],
        np.array([1], dtype=np.uint32),
        nonce=(0x09000000, 0x4A000000, 0),
        rounds=20,
    )
    expected = (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert block[0].tolist() == little_endian_words(expected)


def test_twenty_rounds_give_the_hchacha20_of_the_xchacha_draft() -> None:
    inputs = np.array([little_endian_words("000000090000004a0000000031415927")], dtype=np.uint32)
    subkey = chacha8.hchacha(KEY_0_TO_31[None], inputs, rounds=20)
    expected = "82413b4227b27bfed30e42508a877d73a0f9e4d58a74a853c12ec41326d3ecdc"
    assert subkey[0].tolist() == little_endian_words(expected)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (
            [0xFFFFFFFF] * 4,
            [0xFFFFFFFF] * 2,
            [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        ),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_random123_known_answers(
    counter: list[int], key: list[int], expected: list[int]
) -> None:
    output = philox.philox4x32(
        np.array([counter], dtype=np.uint32), np.array([key], dtype=np.uint32)
    )
    assert output[0].tolist() == expected


@pytest.mark.parametrize("row", TM1["keys"], ids=lambda row: row["key_id"])
def test_tm1_key_id(row: dict[str, Any]) -> None:
    assert WatermarkKey.from_hex(row["key"]).key_id == row["key_id"]


@pytest.mark.parametrize(("key", "row"), CONTEXTS)
def test_tm1_context_key_words_symbols_and_slots(key: str, row: dict[str, Any]) -> None:
    row_key = tm1_row_key(key, row["context"])
    assert row_key[0].tolist() == row["context_key"]
    for token_id, word in row["words"]:
        assert chacha8.words_at(row_key, np.array([token_id])).tolist() == [word]
    for token_id, symbol, word in row["symbol_words"]:
        index = np.array([(token_id + symbol) % 2**20])
        assert chacha8.words_at(row_key, index).tolist() == [word]
    for n_slots, slot in row["slots"]:
        assert chacha8.payload_slots(row_key, n_slots).tolist() == [slot]


@pytest.mark.parametrize("n_words", [1, 7, 127, 128, 2047, 2048, 2049, 49_152, 65_537])
@pytest.mark.parametrize("first", [0, 1, 2047, 2**16 - 1, 2**20 - 1])
def test_keystream_is_the_words_in_index_order(n_words: int, first: int) -> None:
    row_keys = np.concatenate([tm1_row_key(key, [1, 2, 3, 4]) for key in ("00" * 32, "ff" * 32)])
    stream = chacha8.keystream(row_keys, n_words, first=first)
    assert stream.shape == (2, n_words)
    indices = (first + np.arange(n_words)) % 2**20
    for row in range(2):
        each = chacha8.words_at(np.repeat(row_keys[row : row + 1], n_words, 0), indices)
        assert np.array_equal(stream[row], each)


@pytest.mark.parametrize("row", TM1["request"])
def test_tm1_request_keys_and_ordinary_rows(row: dict[str, Any]) -> None:
    seed = int(row["seed"]).to_bytes(8, "little", signed=True)
    info = f"tokenmark/request/choice={row['choice']}"
    request_key = np.frombuffer(hkdf_sha256(seed, info, 32), dtype="<u4").astype(np.uint32)
    assert request_key.tolist() == row["request_key"]
    for position, row_key, *words in row["ordinary"]:
        derived = chacha8.ordinary_row_keys(request_key[None], np.array([position]))
        assert derived[0].tolist() == row_key
        for token_id, word in words[0]:
            assert chacha8.words_at(derived, np.array([token_id])).tolist() == [word]


@pytest.mark.parametrize("row", VLLM["philox"])
def test_vllm_words_and_uniforms_are_bit_exact(row: dict[str, Any]) -> None:
    profile = PROFILES["vllm-gumbel"]
    context = np.array([row["context"]])
    key = WatermarkKey.from_integer(int(row["key"]))
    stream_key = profile.source.stream_key(key, context.shape[1])
    state = profile.source.row_states(stream_key, context)
    ids = np.array(row["token_ids"])
    words = profile.source.words_at(np.repeat(state, ids.size, axis=0), ids)
    assert words.tolist() == row["words_u32"]
    assert [float(u).hex() for u in philox.uniform_f32(words)] == [
        float.fromhex(text).hex() for text in row["uniform_f32_hex"]
    ]
    small = ids[ids < 4096]
    assert np.array_equal(philox.words(state, 4096)[0, small], words[ids < 4096])


@pytest.mark.parametrize("row", VLLM["uniform_cases"])
def test_vllm_uniform_at_both_ends(row: dict[str, Any]) -> None:
    u = philox.uniform_f32(np.array([row["word"]], dtype=np.uint32))[0]
    assert float(u).hex() == float.fromhex(row["hex"]).hex()


def test_flipping_one_bit_of_a_context_changes_half_of_the_bits() -> None:
    # 2,048 blocks x 32 bits: the standard error of the share is 0.002, so 0.02 is ten of them.
    key = tm1_row_key("00" * 32, [1, 2, 3, 4])
    other = tm1_row_key("00" * 32, [1, 2, 3, 5])
    flipped = np.bitwise_count(chacha8.keystream(key, 2048) ^ chacha8.keystream(other, 2048))
    assert abs(flipped.mean() / 32 - 0.5) < 0.02
