"""Published vectors of the shuffle and the green lists, then a plain-integer version as oracle."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmark.watermark.context import first_occurrence
from tokenmark.watermark.errors import SchemeError
from tokenmark.watermark.prf import mersenne
from tokenmark.watermark.prf.kgw import green_list_size, greens, lefthash_seeds, selfhash_seeds

Scheme = Callable[[np.ndarray, int], np.ndarray]

DEFAULT_KEY = 15485863
TABLE_SIZE = 1_000_003
# Repeats, a run of one id, ids near the ends of the vocabulary.
IDS = np.array(
    [
        *(101, 7, 7, 2048, 7, 2048, 7, 2048, 500, 31, 5, 9999, 7, 2048, 7, 2048),
        *(42, 42, 42, 42, 42, 42, 65535, 151643, 3, 1, 4, 1, 5, 9, 2, 6),
    ]
)


def signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


class PlainTwister:
    """MT19937 in Python integers, after Matsumoto and Nishimura (1998)."""

    def __init__(self, seed: int) -> None:
        self._state = [seed]
        for i in range(1, 624):
            last = self._state[-1]
            self._state.append((1812433253 * (last ^ last >> 30) + i) % 2**32)
        self._next = 624

    def word(self) -> int:
        if self._next == 624:
            for i in range(624):
                joined = self._state[i] & 2**31 | self._state[(i + 1) % 624] & (2**31 - 1)
                twisted = joined >> 1 ^ (0x9908B0DF if joined & 1 else 0)
                self._state[i] = self._state[(i + 397) % 624] ^ twisted
            self._next = 0
        y = self._state[self._next]
        self._next += 1
        y ^= y >> 11
        y ^= y << 7 & 0x9D2C5680
        y ^= y << 15 & 0xEFC60000
        return y ^ y >> 18


def plain_permutation(seed: int, n_items: int) -> list[int]:
    twister, items = PlainTwister(seed % 2**32), list(range(n_items))
    for i in range(n_items - 1):
        z = twister.word() % (n_items - i)
        items[i], items[i + z] = items[i + z], items[i]
    return items


def plain_selfhash_seed(window: Sequence[int], key: int, table: Sequence[int]) -> int:
    last = table[window[-1] % TABLE_SIZE] + 1
    return min(signed(key * (table[x % TABLE_SIZE] + 1) * last) for x in window)


def ngrams_of(ids: np.ndarray, width: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(ids, width)


def greens_of(ngrams: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    return greens(seeds, ngrams[:, -1], vocab_size=152_000, ratio=0.25)


def test_words_are_those_of_the_c_plus_plus_standard() -> None:
    assert mersenne.words(5489, 10_000)[-1] == 4123659995


@given(st.integers(0, 2**32 - 1))
def test_words_are_the_plain_ones(seed: int) -> None:
    twister = PlainTwister(seed)
    assert mersenne.words(seed, 700).tolist() == [twister.word() for _ in range(700)]


@pytest.mark.parametrize(("seed", "same"), [(2**32 + 5, 5), (2**64 - 1, -1), (-1, 2**32 - 1)])
def test_the_low_half_of_a_seed_counts(seed: int, same: int) -> None:
    assert np.array_equal(mersenne.words(seed, 9), mersenne.words(same, 9))


@pytest.mark.parametrize(
    ("n_items", "seed", "head"),
    [
        (1000, DEFAULT_KEY, [958, 725, 179, 426, 565, 666]),
        (50_257, DEFAULT_KEY * 13, [36156, 24036, 10025, 3784, 3772, 31161]),
        (1_000_003, DEFAULT_KEY, [138280, 994103, 467886, 915329, 149437, 806681]),
        (151_936, DEFAULT_KEY * 151643, [108770, 111958, 94212, 59563, 7275, 98952]),
    ],
)
def test_a_permutation_begins_as_published(n_items: int, seed: int, head: list[int]) -> None:
    permutation = mersenne.permutation(seed, n_items)
    assert permutation[:6].tolist() == head
    # The head is found again without the permutation, and nothing beside it.
    items = np.concatenate([permutation[:8], [0, 1, n_items - 1]])
    expected = [item in head for item in items.tolist()]
    assert mersenne.in_permutation_head(seed, n_items, 6, items).tolist() == expected


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.data())
def test_every_head_of_a_permutation_is_found_without_it(
    seed: int, n_items: int, data: st.DataObject
) -> None:
    expected = plain_permutation(seed, n_items)
    assert mersenne.permutation(seed, n_items).tolist() == expected
    n_head = data.draw(st.integers(0, n_items - 1))
    # The two ids past the end are nowhere in the permutation.
    found = mersenne.in_permutation_head(seed, n_items, n_head, np.arange(n_items + 2))
    assert np.flatnonzero(found).tolist() == sorted(expected[:n_head])


def test_one_item_is_a_permutation() -> None:
    assert mersenne.permutation(1, 1).tolist() == [0]


@pytest.mark.parametrize(
    ("window", "seed"),
    [
        ([5], -8369537864986617604),
        ([1, 2, 3, 4], 345825892115113372),
        ([100, 200, 300, 400], -8651878728926707953),
    ],
)
def test_selfhash_seeds_are_as_published(window: list[int], seed: int) -> None:
    assert selfhash_seeds(np.array([window]), DEFAULT_KEY).tolist() == [seed % (2**64 - 1)]


@pytest.mark.parametrize("key", [DEFAULT_KEY, -DEFAULT_KEY])
def test_selfhash_seeds_are_the_plain_ones(key: int) -> None:
    table = mersenne.permutation(key, TABLE_SIZE).tolist()
    ids = np.random.default_rng(1).integers(0, 2**31, 2000)
    for width in (1, 2, 4):
        ngrams = ngrams_of(ids, width)
        expected = [plain_selfhash_seed(row, key, table) for row in ngrams.tolist()]
        assert min(expected) < 0 < max(expected)
        assert selfhash_seeds(ngrams, key).tolist() == [seed % (2**64 - 1) for seed in expected]


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20),
)
def test_lefthash_seeds_are_products_that_do_not_wrap(key: int, ids: list[int]) -> None:
    ngrams = np.array([[17, token, 5] for token in ids])
    assert lefthash_seeds(ngrams, key).tolist() == [key * token % (2**64 - 1) for token in ids]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 45)), max_size=30),
    st.sampled_from([0.1, 0.25, 0.5, 0.99]),
    st.integers(0, 2**64 - 4),
)
def test_greens_are_the_heads_of_the_permutations(
    rows: list[tuple[int, int]], ratio: float, first_seed: int
) -> None:
    # Four seeds in a row, so that several rows share one; ids 40 to 45 are past the vocabulary.
    seeds = np.array([first_seed + offset for offset, _ in rows], dtype=np.uint64)
    tokens = np.array([token for _, token in rows], dtype=np.int64)
    expected = [
        token in plain_permutation(seed, 40)[: int(40 * ratio)]
        for seed, token in zip(seeds.tolist(), tokens.tolist(), strict=True)
    ]
    assert greens(seeds, tokens, vocab_size=40, ratio=ratio).tolist() == expected


def test_greens_of_a_large_vocabulary_are_the_plain_ones() -> None:
    n_vocab = 152_000
    green_set = set(plain_permutation(DEFAULT_KEY, n_vocab)[: n_vocab // 4])
    tokens = np.arange(0, n_vocab, 101)
    found = greens(
        np.full(tokens.size, DEFAULT_KEY, dtype=np.uint64), tokens, vocab_size=n_vocab, ratio=0.25
    )
    assert found.tolist() == [token in green_set for token in tokens.tolist()]


@pytest.mark.parametrize(
    ("scheme", "width", "pattern"),
    [
        (lefthash_seeds, 2, "0110101100001011111110010101010"),
        (selfhash_seeds, 4, "10101001001010000000111011000"),
    ],
)
def test_greens_of_a_repetitive_text_are_as_published(
    scheme: Scheme, width: int, pattern: str
) -> None:
    ngrams = ngrams_of(IDS, width)
    green = greens_of(ngrams, scheme(ngrams, DEFAULT_KEY))
    assert green.tolist() == [digit == "1" for digit in pattern]


@pytest.mark.parametrize(
    ("scheme", "width", "n_scored", "n_green"),
    [
        (lefthash_seeds, 2, 31, 17),
        (lefthash_seeds, 3, 30, 17),
        (selfhash_seeds, 1, 32, 7),
        (selfhash_seeds, 4, 29, 11),
    ],
)
def test_counts_of_a_repetitive_text_are_as_published(
    scheme: Scheme, width: int, n_scored: int, n_green: int
) -> None:
    ngrams = ngrams_of(IDS, width)
    green = greens_of(ngrams, scheme(ngrams, DEFAULT_KEY))
    assert (len(green), int(green.sum())) == (n_scored, n_green)


@pytest.mark.parametrize(
    ("scheme", "width", "n_distinct", "n_green"),
    [(lefthash_seeds, 2, 21, 9), (lefthash_seeds, 3, 23, 12), (selfhash_seeds, 4, 25, 9)],
)
def test_counts_of_distinct_ngrams_are_as_published(
    scheme: Scheme, width: int, n_distinct: int, n_green: int
) -> None:
    ngrams = ngrams_of(IDS, width)
    ngrams = ngrams[first_occurrence(ngrams)]
    green = greens_of(ngrams, scheme(ngrams, DEFAULT_KEY))
    assert (len(green), int(green.sum())) == (n_distinct, n_green)


@pytest.mark.parametrize(
    ("scheme", "width", "z", "error"),
    [
        (lefthash_seeds, 2, 3.8367, 5e-5),
        (selfhash_seeds, 1, -0.408, 5e-4),
        (selfhash_seeds, 4, 1.608, 5e-4),
    ],
)
def test_z_values_of_a_repetitive_text_are_as_published(
    scheme: Scheme, width: int, z: float, error: float
) -> None:
    ngrams = ngrams_of(IDS, width)
    green = greens_of(ngrams, scheme(ngrams, DEFAULT_KEY))
    deviation = math.sqrt(green.size * 0.25 * 0.75)
    assert (green.sum() - green.size * 0.25) / deviation == pytest.approx(z, abs=error)


def test_distinct_ngrams_can_repeat_one_draw() -> None:
    # lefthash looks at one id of a longer context; selfhash only at the one with the least product.
    left = np.array([[5, 7, 9], [6, 7, 9]])
    assert len(set(lefthash_seeds(left, DEFAULT_KEY).tolist())) == 1
    own = np.array([[a, 31, 500, 2048] for a in range(200)])
    assert len(set(selfhash_seeds(own, DEFAULT_KEY).tolist())) < 100


def test_the_order_of_positions_does_not_matter() -> None:
    ngrams = ngrams_of(IDS, 2)
    green = greens_of(ngrams, lefthash_seeds(ngrams, DEFAULT_KEY))
    backwards = ngrams[::-1]
    assert np.array_equal(greens_of(backwards, lefthash_seeds(backwards, DEFAULT_KEY)), green[::-1])


def test_no_positions_have_no_greens() -> None:
    ngrams = np.empty((0, 2), dtype=np.int64)
    for scheme in (lefthash_seeds, selfhash_seeds):
        assert greens_of(ngrams, scheme(ngrams, DEFAULT_KEY)).shape == (0,)


@pytest.mark.parametrize(
    ("vocab_size", "ratio", "size"), [(50257, 0.25, 12564), (50257, 0.5, 25128), (3, 0.1, 0)]
)
def test_the_size_of_a_green_list_is_rounded_down(vocab_size: int, ratio: float, size: int) -> None:
    assert green_list_size(vocab_size, ratio) == size


@pytest.mark.parametrize(
    ("vocab_size", "ratio"), [(0, 0.5), (214_748_364, 0.5), (100, 0.0), (100, 1.0), (100, math.nan)]
)
def test_sizes_without_a_green_list_are_refused(vocab_size: int, ratio: float) -> None:
    with pytest.raises(SchemeError, match=r"vocab_size must be|ratio must lie"):
        green_list_size(vocab_size, ratio)
