# ruff: noqa: RUF001 - letters that look like others are what is tested
import textwrap
import time
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmark.detector.look_alikes import LOOK_ALIKES
from tokenmark.detector.normalise import Change, Kind, View, ViewName, views


def view_of(text: str, name: ViewName) -> View:
    """The view, or the last one before it if that is equal."""
    order = list(ViewName)
    return [view for view in views(text) if order.index(view.name) <= order.index(name)][-1]


def counts_of(view: View) -> dict[Kind, int]:
    return {change.kind: change.count for change in view.changes}


# What no reader can tell apart.

SAFE = {
    "nothing": ("Plain.\n", "Plain.\n", {}),
    "byte order mark": ("\ufeffa", "a", {Kind.BYTE_ORDER_MARK: 1}),
    "Windows line ends": ("a\r\nb\r\n", "a\nb\n", {Kind.LINE_END: 2}),
    "old line ends": ("a\rb\r\rc", "a\nb\n\nc", {Kind.LINE_END: 3}),
    "mixed line ends": ("a\r\r\nb\n", "a\n\nb\n", {Kind.LINE_END: 2}),
    "trailing spaces": ("a  \nb\t \n \nc ", "a\nb\n\nc", {Kind.TRAILING_SPACE: 6}),
    "leading and inner spaces": ("  a  b\n", "  a  b\n", {}),
    "accent after its letter": ("cafe\u0301", "caf\u00e9", {Kind.COMPOSITION: 1}),
    "accents in the wrong order": ("o\u0301\u0323", "\u1ecd\u0301", {Kind.COMPOSITION: 1}),
    "Korean as macOS writes it": (
        unicodedata.normalize("NFD", "한국어 글"),
        "한국어 글",
        {Kind.COMPOSITION: 4},
    ),
    "singletons": ("\u212b \u2126", "\u00c5 \u03a9", {Kind.COMPOSITION: 2}),
    "a Hindi letter that is excluded": ("\u0958", "\u0915\u093c", {Kind.COMPOSITION: 1}),
}


@pytest.mark.parametrize(("text", "expected", "counts"), SAFE.values(), ids=SAFE)
def test_the_safe_view_changes_only_what_no_reader_sees(
    text: str, expected: str, counts: dict[Kind, int]
) -> None:
    safe = view_of(text, ViewName.SAFE)
    assert (safe.text, counts_of(safe)) == (expected, counts)


def test_what_composes_with_the_character_before_it_is_never_cut_off_from_it() -> None:
    # Any of these would be missed if it began a cluster of its own.
    seconds = set()
    for code in range(0x110000):
        parts = unicodedata.decomposition(chr(code)).split(" ")
        if len(parts) == 2 and not parts[0].startswith("<"):
            first, second = (chr(int(part, 16)) for part in parts)
            if unicodedata.normalize("NFC", first + second) == chr(code):
                seconds.add((first, second))
    seconds |= {("\u1100", chr(code)) for code in range(0x1161, 0x1176)}
    seconds |= {("\uac00", chr(code)) for code in range(0x11A8, 0x11C3)}
    assert len(seconds) > 900
    text = "\n".join(first + second for first, second in sorted(seconds))
    assert view_of(text, ViewName.SAFE).text == unicodedata.normalize("NFC", text)


# What is invisible, or mere form.

WIDE = {
    "zero-width space": ("wa\u200bter", "water", {Kind.ZERO_WIDTH: 1}),
    "joiners between Latin letters": ("a\u200cb\u200dc\u2060d", "abcd", {Kind.ZERO_WIDTH: 3}),
    "inner byte order mark": ("a\ufeffb", "ab", {Kind.ZERO_WIDTH: 1}),
    "selectors that carry a message": (
        "\U0001f600\ufe0f\ufe01\U000e0101\U000e0102x",
        "\U0001f600\ufe0fx",
        {Kind.ZERO_WIDTH: 3},
    ),
    "tags that carry a message": ("a\U000e0068\U000e0069b", "ab", {Kind.ZERO_WIDTH: 2}),
    "tags after a flag that end nowhere": (
        "\U0001f3f4\U000e0067\U000e0062!",
        "\U0001f3f4!",
        {Kind.ZERO_WIDTH: 2},
    ),
    "tags too long for a part of a country": (
        "\U0001f3f4" + "\U000e0061" * 7 + "\U000e007f",
        "\U0001f3f4",
        {Kind.ZERO_WIDTH: 8},
    ),
    "a second joiner in Persian": (
        "می\u200c\u200cخواهم",
        "می\u200cخواهم",
        {Kind.ZERO_WIDTH: 1},
    ),
    "a joiner at the end of a Persian word": ("کتاب\u200c ها", "کتاب ها", {Kind.ZERO_WIDTH: 1}),
    "a joiner of marks between letters": ("a\u034fb", "ab", {Kind.ZERO_WIDTH: 1}),
    "a space of no width at the end of Thai": ("ไทย\u200b a", "ไทย a", {Kind.ZERO_WIDTH: 1}),
    "a filler of Hangul": ("a\u3164b", "ab", {Kind.ZERO_WIDTH: 1}),
    "a mark hidden behind nothing": (
        "e\u200b\u0301",
        "\u00e9",
        {Kind.ZERO_WIDTH: 1, Kind.COMPOSITION: 1},
    ),
    "direction overridden": ("\u202eabc\u202c", "abc", {Kind.BIDI_CONTROL: 2}),
    "soft hyphens": ("Wort\u00adteil", "Wortteil", {Kind.SOFT_HYPHEN: 1}),
    "no-break spaces": ("10\u00a0km\u202fh", "10 km h", {Kind.SPACE: 2}),
    "a no-break space at the end": (
        "a\u00a0\nb",
        "a\nb",
        {Kind.SPACE: 1, Kind.TRAILING_SPACE: 1},
    ),
    "a full-width space in Latin": ("a\u3000b", "a b", {Kind.SPACE: 1}),
    "line separators": ("a\u2028b\u2029c", "a\nb\nc", {Kind.LINE_END: 2}),
    "curly quotes": ("\u201cIt\u2019s\u201d", '"It\'s"', {Kind.QUOTE: 3}),
    "dashes": ("1\u20132 \u2014 \u22123", "1-2 - -3", {Kind.DASH: 3}),
    "ellipsis": ("so\u2026", "so...", {Kind.ELLIPSIS: 1}),
    "ligatures": ("\ufb01nd e\ufb03cient", "find efficient", {Kind.LIGATURE: 2}),
    "mathematical letters": ("\U0001d407\U0001d422 \U0001d7d8", "Hi 0", {Kind.STYLED: 3}),
    "full width in Latin": ("\uff28\uff49\uff01", "Hi!", {Kind.STYLED: 3}),
    "Cyrillic in an English word": ("p\u0430ypal", "paypal", {Kind.LOOK_ALIKE: 1}),
    "Greek in an English word": ("p\u03bfwer", "power", {Kind.LOOK_ALIKE: 1}),
    "accent on a look-alike": (
        "caf\u0435\u0301",
        "caf\u00e9",
        {Kind.LOOK_ALIKE: 1, Kind.COMPOSITION: 1},
    ),
    "a word of nothing but look-alikes": (
        "the \u0441\u043e\u0440\u0435 of \u0430 king",
        "the cope of a king",
        {Kind.LOOK_ALIKE: 5},
    ),
    "Armenian, Cherokee, Lisu": (
        "w\u0585rd \u13aapple \ua4d0ig",
        "word Apple Big",
        {Kind.LOOK_ALIKE: 3},
    ),
    "Latin in a Russian word": ("Доброе утрo, друзья", "Доброе утро, друзья", {Kind.LOOK_ALIKE: 1}),
    "Latin in a Russian word that could be English": (
        "Здесь с\u0079хо",
        "Здесь сухо",
        {Kind.LOOK_ALIKE: 1},
    ),
    "Latin in a Greek word": ("Καλημέρα κόσμo", "Καλημέρα κόσμο", {Kind.LOOK_ALIKE: 1}),
    "Cyrillic in an English word of a Russian text": (
        "Купил iPh\u043ene вчера",
        "Купил iPhone вчера",
        {Kind.LOOK_ALIKE: 1},
    ),
    "emphasis": ("a **b** *c* __d__ _e_ ***f***", "a b c d e f", {Kind.MARKDOWN: 10}),
    "nested emphasis": ("**a *b***", "a b", {Kind.MARKDOWN: 4}),
    "emphasis without spaces": ("这是**重点**内容", "这是重点内容", {Kind.MARKDOWN: 2}),
    "emphasis around quotes without spaces": (
        "这是**\u201c重点\u201d**内容",
        '这是"重点"内容',
        {Kind.MARKDOWN: 2, Kind.QUOTE: 2},
    ),
    "emphasis within emphasis that ends first": ("***a** b*", "a b", {Kind.MARKDOWN: 4}),
    "struck out": ("~~a~~ ~5", "a ~5", {Kind.MARKDOWN: 2}),
    "headings": ("# A\n\n## B ##\ntext\n", "A\n\nB\ntext\n", {Kind.MARKDOWN: 3}),
    "a heading that ends in a sign": ("# C#", "C#", {Kind.MARKDOWN: 1}),
    "underlined heading": ("Title\n=====\ntext", "Title\ntext", {Kind.MARKDOWN: 1}),
    "rule": ("a\n\n---\n\nb", "a\n\nb", {Kind.MARKDOWN: 1}),
    "bullets": ("- a\n  - b\n* c\n+ [x] d\n\u2022 e", "a\nb\nc\nd\ne", {Kind.MARKDOWN: 5}),
    "numbers": (
        "1. a\n   more\n2. b\n\n7) c\n",
        "a\n   more\nb\n\nc\n",
        {Kind.MARKDOWN: 3},
    ),
    "numbers out of order": ("1. a\n5. b", "a\nb", {Kind.MARKDOWN: 2}),
    "a box that is no link": ("- [x] a](u)", "a](u)", {Kind.MARKDOWN: 1}),
    "quotation": ("> a\n>\n> > b", "a\n\nb", {Kind.MARKDOWN: 3}),
    "link": ("see [the *site*](http://a.b/c_d_(e) 'T').", "see the site.", {Kind.MARKDOWN: 4}),
    "image and address": (
        "![alt](<a b.png>) <https://a.b/_c_>",
        "alt https://a.b/_c_",
        {Kind.MARKDOWN: 4},
    ),
    "inline code": ("call `my_name(x)` now", "call my_name(x) now", {Kind.MARKDOWN: 2}),
    "code between fences": (
        "Run:\n```sh\nls -l\n```\nDone.",
        "Run:\n\nls -l\n\nDone.",
        {Kind.MARKDOWN: 2},
    ),
    "code set apart": (
        "Run:\n\n~~~\nls -l\n~~~\n\nDone.\n",
        "Run:\n\nls -l\n\nDone.\n",
        {Kind.MARKDOWN: 2},
    ),
    "Markdown behind look-alikes": (
        "\uff0a\uff0aa\uff0a\uff0a",
        "a",
        {Kind.STYLED: 4, Kind.MARKDOWN: 2},
    ),
}


@pytest.mark.parametrize(("text", "expected", "counts"), WIDE.values(), ids=WIDE)
def test_the_wide_view_removes_what_is_mere_form(
    text: str, expected: str, counts: dict[Kind, int]
) -> None:
    wide = view_of(text, ViewName.WIDE)
    assert (wide.text, counts_of(wide)) == (expected, counts)


# Lines that were filled to a width.

RIVER = """\
The river rises in the hills above the town and runs for some ninety
miles through a country of low farms before it comes, at last, to the
sea."""
RIVER_IN_CHINESE = """\
河流从城镇上方的山丘中发源，流经大约九十英里低洼农田，
最后才流入大海，沿途有许多小村庄，村民们世世代代都在这里
耕种。"""
RIVER_IN_HINDI = """\
नदी शहर के ऊपर की पहाड़ियों से निकलती है और समुद्र तक पहुँचने से पहले
लगभग नब्बे मील तक निचले खेतों के देश से होकर बहती है और अंत में धीरे धीरे
समुद्र में मिल जाती है"""
ONE_BREAK = """\
Nobody who lives in the town has ever been seen to fish in the
river, or to swim in it."""
AT_A_HYPHEN = """\
It was a long and narrow room with one window, and the well-
known painter had worked there for most of twenty years with
hardly a guest."""


@pytest.mark.parametrize("text", [RIVER, RIVER_IN_HINDI, ONE_BREAK])
def test_lines_of_a_filled_paragraph_are_joined_with_a_space(text: str) -> None:
    document = f"First.\n\n{text}\n\nLast.\n"
    wide = view_of(document, ViewName.WIDE)
    assert wide.text == document.replace(text, text.replace("\n", " "))
    assert counts_of(wide) == {Kind.LINE_WRAP: text.count("\n")}


def test_lines_without_spaces_or_ending_in_a_hyphen_are_joined_without_one() -> None:
    chinese = view_of(RIVER_IN_CHINESE, ViewName.WIDE)
    assert chinese.text == RIVER_IN_CHINESE.replace("\n", "")
    hyphen = view_of(AT_A_HYPHEN, ViewName.WIDE)
    assert hyphen.text == AT_A_HYPHEN.replace("-\n", "-").replace("\n", " ")


def test_a_filled_quotation_is_joined_once_its_marks_are_gone() -> None:
    wide = view_of("> " + RIVER.replace("\n", "\n> "), ViewName.WIDE)
    assert wide.text == RIVER.replace("\n", " ")
    assert counts_of(wide) == {Kind.MARKDOWN: 3, Kind.LINE_WRAP: 2}


def test_code_that_looks_filled_keeps_its_fence() -> None:
    for text in (f"```\n{RIVER}\n```", f"```\n\n{RIVER}\n\n```"):
        assert view_of(text, ViewName.WIDE).text == text


def test_an_indented_line_is_not_joined() -> None:
    text = RIVER.replace("\nsea", "\n  sea")
    assert view_of(text, ViewName.WIDE).text == text.replace("\nmiles", " miles")


def test_a_heading_is_not_joined_to_a_filled_paragraph() -> None:
    first, rest = RIVER.split("\n", 1)
    assert view_of("# " + RIVER, ViewName.WIDE).text == first + "\n" + rest.replace("\n", " ")


FILLERS = st.sampled_from(
    ["the", "a", "country", "और", "पहाड़ियों", "समुद्र", "हुए", "ماه", "caf\u00e9"]
)


@given(st.lists(FILLERS, min_size=60, max_size=90), st.integers(55, 100))
def test_what_a_program_filled_is_joined_again(words: list[str], width: int) -> None:
    lines = [words[0]]
    for word in words[1:]:
        longer = f"{lines[-1]} {word}"
        n_columns = sum(
            not unicodedata.category(character).startswith("Mn") for character in longer
        )
        if n_columns <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    assert view_of("\n".join(lines), ViewName.WIDE).text == " ".join(words)


@pytest.mark.parametrize(
    "text",
    [
        RIVER.replace("miles", "Miles").replace("sea", "Sea"),
        RIVER.replace("ninety", "nine.").replace("to the", "to it."),
        RIVER.replace("some ninety", "ninety"),
        RIVER.replace("ninety", "ninety or a hundred"),
        RIVER.replace("\n", "\n  "),
        RIVER.replace("\n", "\n\n"),
        RIVER.replace(" runs", "\truns").replace(" at last", "\tat last"),
        ONE_BREAK.replace("ever been seen", "been seen"),
        ONE_BREAK.replace("\n", "\n  "),
    ],
    ids=[
        *("capitals", "sentences end", "room for a word", "a line too long"),
        *("indented", "paragraphs", "tabs", "one break in a short line", "one indented"),
    ],
)
def test_other_lines_are_not_joined(text: str) -> None:
    assert [view.name for view in views(text)] == ["raw"]


# What a script, an emoji, code or verse needs.

KEPT = {
    "English": 'It isn\'t so - "no"; snake_case, a/b, #1 [2] ~5 > 4 (sic)...',
    "arithmetic": "5*3*2 and x**2 + y**2 and 2 * 3 * 4",
    "Persian": "می\u200cخواهم کتاب\u200cها را بخوانم",
    "Arabic abbreviation": "سنة ١٤٤٥ ه\u200d",
    "Arabic with controls of direction": "قال \u2067C++\u2069 ثم \u200f(نعم)\u200f",
    "Hindi": "क्\u200dष और क्\u200cष",
    "Bengali": "র\u200d্যাব",
    "Sinhala": "ක්\u200dෂ",
    "Khmer": "ភាសា\u200bខ្មែរ",
    "Thai": "ภาษา\u200bไทย",
    "Mongolian": "ᠮᠣᠩᠭᠣᠯ\u202fᠤᠨ ᠠ\u180bᠠ",
    "Hebrew": "שָׁלוֹם \u200e(a)\u200e",
    "Japanese": "\u3000今日は「ＡＢＣ」、１２３！辻\U000e0100",
    "Korean": "안녕하세요, 세계!",
    "a Chinese variant": "芽\ufe00",
    "Hebrew marks in their order": "ב\u05b7\u034f\u05bd",
    "a word of either script": "\u0441\u043e\u0440\u0435",
    "a Cyrillic letter behind a mark": "b\u0441\u0323\u0434",
    "phonetics": "[k\u0251t\u0283]",
    "Chinese": "你好，世界！（测试）",
    "Russian": "Он сказал: «сосо», и всё. А она - нет.",
    "Russian with English": "IT-специалист купил USB-кабель и SQLите",
    "Ukrainian": "Їхній дім, і ми є",
    "Greek": "Η γλώσσα ο ήλιος και το νερό",
    "a Russian line in an English text": "The word is short.\nА у нас - сор.\nThat is all.",
    "formulas": "the angle α = 0.05, density ρ, \u03b1x and \u0394t in μm",
    "speech opened by a dash": "— Привет!\n— Пока!",
    "a family": "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "emoji with selectors": "\u2764\ufe0f\u200d\U0001f525 \xa9\ufe0f",
    "rainbow flag": "\U0001f3f3\ufe0f\u200d\U0001f308",
    "skin tones": "\U0001f44d\U0001f3fd \U0001f9d1\U0001f3fb\u200d\U0001f680",
    "keycap": "1\ufe0f\u20e3 #\ufe0f\u20e3",
    "flags": "\U0001f1e9\U0001f1ea\U0001f1f0\U0001f1f7",
    "flag of Scotland": "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "French": "L'été, «déjà vu» ; ça va ?",
    "lone surrogates": "a\ud83d b\udc00",
    "code that is like Markdown": "```py\n# a comment\nx = a *b* c\n```",
    "inline code that is like Markdown": "the `*` of `a *b* c` and `# x`",
    "fences within a fence": "````\n```\na\n```\n````",
    "a fence that does not close": "```py\na\n```py\nb\n```",
    "ticks within ticks": "`` a ` b `` and `[a](b)`",
    "single tildes": "~a~",
    "underscores within words": "文_字_文",
    "a note before a quote": 'a*"b"* c',
    "stars in two paragraphs": "*a\n\nb*",
    "code never closed": "```\n- a",
    "escaped signs": r"\*a\* and \[b\](c)",
    "a year at the start of a line": "It was the spring of\n1984. Then it rained.",
    "a citation": "as shown [1][2], and f[i] = 3",
    "a table": "| a | b |\n|---|---|\n| 1 | 2 |",
    "a signature": "Yours\n--\nA",
    "verse": (
        "Shall I compare thee to a summer's day?\n"
        "Thou art more lovely and more temperate:\n"
        "Rough winds do shake the darling buds of May,\n"
        "And summer's lease hath all too short a date;"
    ),
    "wide verse": (
        "And the hills that were green in the morning of time and of hope\n"
        "Are as grey as the stones that the river has washed on its slope\n"
        "And the road that we took is a road that we never shall see\n"
        "And the song that we sang is a song for the wind and the sea"
    ),
    "short lines": "Dear all,\nthe meeting is off.\nsee you next week\nAnn",
    "lines as wide as paragraphs": textwrap.fill("word " * 100, 150),
    "paragraphs in one line each": "word " * 40 + "end\n" + "word " * 50 + "end",
    "encoded data": "\n".join(["aGVsbG8gd29ybGQhIHRoaXMgaXMgYmFzZTY0IGVuY29kZWQgdGV4dCBvaw"] * 4),
    "a log": "\n".join(
        f"2024-05-01 12:00:0{n} INFO the server has answered request {n}" for n in range(5)
    ),
    "code without fences": (
        "def first_function_of_all(argument_one, argument_two, three):\n"
        "    return argument_one + argument_two + three + constant_of_it\n"
        "value = first_function_of_all(argument_one=1, argument_two=2)"
    ),
    "spaces only": "a" + " " * 5 + "b",
    "nothing": "",
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_what_a_text_needs_is_kept(text: str) -> None:
    assert [view.text for view in views(text)] == [text]


def test_the_table_of_look_alikes_names_each_letter_once_and_no_ascii() -> None:
    letters = "".join(LOOK_ALIKES.values())
    assert len(set(letters)) == len(letters)
    assert all(len(own) == 1 and own.isascii() and own.isalpha() for own in LOOK_ALIKES)
    scripts = {unicodedata.name(letter).split(" ")[0] for letter in letters}
    assert scripts == {
        *("ARMENIAN", "CHEROKEE", "COPTIC", "CYRILLIC", "GREEK", "LATIN", "LISU"),
        *("ROMAN", "SMALL"),
    }
    for own, others in LOOK_ALIKES.items():
        # Some small Latin letters look like Cherokee capitals.
        alike = [other for other in others if not unicodedata.name(other).startswith("CHEROKEE")]
        assert not own.islower() or not any(map(str.isupper, alike))
        assert not own.isupper() or not any(map(str.islower, alike))


# Where the characters of a view come from.


def test_a_range_of_a_view_maps_to_what_it_stands_for() -> None:
    text = "\ufeffca\u200bfe\u0301 \ufb01n\u2026 \r\nz"
    wide = view_of(text, ViewName.WIDE)
    assert wide.text == "caf\u00e9 fin...\nz"
    sources = [text[slice(*wide.span(at, at + 1))] for at in range(len(wide.text))]
    assert sources == [
        *("c", "a", "f", "e\u0301", " ", "\ufb01", "\ufb01", "n"),
        *("\u2026", "\u2026", "\u2026", "\r\n", "z"),
    ]
    # A removed character belongs to a range around it and to none beside it.
    assert text[slice(*wide.span(1, 3))] == "a\u200bf"
    assert text[slice(*wide.span(0, 2))] == "ca"
    assert wide.span(0, len(wide.text)) == (1, len(text))


def test_an_empty_range_maps_to_a_place() -> None:
    wide = view_of("\u200ba\u200b", ViewName.WIDE)
    assert (wide.span(0, 0), wide.span(1, 1)) == ((1, 1), (2, 2))
    assert view_of("\u200b", ViewName.WIDE).span(0, 0) == (0, 0)


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (1, 0), (0, 3)])
def test_a_range_outside_a_view_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match=rf"lies within 0\.\.2, got {start}\.\.{end}"):
        views("ab")[0].span(start, end)


def test_offsets_are_of_code_points_not_of_bytes_or_of_utf_16() -> None:
    wide = view_of("\U0001f600\u200b한\u200bx", ViewName.WIDE)
    assert wide.starts.tolist() == [0, 2, 4]
    assert wide.ends.tolist() == [1, 3, 5]


# Which views there are, and what they say of themselves.


def test_views_come_in_order_and_equal_ones_once() -> None:
    assert [view.name for view in views("a")] == ["raw"]
    assert [view.name for view in views("a \n")] == ["raw", "safe"]
    assert [view.name for view in views("*a*")] == ["raw", "wide"]
    assert [view.name for view in views("*a* ")] == ["raw", "safe", "wide"]
    assert views("*a* ")[0].text == "*a* "
    assert views("*a* ")[0].changes == ()


def test_the_wide_view_counts_what_the_safe_one_changed_too() -> None:
    _, safe, wide = views("a\u200b \r\n\u200bb\u200b \n")
    assert counts_of(safe) == {Kind.LINE_END: 1, Kind.TRAILING_SPACE: 2}
    assert counts_of(wide) == {Kind.LINE_END: 1, Kind.TRAILING_SPACE: 2, Kind.ZERO_WIDTH: 3}


def test_warnings_are_sentences_with_exact_counts() -> None:
    assert [
        change.warning for change in view_of("a\u200b\u200b\u200b b\u2014c", ViewName.WIDE).changes
    ] == [
        "3 zero-width characters removed before scoring",
        "1 typographic dash replaced before scoring",
    ]
    for kind in Kind:
        one, two = (Change(kind, count).warning for count in (1, 2))
        assert one.startswith("1 ")
        assert two.startswith("2 ")
        assert one[2:] != two[2:]


# Properties.

PIECES = st.sampled_from(
    [
        *"*_~`[]()<>#-+=!\\|\"' \n\t\r.:aAbx19",
        *(
            "1. ",
            "2. ",
            "- ",
            "> ",
            "# ",
            "```",
            "~~~",
            "**",
            "](u)",
            "\n\n",
            "\n---\n",
            "http://a",
        ),
        *("\r\n", "\ufeff", "\u200b", "\u200c", "\u200d", "\ufe0f", "\u00ad", "\u202e", "\u034f"),
        *("\u00a0", "\u3000", "\u2028", "\u202f", "\u2014", "\u2026", "\u2019", "\ufb01", "\u2022"),
        *("\u0430", "\u0436", "\u03bf", "\u03b4", "\u0301", "\u0323", "\u1100", "\u1161", "\u11a8"),
        *("\u0915", "\u094d", "\u06cc", "\u05d0", "\u4e2d", "\ud55c", "\u1820", "\u180b", "\u20e3"),
        *("\U0001f600", "\U0001f3f4", "\U000e0061", "\U000e007f", "\uff0a", "\U0001d41a", "\ud83d"),
    ]
)
ODD_TEXTS = st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=40)


@given(ODD_TEXTS)
def test_a_view_has_no_views_but_itself(text: str) -> None:
    wide = view_of(text, ViewName.WIDE)
    assert [view.text for view in views(wide.text)] == [wide.text]
    safe = view_of(text, ViewName.SAFE)
    assert ViewName.SAFE not in {view.name for view in views(safe.text)}
    assert view_of(safe.text, ViewName.WIDE).text == wide.text


@given(ODD_TEXTS)
def test_the_safe_view_is_what_plain_string_methods_give(text: str) -> None:
    plain = text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    plain = unicodedata.normalize("NFC", plain)
    plain = "\n".join(line.rstrip(" \t") for line in plain.split("\n"))
    assert view_of(text, ViewName.SAFE).text == plain


@given(ODD_TEXTS)
def test_offsets_ascend_and_stay_within_the_text(text: str) -> None:
    for view in views(text):
        assert view.starts.shape == view.ends.shape == (len(view.text),)
        assert (np.diff(view.starts) >= 0).all()
        assert (np.diff(view.ends) >= 0).all()
        assert (view.starts < view.ends).all()
        assert view.starts.size == 0 or (view.starts[0] >= 0 and view.ends[-1] <= len(text))


@given(st.lists(st.sampled_from(["word", "Zebra", "x", "\u200b", "\u2060", "\u00ad"])))
def test_removed_characters_leave_the_others_where_they_were(pieces: list[str]) -> None:
    text = " ".join(pieces)
    wide = view_of(text.rstrip(), ViewName.WIDE)
    for at, character in enumerate(wide.text):
        start, end = wide.span(at, at + 1)
        assert text[start:end] == character


WORDS = st.sampled_from(
    ["The", "house", "isn't", "well-known", "x", "2024", "it's", "(so)", '"no"']
)
SENTENCES = st.lists(WORDS, min_size=3, max_size=12).map(lambda words: " ".join(words) + ".")


@given(st.lists(SENTENCES, min_size=1).map(" ".join), st.sampled_from(["", "\n"]))
def test_plain_prose_has_one_view(prose: str, end: str) -> None:
    assert [view.name for view in views(prose + end + end + prose + end)] == ["raw"]


@given(ODD_TEXTS)
def test_counts_say_whether_anything_was_changed(text: str) -> None:
    for view in views(text):
        assert bool(view.changes) == (view.text != text)
        assert all(change.count > 0 for change in view.changes)


# Texts that were made to be slow. Each has this many characters; a quadratic step takes minutes.

N = 200_000
SLOW = {
    "zero-width": ("a" + "\u200b" * N, "a"),
    "joiners": ("\u200d" * N, ""),
    "joiners between letters": ("\u06cc" + "\u200c" * N + "\u06cc", "\u06cc\u200c\u06cc"),
    "tags": ("\U0001f3f4" + "\U000e0061" * N, "\U0001f3f4"),
    "marks on one letter": ("a" + "\u0301\u0323" * (N // 2), None),
    "marks on many letters": (("a" + "\u0301\u0323" * 10) * (N // 21), None),
    "spaces": (" " * N + "x", None),
    "spaces after a bracket": ("a](" + " " * N + "(", None),
    "spaces in a heading": ("# a" + " " * N + "b", "a" + " " * N + "b"),
    "signs after a heading": ("# a" + " #" * (N // 2), None),
    "stars": ("*" * N, ""),
    "openers": ("*a" * (N // 2), None),
    "emphasis": ("*a* " * (N // 4) + "b", "a " * (N // 4) + "b"),
    "brackets": ("[" * N, None),
    "links within links": ("[" * (N // 5) + "x" + "](u)" * (N // 5), "x"),
    "links never closed": ("[a](b" * (N // 5), None),
    "titles never closed": ('](a "' * (N // 5), None),
    "addresses never closed": ("<http:" * (N // 6), None),
    "ticks": ("` " * (N // 2), ""),
    "ticks of all lengths": (" ".join("`" * length for length in range(1, 600)), None),
    "quotations": ("> " * (N // 2) + "x", "x"),
    "items": ("- " * (N // 2) + "x", "x"),
    "fences": ("```\n" * (N // 8), None),
    "fences within fences": ("\n".join("`" * length for length in range(600, 2, -1)), None),
    "line ends": ("\n" * N, None),
    "short lines": ("a\n" * (N // 2), None),
    "surrogates": ("\ud83d\ude00" * (N // 2), None),
    "one line": ("lorem ipsum " * (N // 12) + "end", None),
}


@pytest.mark.parametrize(("text", "expected"), SLOW.values(), ids=SLOW)
def test_no_text_takes_more_than_linear_time(text: str, expected: str | None) -> None:
    start = time.process_time()
    found = view_of(text, ViewName.WIDE)
    assert time.process_time() - start < 10
    if expected is not None:
        assert found.text == expected
