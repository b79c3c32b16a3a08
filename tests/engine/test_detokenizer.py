from collections.abc import Callable, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tokenmark.engine.detokenizer import Detokenizer

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\ufffd"
END = 1
"""The special id `</s>` of the byte-fallback tokenizer."""
TRAINING_TEXT = (
    "the quick brown fox says the same thing again and again",
    "größer, größte, Äpfel und Öl für alle Übungen",
    "日本語の文章と日本の文字、本日は晴天なり",
    "😀😃😄 👩‍👩‍👧 🇩🇪🇫🇷 😀😃",
)
# Characters of one to four bytes, and U+FFFD itself.
TEXTS = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from(f"ab ßé日本€😀👩\u200d{REPLACEMENT}"))
)


@cache
def byte_level_bpe() -> Tokenizer:
    """A byte-level BPE whose merges cross the borders of characters; id 0 is special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    return tokenizer


@cache
def byte_fallback_bpe() -> Tokenizer:
    """The SentencePiece way: words begin with a mark, unknown characters are spelt in bytes."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abßé日"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=[],
            unk_token="<unk>",  # noqa: S106 - a piece of a vocabulary, not a credential
            byte_fallback=True,
        )
    )
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def decode_bytes(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode(errors="replace")


def decode_byte_level(token_ids: Sequence[int]) -> str:
    return byte_level_bpe().decode(list(token_ids))


def decode_byte_fallback(token_ids: Sequence[int]) -> str:
    return byte_fallback_bpe().decode(list(token_ids))


def pieces_of(pieces: Sequence[str]) -> Decode:
    """Ids that are places in a list of strings."""
    return lambda token_ids: "".join(pieces[token_id] for token_id in token_ids)


def check_stream(detokenizer: Detokenizer, decode: Decode, token_ids: Sequence[int]) -> None:
    """Chunks joined are the whole text, and never more than the ids so far can vouch for."""
    whole = decode(token_ids)
    shown = ""
    for token_id in token_ids:
        shown += detokenizer.push(token_id)
        assert whole.startswith(shown)
        assert detokenizer.text == shown
    shown += detokenizer.finish()
    assert shown == detokenizer.text == whole


@given(st.lists(st.integers(0, 399), max_size=40))
@settings(deadline=None)
def test_any_byte_level_ids_give_their_text(token_ids: list[int]) -> None:
    check_stream(Detokenizer(decode_byte_level), decode_byte_level, token_ids)


@given(TEXTS)
@settings(deadline=None)
def test_any_text_survives_byte_level_tokens(text: str) -> None:
    token_ids = byte_level_bpe().encode(text).ids
    assert decode_byte_level(token_ids) == text
    check_stream(Detokenizer(decode_byte_level), decode_byte_level, token_ids)


@given(st.binary(max_size=40))
def test_any_bytes_give_their_text(token_ids: bytes) -> None:
    check_stream(Detokenizer(decode_bytes), decode_bytes, token_ids)


@given(st.lists(st.sampled_from(b"a\x80\x9f\xbf\xc3\xe0\xed\xef\xbd\xf0\xf4\xff"), max_size=24))
@settings(max_examples=200)
def test_any_broken_bytes_give_their_text(token_ids: list[int]) -> None:
    check_stream(Detokenizer(decode_bytes), decode_bytes, token_ids)


@given(TEXTS.map(lambda text: text.replace(REPLACEMENT, "")))
@settings(deadline=None)
def test_any_text_survives_byte_fallback(text: str) -> None:
    token_ids = byte_fallback_bpe().encode(text).ids
    assert decode_byte_fallback(token_ids) == text
    check_stream(Detokenizer(decode_byte_fallback), decode_byte_fallback, token_ids)


def test_a_character_spelt_in_bytes_may_begin_an_answer() -> None:
    token_ids = byte_fallback_bpe().encode("😀 😀").ids
    check_stream(Detokenizer(decode_byte_fallback), decode_byte_fallback, token_ids)


@given(st.text(st.characters(codec="utf-8", exclude_characters=REPLACEMENT)))
def test_a_character_is_shown_with_its_last_byte(text: str) -> None:
    detokenizer = Detokenizer(decode_bytes)
    encoded = text.encode()
    for n_bytes, byte in enumerate(encoded, start=1):
        detokenizer.push(byte)
        assert detokenizer.text == encoded[:n_bytes].decode(errors="ignore")


def test_a_genuine_replacement_character_is_text() -> None:
    detokenizer = Detokenizer(decode_bytes)
    shown = [detokenizer.push(byte) for byte in f"a{REPLACEMENT}b".encode()]
    assert shown == ["a", "", "", "", f"{REPLACEMENT}b"]


def test_an_answer_that_ends_within_a_character_shows_that() -> None:
    detokenizer = Detokenizer(decode_bytes)
    assert [detokenizer.push(byte) for byte in "a€".encode()[:-1]] == ["a", "", ""]
    assert detokenizer.finish() == REPLACEMENT
    assert detokenizer.finish() == ""


def test_special_ids_are_not_text() -> None:
    detokenizer = Detokenizer(decode_byte_fallback)
    token_ids = byte_fallback_bpe().encode("a b").ids
    with_ends = (*token_ids[:2], END, *token_ids[2:], END)
    shown = [detokenizer.push(token_id) for token_id in with_ends]
    assert shown == ["", "a", "", " ", "b", ""]


@pytest.mark.parametrize(
    "token_ids",
    [
        list("das größte Öl 日本語 😀".encode()) * 20,
        [0xFF] * 500,
        [0xF0] * 500,
        [0xF0, 0x9F] * 250,
        [0xF0, 0x9F, 0x98] * 160,
        list(REPLACEMENT.encode()) * 160,
        [ord("a")] + [0] * 500,
    ],
    ids=[
        "text",
        "never UTF-8",
        "only first bytes",
        "two of four",
        "three of four",
        "U+FFFD",
        "special",
    ],
)
def test_the_work_for_an_id_does_not_grow_with_the_answer(token_ids: list[int]) -> None:
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode_bytes([token_id for token_id in ids if token_id])

    detokenizer = Detokenizer(decode)
    for token_id in token_ids:
        detokenizer.push(token_id)
    assert longest <= 10


def text_before_stop(text: str, stop: Sequence[str]) -> str | None:
    """The definition: read on until the text ends with a stop string, then cut the longest."""
    for end in range(1, len(text) + 1):
        ending = [len(string) for string in stop if text[:end].endswith(string)]
        if ending:
            return text[: end - max(ending)]
    return None


def text_before_any_beginning(text: str, stop: Sequence[str]) -> str:
    """The text up to where its end may turn out to be the beginning of a stop string."""
    for start in range(len(text)):
        if any(string.startswith(text[start:]) for string in stop):
            return text[:start]
    return text


STOPS = st.lists(st.text("ab|", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)
PIECES = st.lists(st.text("ab|", max_size=4), max_size=12)


def check_stop(detokenizer: Detokenizer, pieces: Sequence[str], stop: tuple[str, ...]) -> None:
    """Every prefix of the answer shows what the definition allows, and no less."""
    for n_ids in range(1, len(pieces) + 1):
        detokenizer.push(n_ids - 1)
        text = "".join(pieces[:n_ids])
        before = text_before_stop(text, stop)
        assert detokenizer.stopped == (before is not None)
        expected = text_before_any_beginning(text, stop) if before is None else before
        assert detokenizer.text == expected
    detokenizer.finish()
    before = text_before_stop("".join(pieces), stop)
    assert detokenizer.text == ("".join(pieces) if before is None else before)


@given(PIECES, STOPS)
@settings(max_examples=200)
def test_stop_strings_are_found_across_any_borders(
    pieces: list[str], stop: tuple[str, ...]
) -> None:
    check_stop(Detokenizer(pieces_of(pieces), stop), pieces, stop)


@given(PIECES, STOPS, st.integers(0, 12))
@settings(max_examples=200)
def test_a_stop_string_begins_behind_the_least_number_of_ids(
    pieces: list[str], stop: tuple[str, ...], min_tokens: int
) -> None:
    detokenizer = Detokenizer(pieces_of(pieces), stop, min_tokens=min_tokens)
    first = "".join(pieces[:min_tokens])
    for token_id in range(len(pieces[:min_tokens])):
        assert detokenizer.push(token_id) == pieces[token_id]
        assert not detokenizer.stopped
    for token_id in range(min_tokens, len(pieces)):
        detokenizer.push(token_id)
    detokenizer.finish()
    rest = "".join(pieces[min_tokens:])
    before = text_before_stop(rest, stop)
    assert detokenizer.text == first + (rest if before is None else before)
    assert detokenizer.stopped == (before is not None)


def test_what_may_be_a_stop_string_waits_until_that_is_decided() -> None:
    pieces = ["x<", "e", "nd ", "<e", "nd>", "more"]
    detokenizer = Detokenizer(pieces_of(pieces), ("<end>",))
    assert [detokenizer.push(token_id) for token_id in range(6)] == ["x", "", "<end ", "", "", ""]
    assert detokenizer.stopped
    assert detokenizer.finish() == ""
    assert detokenizer.text == "x<end "


def test_the_beginning_of_a_stop_string_is_text_if_nothing_follows() -> None:
    detokenizer = Detokenizer(pieces_of(["x<e"]), ("<end>",))
    assert detokenizer.push(0) == "x"
    assert detokenizer.finish() == "<e"
    assert not detokenizer.stopped


def test_a_stop_string_of_many_bytes_is_found_id_by_id() -> None:
    detokenizer = Detokenizer(decode_bytes, ("本😀",))
    shown = "".join(detokenizer.push(byte) for byte in "日本日本😀x".encode())
    assert shown == "日本日"
    assert detokenizer.stopped


def test_a_stop_string_may_come_with_the_end() -> None:
    detokenizer = Detokenizer(decode_bytes, (REPLACEMENT,))
    assert [detokenizer.push(byte) for byte in b"a\xf0"] == ["a", ""]
    assert detokenizer.finish() == ""
    assert detokenizer.stopped


def test_a_long_stop_string_in_a_repetitive_answer_costs_no_more_than_its_length() -> None:
    n_chars = 20_000
    detokenizer = Detokenizer(pieces_of(["a"]), ("a" * n_chars + "b",))
    for _ in range(n_chars + 1):
        detokenizer.push(0)
    # One character more than can begin the stop string: exactly that one is decided.
    assert detokenizer.text == "a"


class DecodesOneById(Detokenizer):
    """Decodes every id by itself."""

    def _take_complete(self) -> str:
        return self._decode([self._window.pop()])


class ShowsIncomplete(Detokenizer):
    """Takes U+FFFD for a character like any other."""

    def _take_before_incomplete(self, text: str) -> str:
        new = text[len(self._read_text) :]
        self._keep_window_from(self._n_read)
        return new


class CutsAnywhere(Detokenizer):
    """Gives up on an incomplete character without looking whether it may be cut there."""

    def _take_before_incomplete(self, text: str) -> str:
        if len(self._window) - self._n_read <= 3:
            return ""
        return ShowsIncomplete._take_before_incomplete(self, text)  # type: ignore[arg-type]  # same fields


class LosesTheRest(Detokenizer):
    """Ends without what was held back."""

    def finish(self) -> str:
        return ""


class ForgetsBorders(Detokenizer):
    """Looks for stop strings in the text of each id by itself."""

    def _find_stop(self, new: str) -> int | None:
        for stop in self._stop:
            stop.n_matched = 0
        return super()._find_stop(new)


@pytest.mark.parametrize("kind", [DecodesOneById, ShowsIncomplete, CutsAnywhere, LosesTheRest])
def test_a_faulty_detokenizer_is_seen(kind: type[Detokenizer]) -> None:
    token_ids = [*"é😀".encode(), 0xFF, 0xFF, 0xFF, *"😀".encode(), 0xF0]
    check_stream(Detokenizer(decode_bytes), decode_bytes, token_ids)
    with pytest.raises(AssertionError):
        check_stream(kind(decode_bytes), decode_bytes, token_ids)


def test_a_faulty_search_for_stop_strings_is_seen() -> None:
    pieces, stop = ["a", "b", "|"], ("ab",)
    check_stop(Detokenizer(pieces_of(pieces), stop), pieces, stop)
    with pytest.raises(AssertionError):
        check_stop(ForgetsBorders(pieces_of(pieces), stop), pieces, stop)
