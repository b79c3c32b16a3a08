"""SGLang's published and derived vectors, then the words against plain integers."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmark.detector.pvalue import log_gamma_tail
from tokenmark.watermark.context import contexts_of, first_occurrence
from tokenmark.watermark.gumbel import exponentials, uniforms
from tokenmark.watermark.prf import murmur3

KEY = 0x0123456789ABCDEF
OTHER_KEY = 0xFEDCBA9876543210
KEY_B = 0x1111222233334444
TOKENS = [0, 1, 17, 8191, 8192, 16396]
HALF = 2**31
LIST = [101, 7, 7, 2048, 7, 2048, 7, 2048, 500, 31, 5, 9999, 7, 2048, 7, 2048, 42, 42, 42, 42]
LIST += [42, 42, 65535, 151643, 3, 1, 4, 1, 5, 9, 2, 6]

MASK = 2**32 - 1
FILLED = -1
# Rows of one window: fillings, then at least one id.
windows = st.integers(1, 6).flatmap(
    lambda width: st.lists(
        st.lists(st.integers(0, MASK), min_size=1, max_size=width).map(
            lambda ids: [FILLED] * (width - len(ids)) + ids
        ),
        min_size=1,
        max_size=5,
    )
)
keys = st.integers(0, 2**64 - 1)


def key_words(*values: int) -> np.ndarray:
    return np.array([word for key in values for word in (key & MASK, key >> 32)], dtype=np.uint32)


def plain_hash(*words: int) -> int:
    """MurmurHash3_x86_32 with seed 0, byte by byte, as it is defined for strings."""
    data = struct.pack(f"<{len(words)}I", *words)
    state = 0
    for start in range(0, len(data), 4):
        block = int.from_bytes(data[start : start + 4], "little") * 0xCC9E2D51 % 2**32
        block = (block * 2**15 | block >> 17) % 2**32 * 0x1B873593 % 2**32
        state ^= block
        state = ((state * 2**13 | state >> 19) % 2**32 * 5 + 0xE6546B64) % 2**32
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B % 2**32
    state = (state ^ state >> 13) * 0xC2B2AE35 % 2**32
    return state ^ state >> 16


def plain_context(window: list[int]) -> int:
    return plain_hash(*(token_id for token_id in window if token_id != FILLED))


def plain_word(key: int, window: list[int], token_id: int) -> int:
    return plain_hash(key & MASK, key >> 32, plain_context(window), token_id)


def token_of_word(state: int, word: int) -> int:
    """The only token id with this word in a row: every step after the state can be undone."""
    value = word ^ word >> 16
    value = value * pow(0xC2B2AE35, -1, 2**32) % 2**32
    value ^= value >> 13 ^ value >> 26
    value = value * pow(0x85EBCA6B, -1, 2**32) % 2**32
    value ^= value >> 16 ^ 16
    value = (value - 0xE6546B64) * pow(5, -1, 2**32) % 2**32
    value = (value >> 13 | value * 2**19) % 2**32 ^ state
    value = value * pow(0x1B873593, -1, 2**32) % 2**32
    value = (value >> 15 | value * 2**17) % 2**32
    return value * pow(0xCC9E2D51, -1, 2**32) % 2**32


def words_of(key: int, window: list[int], token_ids: list[int]) -> list[int]:
    state = murmur3.row_states(key_words(key), np.array([window]))
    return murmur3.words_at(np.repeat(state, len(token_ids), axis=0), np.array(token_ids)).tolist()


def new_contexts(prompt: list[int], width: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Contexts and ids of LIST that are scored after a prompt, and how many are repeated."""
    text = prompt[-width:] + LIST
    first = len(text) - len(LIST) if prompt else width
    contexts = contexts_of(np.array(text), width, padding=FILLED)[first:]
    is_new = first_occurrence(contexts)
    return contexts[is_new], np.array(text[first:])[is_new], int((~is_new).sum())


def to_digits_of(expected: str, value: float) -> str:
    return f"{value:.{len(expected.partition('.')[2])}f}"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\0\0\0\0", 0x2362F9DE),
        (b"\xff\xff\xff\xff", 0x76293B50),
        (b"\x21\x43\x65\x87", 0xF55B516B),
        (b"test", 0xBA6BD213),
    ],
)
def test_murmur3_gives_its_known_answers(data: bytes, expected: int) -> None:
    ids = np.array([[int.from_bytes(data, "little")]])
    assert murmur3.context_hashes(ids).tolist() == [expected]


def test_context_hashes_of_the_recipe() -> None:
    contexts = np.array([[1, 2, 3, 4], [4, 3, 2, 1]])
    assert murmur3.context_hashes(contexts).tolist() == [1145416960, 47748951]


@pytest.mark.parametrize(
    ("key", "context", "expected"),
    [
        (
            KEY,
            [1, 2, 3, 4],
            [1293512163, 858402549, 2305555132, 2450309311, 227333036, 2684237202],
        ),
        (
            OTHER_KEY,
            [4, 3, 2, 1],
            [221641642, 4015047244, 843143906, 1076944989, 3882127500, 2413234263],
        ),
    ],
)
def test_words_of_the_recipe(key: int, context: list[int], expected: list[int]) -> None:
    assert words_of(key, context, TOKENS) == expected


@pytest.mark.parametrize(
    ("key_a", "key_b", "context", "coin", "chosen"),
    [
        (KEY, KEY_B, [1, 2, 3, 4], 3157978494, KEY_B),
        (OTHER_KEY, 0x9999AAAABBBBCCCC, [4, 3, 2, 1], 857599151, OTHER_KEY),
    ],
)
def test_the_coin_of_the_recipe_chooses_the_key(
    key_a: int, key_b: int, context: list[int], coin: int, chosen: int
) -> None:
    both, contexts = key_words(key_a, key_b), np.array([context])
    assert murmur3.coins(both, murmur3.context_hashes(contexts)).tolist() == [coin]
    state = murmur3.dual_row_states(both, contexts, threshold=HALF)
    assert np.array_equal(state, murmur3.row_states(key_words(chosen), contexts))


def test_a_coin_at_the_threshold_chooses_key_b() -> None:
    both, contexts = key_words(KEY, KEY_B), np.array([[1, 2, 3, 4]])
    at = murmur3.dual_row_states(both, contexts, threshold=3157978494)
    above = murmur3.dual_row_states(both, contexts, threshold=3157978495)
    assert np.array_equal(at, murmur3.row_states(key_words(KEY_B), contexts))
    assert np.array_equal(above, murmur3.row_states(key_words(KEY), contexts))


def test_contexts_whose_hashes_collide_share_their_words_but_are_two_contexts() -> None:
    contexts = np.array([[55826, 167495], [62387, 187178]])
    hashes = murmur3.context_hashes(contexts)
    assert hashes[0] == hashes[1]
    assert words_of(KEY, [55826, 167495], TOKENS) == words_of(KEY, [62387, 187178], TOKENS)
    assert first_occurrence(contexts).tolist() == [True, True]


@pytest.mark.parametrize(
    ("n", "statistic", "expected"),
    [(3, 2.0, 0.6766764161830635), (murmur3.MAX_MARKED_CONTEXTS, 4096.0, 0.4979221728062154)],
)
def test_gamma_tails_of_the_recipe(n: int, statistic: float, expected: float) -> None:
    assert math.exp(log_gamma_tail(n, statistic)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("width", "prompt", "n", "repeated", "statistic", "p"),
    [
        (4, [], 24, 4, "38.15584858315461", "0.005760275326087"),
        # A prompt shorter than the window: the first contexts are shorter, and all are scored.
        (4, [11, 22], 28, 4, "45.5942594080269", "0.0020644378202"),
        (1, [], 15, 16, "14.383827627014428", "0.529825"),
    ],
)
def test_detection_of_the_recipe(
    width: int, prompt: list[int], n: int, repeated: int, statistic: str, p: str
) -> None:
    contexts, targets, n_repeated = new_contexts(prompt, width)
    states = murmur3.row_states(key_words(KEY), contexts)
    scores = exponentials(murmur3.words_at(states, targets))
    assert (scores.size, n_repeated) == (n, repeated)
    assert float(scores.sum()) == pytest.approx(float(statistic), rel=1e-14)
    assert to_digits_of(p, math.exp(log_gamma_tail(n, float(scores.sum())))) == p


def test_dual_detection_of_the_recipe_and_its_partition() -> None:
    contexts, targets, _ = new_contexts([], 4)
    both = key_words(KEY, KEY_B)
    states = murmur3.dual_row_states(both, contexts, threshold=HALF)
    scores = exponentials(murmur3.words_at(states, targets))
    assert float(scores.sum()) == pytest.approx(26.67805052813283, rel=1e-14)
    assert to_digits_of("0.275905", math.exp(log_gamma_tail(24, scores.sum()))) == "0.275905"
    is_a = murmur3.coins(both, murmur3.context_hashes(contexts)) < HALF
    assert (is_a.size, is_a.sum()) == (24, 11)
    for part, key in ((is_a, KEY), (~is_a, KEY_B)):
        alone = murmur3.row_states(key_words(key), contexts[part])
        assert np.array_equal(exponentials(murmur3.words_at(alone, targets[part])), scores[part])


def test_a_context_filled_up_is_the_shorter_context() -> None:
    filled, short = np.array([[-1, -1, 11, 22]]), np.array([[11, 22]])
    assert murmur3.context_hashes(filled).tolist() == murmur3.context_hashes(short).tolist()
    # Fillings as ids, as in recipes that pad with -1, give another context.
    padded = np.array([[MASK, MASK, 11, 22]])
    assert murmur3.context_hashes(padded)[0] != murmur3.context_hashes(short)[0]


@pytest.mark.parametrize("word", [0, HALF, 2**32 - 129, 2**32 - 128, 2**32 - 1])
def test_a_token_with_any_word_has_a_finite_score(word: int) -> None:
    state = murmur3.row_states(key_words(KEY), np.array([[1, 2, 3, 4]]))
    words = murmur3.words_at(state, np.array([token_of_word(int(state[0, 0]), word)]))
    assert words.tolist() == [word]
    assert 0 < exponentials(words)[0] <= -math.log(2.0**-33)
    # The control: the uniforms of the top 128 words are no longer below 1 in float32.
    assert (uniforms(words).astype(np.float32)[0] == 1.0) == (word >= 2**32 - 128)


def test_no_rows_have_no_words() -> None:
    contexts = np.empty((0, 4), dtype=np.int64)
    for states in (
        murmur3.row_states(key_words(KEY), contexts),
        murmur3.dual_row_states(key_words(KEY, KEY_B), contexts, threshold=HALF),
    ):
        assert states.shape == (0, 1)
        assert murmur3.words_at(states, np.empty(0, dtype=np.int64)).shape == (0,)


@given(keys, windows, st.integers(0, MASK))
def test_many_rows_at_once_are_the_plain_integers_one_by_one(
    key: int, rows: list[list[int]], token_id: int
) -> None:
    states = murmur3.row_states(key_words(key), np.array(rows))
    ids = [(token_id + row) & MASK for row in range(len(rows))]
    expected = [plain_word(key, row, i) for row, i in zip(rows, ids, strict=True)]
    assert murmur3.words_at(states, np.array(ids)).tolist() == expected


@given(keys, keys, windows, st.integers(0, MASK), st.integers(0, MASK))
def test_dual_rows_are_the_plain_integers_one_by_one(
    key_a: int, key_b: int, rows: list[list[int]], threshold: int, token_id: int
) -> None:
    both = key_words(key_a, key_b)
    coins = [plain_hash(*both.tolist(), plain_context(row)) for row in rows]
    assert murmur3.coins(both, murmur3.context_hashes(np.array(rows))).tolist() == coins
    chosen = [key_a if coin < threshold else key_b for coin in coins]
    expected = [plain_word(key, row, token_id) for key, row in zip(chosen, rows, strict=True)]
    states = murmur3.dual_row_states(both, np.array(rows), threshold=threshold)
    assert murmur3.words_at(states, np.full(len(rows), token_id)).tolist() == expected
