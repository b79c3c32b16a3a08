"""Published vectors of both recipes, then a plain-integer version of each as oracle."""

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmark.watermark.context import contexts_of, first_occurrence
from tokenmark.watermark.prf.synthid import (
    TABLE_START,
    before_first,
    iv_g_values,
    iv_start,
    repeated_contexts,
    sampling_table,
    table_g_values,
    window_hashes,
)

DEFAULT_KEYS = (
    *(654, 400, 836, 123, 340, 443, 597, 160, 57, 29, 590, 639, 13, 715, 468),
    *(990, 966, 226, 324, 585, 118, 504, 421, 521, 129, 669, 732, 225, 90, 960),
)
IDS = np.array(
    [
        *(101, 7, 7, 2048, 7, 2048, 7, 2048, 500, 31, 5, 9999, 7, 2048, 7, 2048),
        *(42, 42, 42, 42, 42, 42, 65535, 151643, 3, 1, 4, 1, 5, 9, 2, 6),
    ]
)
MASK_OF_IDS = "1111011111110111100111111111"

int64s = st.integers(-(2**63), 2**63 - 1)
key_lists = st.lists(int64s, max_size=6)
ngram_lists = st.integers(1, 5).flatmap(
    lambda n: st.lists(st.lists(int64s, min_size=n, max_size=n), min_size=1, max_size=5)
)


def signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def plain_step(state: int, addend: int) -> int:
    return signed((state + addend) * 6364136223846793005 + 1)


def plain_hash(ids: list[int], start: int) -> int:
    for token in ids:
        start = plain_step(start, token)
    return start


def plain_iv_start(keys: list[int]) -> int:
    digest = hashlib.sha256(b"".join(struct.pack("<q", key) for key in keys))
    return int(digest.hexdigest(), 16) % (2**63 - 1)


def plain_iv_bit(ngram: list[int], start: int, key: int) -> int:
    state = plain_step(plain_hash(ngram, start), key)
    for _ in range(12):
        state = plain_step(state, 1) >> 5
    return (state >> 30) % 2


def digits(bits: np.ndarray) -> str:
    return "".join(map(str, bits.tolist()))


@pytest.mark.parametrize(
    ("ngram", "expected"),
    [
        ([1, 2, 3, 4, 5], "010001100011101000101110010010"),
        ([5, 4, 3, 2, 1], "011100100000101011111010111001"),
    ],
)
def test_iv_g_values_are_as_published(ngram: list[int], expected: str) -> None:
    assert digits(iv_g_values(np.array([ngram]), DEFAULT_KEYS)[0]) == expected


@pytest.mark.parametrize(
    ("ngram", "expected"),
    [
        ([1, 2, 3, 4, 5], "001010010001011111001110001011"),
        ([5, 4, 3, 2, 1], "100110010110010101111101111100"),
    ],
)
def test_table_g_values_are_as_published(ngram: list[int], expected: str) -> None:
    bits = table_g_values(np.array([ngram]), DEFAULT_KEYS, sampling_table(0))
    assert digits(bits[0]) == expected


def test_starts_and_context_hashes_are_as_published() -> None:
    context = np.array([[1, 2, 3, 4]])
    assert iv_start(DEFAULT_KEYS) == 1614033703599872695
    assert window_hashes(context, iv_start(DEFAULT_KEYS)).tolist() == [8796668778096362653]
    assert window_hashes(context, TABLE_START).tolist() == [8268566681299659399]


def test_the_table_is_as_published() -> None:
    table = sampling_table(0)
    head = "0110111111100100000101100111101010110110010111110101111010011010"
    assert (digits(table[:64]), len(table), int(table.sum())) == (head, 65536, 32743)
    assert not table.flags.writeable


def test_the_table_depends_on_the_low_half_of_the_seed_alone() -> None:
    assert np.array_equal(sampling_table(2**32 + 3), sampling_table(3))
    assert not np.array_equal(sampling_table(2), sampling_table(3))
    assert np.array_equal(sampling_table(-1), sampling_table(2**32 - 1))
    # A longer table continues a shorter one.
    assert np.array_equal(sampling_table(3, 2**17)[: 2**16], sampling_table(3))


@pytest.mark.parametrize(
    ("recipe", "mean", "weighted_mean"),
    [("iv", 0.5263888889, 0.5319923372), ("table", 0.5194444444, 0.5141152908)],
)
def test_means_over_a_repetitive_text_are_as_published(
    recipe: str, mean: float, weighted_mean: float
) -> None:
    ngrams = np.lib.stride_tricks.sliding_window_view(IDS, 5)
    if recipe == "iv":
        start, values = iv_start(DEFAULT_KEYS), iv_g_values(ngrams, DEFAULT_KEYS)
    else:
        start = TABLE_START
        values = table_g_values(ngrams, DEFAULT_KEYS, sampling_table(0))
    scored = ~repeated_contexts(window_hashes(ngrams[:, :-1], start))
    assert digits(scored.astype(int)) == MASK_OF_IDS
    weights = np.linspace(10, 1, 30)
    by_depth = values[scored].mean(axis=0)
    assert by_depth.mean() == pytest.approx(mean, abs=6e-11)
    assert np.average(by_depth, weights=weights) == pytest.approx(weighted_mean, abs=6e-11)


@given(ngram_lists, key_lists)
def test_iv_g_values_are_the_plain_ones(ngrams: list[list[int]], keys: list[int]) -> None:
    start = plain_iv_start(keys)
    assert iv_start(keys) == start
    expected = [[plain_iv_bit(ngram, start, key) for key in keys] for ngram in ngrams]
    assert iv_g_values(np.array(ngrams), keys).tolist() == expected


@given(ngram_lists, key_lists, st.sampled_from([1, 2, 1000, 65536]))
def test_table_g_values_are_the_plain_ones(
    ngrams: list[list[int]], keys: list[int], size: int
) -> None:
    table = sampling_table(7, size)
    expected = [
        [table[plain_step(plain_hash(ngram, 1), key) % size] for key in keys] for ngram in ngrams
    ]
    assert table_g_values(np.array(ngrams), keys, table).tolist() == expected


@given(ngram_lists, st.integers(0, 2**63 - 1))
def test_hashes_are_the_plain_ones(windows: list[list[int]], start: int) -> None:
    expected = [plain_hash(window, start) for window in windows]
    assert window_hashes(np.array(windows), start).tolist() == expected


def test_ids_and_keys_count_modulo_the_size_of_the_table() -> None:
    table = sampling_table(0)
    ngrams = np.lib.stride_tricks.sliding_window_view(IDS, 5)
    shifted_keys = [key + 65536 for key in DEFAULT_KEYS]
    values = table_g_values(ngrams, DEFAULT_KEYS, table)
    assert np.array_equal(table_g_values(ngrams - 65536, shifted_keys, table), values)
    assert not np.array_equal(iv_g_values(ngrams - 65536, shifted_keys), values)


def test_no_ngrams_and_no_keys_have_no_values() -> None:
    nothing = np.empty((0, 5), dtype=np.int64)
    assert iv_g_values(nothing, DEFAULT_KEYS).shape == (0, 30)
    assert table_g_values(nothing, DEFAULT_KEYS, sampling_table(0)).shape == (0, 30)
    assert iv_g_values(np.ones((2, 5), dtype=np.int64), ()).shape == (2, 0)


def test_keys_beyond_64_bits_are_no_keys() -> None:
    for keys in ([2**63], [-(2**63) - 1]):
        with pytest.raises(OverflowError):
            iv_g_values(np.ones((1, 5), dtype=np.int64), keys)
        with pytest.raises(OverflowError):
            table_g_values(np.ones((1, 5), dtype=np.int64), keys, sampling_table(0))


@given(st.lists(st.integers(-2, 2), max_size=40), st.integers(1, 6))
def test_repeated_contexts_are_those_in_a_ring(hashes: list[int], history_size: int) -> None:
    ring, expected = [0] * history_size, []
    for value in hashes:
        expected.append(value in ring)
        ring = [*ring[1:], value]
    found = repeated_contexts(np.array(hashes, dtype=np.int64), history_size=history_size)
    assert found.tolist() == expected


@pytest.mark.parametrize(("distance", "repeated"), [(1024, True), (1025, False)])
def test_the_ring_remembers_1024_contexts(*, distance: int, repeated: bool) -> None:
    hashes = np.arange(1, distance + 2)
    hashes[-1] = hashes[0]
    assert repeated_contexts(hashes)[-1] == repeated


@given(st.lists(st.integers(0, 3), max_size=80), st.integers(1, 4))
def test_within_the_ring_repeated_means_what_it_means_elsewhere(ids: list[int], width: int) -> None:
    contexts = contexts_of(np.array(ids, dtype=np.int64), width, padding=0)
    repeated = repeated_contexts(window_hashes(contexts, TABLE_START))
    assert np.array_equal(~repeated, first_occurrence(contexts))


@given(st.lists(st.integers(0, 3), max_size=10))
def test_tokens_are_scored_before_the_first_end(ids: list[int]) -> None:
    expected = [2 not in ids[: i + 1] for i in range(len(ids))]
    assert before_first(np.array(ids, dtype=np.int64), 2).tolist() == expected
