"""TextSeal's published and derived vectors, then the residues against plain integers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmark.detector.pvalue import log_gamma_tail
from tokenmark.watermark.context import contexts_of, first_occurrence
from tokenmark.watermark.prf import textseal

KEY = 42
TOKENS = [0, 1, 17, 8191, 151643]
LIST = [101, 7, 7, 2048, 7, 2048, 7, 2048, 500, 31, 5, 9999, 7, 2048, 7, 2048, 42, 42, 42, 42]
LIST += [42, 42, 65535, 151643, 3, 1, 4, 1, 5, 9, 2, 6]

MULTIPLIERS = [10000019, 10000247, 10000439, 10000643, 10000747]
MULTIPLIERS += [10000867, 10000993, 10001213, 10001357, 10001501]
token_ids = st.integers(0, 2**32 - 1)
windows = st.integers(1, len(MULTIPLIERS)).flatmap(
    lambda width: st.lists(
        st.lists(token_ids, min_size=width, max_size=width), min_size=1, max_size=5
    )
)
signed_keys = st.integers(-(2**63), 2**63 - 1)


def key_words(key: int) -> np.ndarray:
    """Both words of a key, of a negative one in two's complement."""
    return np.array([key % 2**32, (key >> 32) % 2**32], dtype=np.uint32)


def wrapped(value: int) -> int:
    """The value as a signed integer of 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


def plain_product(key: int, window: list[int], token_id: int) -> int:
    """What is mixed with its own shift; signed."""
    total = sum(c * m for c, m in zip(window, MULTIPLIERS, strict=False))
    total = wrapped(total + 100000007 * token_id + 500001713 * key)
    return wrapped(wrapped(total * 15485863) * 40499)


def plain_residue(key: int, window: list[int], token_id: int) -> int:
    # Python's >> and % are the arithmetic shift and the floor remainder.
    product = plain_product(key, window, token_id)
    return (product ^ product >> 13) % 8191


def residues_of(key: int, window: list[int], ids: list[int]) -> list[int]:
    state = textseal.row_states(key_words(key), np.array([window]))
    return textseal.words_at(np.repeat(state, len(ids), axis=0), np.array(ids)).tolist()


def scores(residues: np.ndarray) -> np.ndarray:
    return -np.log1p(-residues.astype(np.float64) / textseal.RESIDUES)


@pytest.mark.parametrize(
    ("key", "context", "expected"),
    [
        (42, [5], [5032, 1702, 6624, 6424, 390]),
        (42, [1, 2, 3, 4], [5553, 7654, 119, 5710, 7802]),
        (12387, [1, 2, 3, 4], [4571, 696, 3291, 1123, 5348]),
        (42, [151643], [1375, 7444, 5705, 3633, 2463]),
    ],
)
def test_residues_of_the_recipe(key: int, context: list[int], expected: list[int]) -> None:
    assert residues_of(key, context, TOKENS) == expected


@pytest.mark.parametrize(
    ("key", "second"),
    [(42, 12387), (2**32 - 1, 2**32 + 12344), (-1, 12344), (-(2**63), -(2**63) + 12345)],
)
def test_the_second_key_lies_12345_above_the_first(key: int, second: int) -> None:
    assert textseal.second_stream_key(key_words(key)).tolist() == key_words(second).tolist()


@pytest.mark.parametrize(
    ("width", "counted_once", "n", "statistic", "p"),
    [
        (1, None, 30, 30.7585866, 0.42147277),
        (1, "context", 14, 13.1141808, 0.56049363),
        (1, "context and token", 20, 19.5112431, 0.51412650),
        (2, None, 29, 22.8853546, 0.87772450),
        (2, "context", 19, 18.3767468, 0.52702831),
        (2, "context and token", 22, 18.5992169, 0.75618647),
    ],
)
def test_detection_of_the_recipe_starts_one_position_late(
    width: int, counted_once: str | None, n: int, statistic: float, p: float
) -> None:
    ids = np.array(LIST)
    # The first position with a whole context is left out, as the original does.
    contexts, targets = contexts_of(ids, width, padding=None)[1:], ids[width + 1 :]
    counted = {
        None: np.ones(targets.size, dtype=np.bool_),
        "context": first_occurrence(contexts),
        "context and token": first_occurrence(np.column_stack([contexts, targets])),
    }[counted_once]
    states = textseal.row_states(key_words(KEY), contexts[counted])
    evidence = scores(textseal.words_at(states, targets[counted]))
    assert evidence.size == n
    # The original takes its logarithms in float32.
    assert float(evidence.sum()) == pytest.approx(statistic, rel=1e-7)
    assert math.exp(log_gamma_tail(n, float(evidence.sum()))) == pytest.approx(p, rel=1e-6)


def test_a_zero_in_a_context_adds_nothing_and_keeps_its_place() -> None:
    # A zero adds nothing, and yet moves the ids after it to other multipliers.
    padded = textseal.row_states(key_words(KEY), np.array([[0, 0, 5]]))
    assert not np.array_equal(padded, textseal.row_states(key_words(KEY), np.array([[5]])))
    trailing = textseal.row_states(key_words(KEY), np.array([[5, 0, 0]]))
    assert np.array_equal(trailing, textseal.row_states(key_words(KEY), np.array([[5]])))


def test_a_context_wider_than_the_recipe_knows_is_refused() -> None:
    width = textseal.MAX_CONTEXT_WIDTH
    assert width == 10
    with pytest.raises(ValueError, match="broadcast"):
        textseal.row_states(key_words(KEY), np.zeros((1, width + 1), dtype=np.int64))


def test_the_sign_matters_to_the_shift_and_is_gone_before_the_remainder() -> None:
    ids = [token_id for token_id in range(400) if plain_product(KEY, [5], token_id) < 0]
    assert len(ids) > 100
    products = np.array([plain_product(KEY, [5], token_id) for token_id in ids])
    residues = np.array(residues_of(KEY, [5], ids))
    assert residues.tolist() == [plain_residue(KEY, [5], token_id) for token_id in ids]
    assert (products ^ products >> 13).min() >= 0
    # The control: with zeros drawn in, residues agree by chance only, and the sign stays.
    logical = products ^ (products.view(np.uint64) >> np.uint64(13)).view(np.int64)
    assert logical.max() < 0
    for wrong in (np.mod(logical, 8191), np.fmod(logical, 8191)):
        assert (residues == wrong).mean() < 0.1


def test_the_least_and_the_largest_residue_have_finite_scores() -> None:
    residues = np.array(residues_of(KEY, [5], list(range(100_000))), dtype=np.uint32)
    assert (residues.min(), residues.max()) == (0, textseal.RESIDUES - 1)
    assert scores(residues).min() == 0.0
    assert scores(residues).max() == pytest.approx(math.log(textseal.RESIDUES))


def test_no_rows_have_no_residues() -> None:
    states = textseal.row_states(key_words(KEY), np.empty((0, 4), dtype=np.int64))
    assert states.shape == (0, 1)
    assert textseal.words_at(states, np.empty(0, dtype=np.int64)).shape == (0,)


@given(signed_keys, windows, token_ids)
def test_many_rows_at_once_are_the_plain_integers_one_by_one(
    key: int, rows: list[list[int]], token_id: int
) -> None:
    states = textseal.row_states(key_words(key), np.array(rows))
    ids = [(token_id + row) % 2**32 for row in range(len(rows))]
    expected = [plain_residue(key, row, i) for row, i in zip(rows, ids, strict=True)]
    assert textseal.words_at(states, np.array(ids)).tolist() == expected
