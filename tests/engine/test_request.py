import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmark.engine.request import FinishReason, Request, SamplingParams
from tokenmark.watermark.errors import RequestError

EOS = 9


def request_with(output_ids: list[int], params: dict[str, Any]) -> Request:
    return Request(
        request_id="r",
        prompt_ids=(5, 6),
        params=SamplingParams(**{"max_tokens": 4} | params),
        eos_ids=frozenset({EOS}),
        output_ids=output_ids,
    )


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 2.0, "top_p": 1.0, "min_p": 1.0, "top_k": 1},
        {"top_p": 1e-9, "min_p": 0.0},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"stop": ("x",) * 16},
        {"min_tokens": 4},
    ],
)
def test_the_ends_of_every_range_are_allowed(params: dict[str, Any]) -> None:
    SamplingParams(**{"max_tokens": 4} | params)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("temperature", -0.01),
        ("temperature", 2.01),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.01),
        ("min_p", 1.01),
        ("min_p", math.nan),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("stop", ("x",) * 17),
        ("stop", ("x", "")),
        ("min_tokens", -1),
        ("min_tokens", 5),
    ],
)
def test_a_value_outside_its_range_is_named(param: str, value: object) -> None:
    with pytest.raises(RequestError, match=rf"^{param}\b") as caught:
        SamplingParams(**{"max_tokens": 4} | {param: value})  # type: ignore[arg-type]  # built from a table
    assert caught.value.param == param
    assert "\n" not in str(caught.value)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="no tokens") as caught:
        Request(
            request_id="r",
            prompt_ids=(),
            params=SamplingParams(max_tokens=1),
            eos_ids=frozenset(),
        )
    assert caught.value.param == "prompt"


def test_greedy_is_temperature_zero() -> None:
    assert SamplingParams(max_tokens=1, temperature=0).is_greedy
    assert SamplingParams(max_tokens=1, temperature=1e-6).is_greedy
    assert not SamplingParams(max_tokens=1, temperature=1e-3).is_greedy


def test_no_rendering_shows_the_users_text() -> None:
    params = SamplingParams(max_tokens=3, stop=("my secret",))
    request = Request(
        request_id="r",
        prompt_ids=(31337, 31338),
        params=params,
        eos_ids=frozenset({2}),
        output_ids=[31339],
    )
    for rendered in (repr(request), str(request), f"{[request]}", repr(params)):
        assert "secret" not in rendered
        assert "3133" not in rendered
    with pytest.raises(RequestError) as caught:
        SamplingParams(max_tokens=3, stop=("my secret", ""))
    assert "secret" not in str(caught.value)


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=6),
    st.lists(st.integers(0, 99), max_size=6),
    st.integers(0, 13),
    st.integers(0, 13),
)
def test_token_ids_are_a_slice_of_prompt_and_answer(
    prompt: list[int], output: list[int], start: int, stop: int
) -> None:
    request = Request(
        request_id="r",
        prompt_ids=tuple(prompt),
        params=SamplingParams(max_tokens=6),
        eos_ids=frozenset(),
        output_ids=output,
    )
    assert list(request.token_ids(start, stop)) == (prompt + output)[start:stop]
    assert request.n_tokens == request.n_prompt + request.n_output == len(prompt + output)


@pytest.mark.parametrize(
    ("output_ids", "params", "reason"),
    [
        ([], {}, None),
        ([1, 2, 3], {}, None),
        ([1, 2, 3, 4], {}, FinishReason.LENGTH),
        ([EOS], {}, FinishReason.STOP),
        ([1, 2, 3, EOS], {}, FinishReason.STOP),
        ([EOS, 1], {}, None),
        ([1, EOS], {"ignore_eos": True}, None),
        ([1, 2, 3, EOS], {"ignore_eos": True}, FinishReason.LENGTH),
        ([1, EOS], {"min_tokens": 2}, None),
        ([1, 2, EOS], {"min_tokens": 2}, FinishReason.STOP),
        ([1, 2, 3, EOS], {"min_tokens": 4}, FinishReason.LENGTH),
    ],
)
def test_ids_end_an_answer_by_eos_or_by_length(
    output_ids: list[int], params: dict[str, Any], reason: FinishReason | None
) -> None:
    assert request_with(output_ids, params).finish_reason_by_ids() is reason


@pytest.mark.parametrize("min_tokens", [0, 1, 2, 3])
@pytest.mark.parametrize("n_output", [0, 1, 2, 3])
def test_an_eos_that_was_allowed_is_an_eos_that_ends(min_tokens: int, n_output: int) -> None:
    request = request_with([1] * n_output, {"min_tokens": min_tokens})
    was_allowed = request.is_eos_allowed
    request.output_ids.append(EOS)
    assert (request.finish_reason_by_ids() is FinishReason.STOP) == was_allowed


def test_finish_reasons_are_words_of_the_protocol() -> None:
    assert [str(reason) for reason in FinishReason] == ["stop", "length", "abort", "error"]


def test_requests_are_equal_only_to_themselves() -> None:
    assert request_with([1], {}) != request_with([1], {})
