import pytest

from tests.tiny_engine import tiny_engine, tiny_mark
from tokenmark.engine.answer import Mark, UnmarkedReason, request_key
from tokenmark.engine.request import SamplingParams
from tokenmark.engine.served_model import ServedModel
from tokenmark.watermark.errors import RequestError
from tokenmark.watermark.payload import PayloadLayout
from tokenmark.watermark.scheme import Scheme

PARAMS = SamplingParams(max_tokens=4, seed=9)


def model_with(mark: Mark | None) -> ServedModel:
    with tiny_engine(mark=mark) as tiny:
        return tiny.model


def reason_of(model: ServedModel, params: SamplingParams = PARAMS, *, wants: bool = True) -> object:
    (submission,) = model.submissions([1, 2], params, wants_mark=wants)
    return submission.answer.unmarked_reason


def test_why_an_answer_is_unmarked() -> None:
    marked, unmarked = model_with(tiny_mark()), model_with(None)
    # Nothing is drawn yet, so the best that can be said of a marked answer is that it is short.
    assert reason_of(marked) is UnmarkedReason.TOO_SHORT
    assert reason_of(marked, wants=False) is UnmarkedReason.OPTED_OUT
    greedy = SamplingParams(max_tokens=4, temperature=0.0)
    assert reason_of(marked, greedy) is UnmarkedReason.GREEDY
    assert reason_of(unmarked) is UnmarkedReason.SERVER_UNMARKED


def test_each_choice_has_a_stream_of_its_own() -> None:
    submissions = model_with(tiny_mark()).submissions([1, 2], PARAMS, n=3)
    keys = [submission.answer.request_key.tolist() for submission in submissions]
    assert keys == [request_key(9, choice).tolist() for choice in range(3)]
    fresh = model_with(None).submissions([1], SamplingParams(max_tokens=1), n=3)
    assert len({tuple(submission.answer.request_key.tolist()) for submission in fresh}) == 3


@pytest.mark.parametrize("token_id", [-1, 257, 2**40])
def test_a_prompt_id_outside_the_vocabulary_is_named(token_id: int) -> None:
    with pytest.raises(RequestError, match=f"prompt id {token_id} is outside"):
        model_with(None).submissions([1, token_id], PARAMS)


def test_a_payload_needs_a_mark_with_room_for_it() -> None:
    roomy = tiny_mark(Scheme(name="tm1", payload=PayloadLayout(slots=2, bits=4)))
    (submission,) = model_with(roomy).submissions([1], PARAMS, payload=0xA7)
    assert submission.answer.symbols == (7, 10)
    cases = (
        (model_with(roomy), 0, True, "from 1 to"),
        (model_with(roomy), 256, True, "from 1 to"),
        (model_with(roomy), 5, False, "needs a mark"),
        (model_with(tiny_mark()), 5, True, "carries no payload"),
        (model_with(None), 5, True, "needs a mark"),
    )
    for model, payload, wants_mark, message in cases:
        with pytest.raises(RequestError, match=message) as caught:
            model.submissions([1], PARAMS, payload=payload, wants_mark=wants_mark)
        assert caught.value.param == "watermark.payload"
