from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmark.watermark.errors import KeyringError, KeyStateError
from tokenmark.watermark.key_entry import KeyEntry, KeyState, format_time
from tokenmark.watermark.payload import PayloadLayout
from tokenmark.watermark.scheme import Scheme
from tokenmark.watermark.tokenizers import TokenizerReference

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)

moments = st.datetimes(max_value=datetime(9998, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001 - the strategy adds the zone
    lambda moment: moment.replace(microsecond=0)
)


def entry(**changes: Any) -> KeyEntry:  # noqa: ANN401 - any field may be replaced by a wrong value
    fields = {"name": "a", "key_id": "0123456789abcdef", "scheme": Scheme(name="tm1")}
    return KeyEntry(**{**fields, "created": NOON, **changes})


@st.composite
def entries(draw: st.DrawFn) -> KeyEntry:
    begin = draw(st.none() | moments)
    reference = TokenizerReference(id="demo", sha256="0" * 64)
    schemes = [
        Scheme(name="tm1", payload=PayloadLayout(slots=4, bits=8)),
        Scheme(name="tm1", context_width=8),
        Scheme(name="vllm-gumbel", context_width=64),
    ]
    return entry(
        name=draw(st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)),
        key_id=draw(st.from_regex(r"[0-9a-f]{16}", fullmatch=True)),
        scheme=draw(st.sampled_from(schemes)),
        created=draw(moments),
        state=draw(st.sampled_from(KeyState)),
        not_before=begin,
        not_after=None if begin is None else begin + SECOND,
        tokenizer=draw(st.sampled_from([None, reference])),
    )


@settings(max_examples=30)
@given(entries())
def test_an_entry_round_trips(original: KeyEntry) -> None:
    assert KeyEntry.from_json(original.to_json()) == original


@pytest.mark.parametrize("name", ["", "a" * 65, "a b", "a/b", "é", "a\n", "\x1b[31m", "²"])
def test_a_name_outside_the_rule_is_refused(name: str) -> None:
    with pytest.raises(KeyringError, match="name has 1 to 64") as caught:
        entry(name=name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "key_id", ["", "0123456789abcde", "0123456789ABCDEF", "0123456789abcdef\n"]
)
def test_a_key_id_outside_the_rule_is_refused(key_id: str) -> None:
    with pytest.raises(KeyringError, match="key_id is 16"):
        entry(key_id=key_id)


@pytest.mark.parametrize("field", ["created", "not_before", "not_after"])
@pytest.mark.parametrize(
    "moment",
    [
        NOON.replace(tzinfo=None),
        NOON.replace(microsecond=1),
        NOON.astimezone(timezone(timedelta(hours=1))),
    ],
)
def test_moments_are_utc_and_whole_seconds(field: str, moment: datetime) -> None:
    with pytest.raises(KeyringError, match=f"{field} must be in UTC and whole seconds"):
        entry(**{field: moment})


def test_validity_must_not_end_before_it_begins() -> None:
    with pytest.raises(KeyringError, match="later than not_before"):
        entry(not_before=NOON, not_after=NOON)


def test_an_active_key_marks_within_its_validity_only() -> None:
    bounded = entry(not_before=NOON, not_after=NOON + 10 * SECOND)
    bounded.check_can_mark(NOON)
    bounded.check_can_mark(NOON + 9 * SECOND)
    with pytest.raises(KeyStateError, match="not valid before 2026-01-01T12:00:00Z"):
        bounded.check_can_mark(NOON - SECOND)
    with pytest.raises(KeyStateError, match="expired at 2026-01-01T12:00:10Z"):
        bounded.check_can_mark(NOON + 10 * SECOND)
    bounded.check_can_verify()


def test_a_verify_only_key_verifies_and_does_not_mark() -> None:
    retired = entry(state=KeyState.VERIFY_ONLY)
    retired.check_can_verify()
    with pytest.raises(KeyStateError, match="verify_only"):
        retired.check_can_mark(NOON)


def test_a_revoked_key_does_nothing() -> None:
    revoked = entry(state=KeyState.REVOKED)
    with pytest.raises(KeyStateError, match="'a' is revoked"):
        revoked.check_can_mark(NOON)
    with pytest.raises(KeyStateError, match="'a' is revoked"):
        revoked.check_can_verify()


WRONG = [
    ("state", "activ", "state must be one of active, verify_only, revoked, got 'activ'"),
    ("state", None, "state must be a string, got null"),
    ("created", None, "created must be a moment"),
    ("created", 1767225600, "created must be a string"),
    ("not_after", "2026-01-31", "not_after must be a moment such as"),
    ("not_after", "2026-02-30T00:00:00Z", "not_after must be a moment"),
    ("not_after", "2026-01-31T00:00:00+00:00", "not_after must be a moment"),
    ("not_after", "0000-01-31T00:00:00Z", "not_after must be a moment"),
    ("scheme", "tm9", "unknown scheme 'tm9'"),
    ("scheme", {}, "scheme must be a string"),
    ("context_width", 9, "context_width of tm1 must be 1..8, got 9"),
    ("context_width", True, "context_width must be an integer"),
    ("payload", {"slots": 1}, "payload must be null"),
    ("payload", {"slots": 1, "bits": 99}, "payload bits must be"),
    ("tokenizer", "demo", "tokenizer must be an object"),
    ("tokenizer", {"id": "demo"}, "tokenizer has unknown or missing fields: 'sha256'"),
    ("tokenizer", {"id": "demo", "sha256": "00"}, "sha256"),
    ("tokenizer", {"id": ["demo"], "sha256": "00"}, "tokenizer.id must be a string"),
    ("name", ["a"], "name must be a string"),
    ("key_id", 7, "key_id must be a string"),
    ("comment", "x", "unknown or missing fields: 'comment'"),
]


@pytest.mark.parametrize(("field", "value", "reason"), WRONG)
def test_a_wrong_field_is_named(field: str, value: object, reason: str) -> None:
    with pytest.raises(KeyringError, match=reason):
        KeyEntry.from_json({**entry().to_json(), field: value})


@pytest.mark.parametrize("field", list(entry().to_json()))
def test_no_field_may_be_missing(field: str) -> None:
    fields = entry().to_json()
    del fields[field]
    with pytest.raises(KeyringError, match=f"missing fields: '{field}'"):
        KeyEntry.from_json(fields)


def test_a_moment_is_written_in_utc() -> None:
    assert format_time(NOON.astimezone(timezone(timedelta(hours=5)))) == "2026-01-01T12:00:00Z"
