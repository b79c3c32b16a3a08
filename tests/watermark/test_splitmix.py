"""ARBI's published and derived vectors, then the words against plain integers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmark.detector.pvalue import log_gamma_tail
from tokenmark.watermark.context import contexts_of, first_occurrence
from tokenmark.watermark.gumbel import exponentials, uniforms
from tokenmark.watermark.prf import splitmix

KEY = 0xC0FFEED00D1234
TOKENS = [0, 1, 17, 8191, 151643]
SHORT = [10, 11, 12, 13, 14, 15, 10, 11, 12, 13, 14, 99]
LIST = [101, 7, 7, 2048, 7, 2048, 7, 2048, 500, 31, 5, 9999, 7, 2048, 7, 2048, 42, 42, 42, 42]
LIST += [42, 42, 65535, 151643, 3, 1, 4, 1, 5, 9, 2, 6]

MASK_32 = 2**32 - 1
MASK_64 = 2**64 - 1
INCREMENT = 0x9E3779B97F4A7C15
PADDING = -1
windows = st.integers(1, 6).flatmap(
    lambda width: st.lists(
        st.lists(st.integers(0, MASK_32), max_size=width).map(
            lambda ids: [PADDING] * (width - len(ids)) + ids
        ),
        min_size=1,
        max_size=5,
    )
)


def key_words(key: int) -> np.ndarray:
    return np.array([key & MASK_32, key >> 32], dtype=np.uint32)


def plain_splitmix64(value: int) -> int:
    value = (value + INCREMENT) & MASK_64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK_64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK_64
    return value ^ value >> 31


def plain_seed(key: int, window: list[int]) -> int:
    value = key
    for place, token_id in enumerate(window):
        value = plain_splitmix64(value ^ plain_splitmix64((token_id + place * INCREMENT) & MASK_64))
    return value % 2**63


def plain_word(seed: int, token_id: int) -> int:
    """The first word of Philox4x32-10 on the counter (id, 0, 0, 0)."""
    a, b, c, d = token_id, 0, 0, 0
    for number in range(10):
        low_key = (seed + number * 0x9E3779B9) & MASK_32
        high_key = ((seed >> 32) + number * 0xBB67AE85) & MASK_32
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = right >> 32 ^ b ^ low_key, right & MASK_32
        c, d = left >> 32 ^ d ^ high_key, left & MASK_32
    return a


def seeds_of(states: np.ndarray) -> list[int]:
    return [low | high << 32 for low, high in states.tolist()]


def scores_after(prompt_len: int, token_ids: list[int]) -> np.ndarray:
    """Scores of the positions that are not the prompt's, nor the first of all."""
    first = max(prompt_len, 1)
    ids = np.array(token_ids)
    contexts = contexts_of(ids, 4, padding=PADDING)[first:]
    is_new = first_occurrence(contexts)
    states = splitmix.row_states(key_words(KEY), contexts[is_new])
    return exponentials(splitmix.words_at(states, ids[first:][is_new]))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (0, 0xE220A8397B1DCDAF),
        (1234567, 6457827717110365317),
        ((1234567 + INCREMENT) & MASK_64, 3203168211198807973),
    ],
)
def test_splitmix64_gives_its_known_answers(state: int, expected: int) -> None:
    assert splitmix.splitmix64(np.array([state], dtype=np.uint64)).tolist() == [expected]


@pytest.mark.parametrize(
    ("context", "seed", "expected"),
    [
        (
            [1, 2, 3, 4],
            0x30D330C8334D205F,
            [49581300, 1936131349, 1153374397, 3338987028, 1819469882],
        ),
        (
            [-1, -1, -1, 3],
            0x5C28312802246A3B,
            [449758952, 2061589783, 2735275202, 2205764396, 1655415866],
        ),
        (
            [4, 3, 2, 1],
            0x3E8B37B8D623C3D3,
            [2555269018, 1445430843, 1504064797, 772141266, 4214835397],
        ),
    ],
)
def test_seeds_and_words_of_the_recipe(context: list[int], seed: int, expected: list[int]) -> None:
    state = splitmix.row_states(key_words(KEY), np.array([context]))
    assert seeds_of(state) == [seed]
    words = splitmix.words_at(np.repeat(state, len(TOKENS), axis=0), np.array(TOKENS))
    assert words.tolist() == expected


@pytest.mark.parametrize(
    ("token_ids", "prompt_len", "n", "statistic", "p"),
    [
        (SHORT, 0, 9, "4.824960701", 0.942735493),
        (SHORT, 1, 9, "4.824960701", 0.942735493),
        (SHORT, 4, 6, "2.669152402", 0.945714712),
        (LIST, 0, 27, "28.9125877", 0.33594117),
    ],
)
def test_detection_of_the_recipe_never_scores_the_first_token(
    token_ids: list[int], prompt_len: int, n: int, statistic: str, p: float
) -> None:
    scores = scores_after(prompt_len, token_ids)
    assert scores.size == n
    assert f"{scores.sum():.{len(statistic.partition('.')[2])}f}" == statistic
    # The tail of the original is good to eight digits.
    assert math.exp(log_gamma_tail(n, float(scores.sum()))) == pytest.approx(p, abs=1e-8)


def test_padding_is_two_to_the_64_minus_one_and_not_the_largest_id() -> None:
    padded = splitmix.row_states(key_words(KEY), np.array([[-1, -1, -1, 3]]))
    largest = splitmix.row_states(key_words(KEY), np.array([[MASK_32, MASK_32, MASK_32, 3]]))
    assert not np.array_equal(padded, largest)


def test_a_token_with_a_word_at_the_top_has_a_finite_score() -> None:
    state = splitmix.row_states(key_words(KEY), np.array([[1, 2, 3, 4]]))
    words = splitmix.words_at(np.repeat(state, 2, axis=0), np.array([31084910, 79327422]))
    assert words.tolist() == [2**32 - 113, 2**32 - 103]
    assert (exponentials(words) < 33 * math.log(2)).all()
    # The control: in float32, as the original draws, their uniforms are no longer below 1.
    assert (uniforms(words).astype(np.float32) == 1.0).all()


def test_no_rows_have_no_words() -> None:
    states = splitmix.row_states(key_words(KEY), np.empty((0, 4), dtype=np.int64))
    assert states.shape == (0, 2)
    assert splitmix.words_at(states, np.empty(0, dtype=np.int64)).shape == (0,)


@given(st.integers(0, MASK_64), windows, st.integers(0, MASK_32))
def test_many_rows_at_once_are_the_plain_integers_one_by_one(
    key: int, rows: list[list[int]], token_id: int
) -> None:
    states = splitmix.row_states(key_words(key), np.array(rows))
    seeds = [plain_seed(key, row) for row in rows]
    assert seeds_of(states) == seeds
    ids = [(token_id + row) & MASK_32 for row in range(len(rows))]
    expected = [plain_word(seed, i) for seed, i in zip(seeds, ids, strict=True)]
    assert splitmix.words_at(states, np.array(ids)).tolist() == expected
