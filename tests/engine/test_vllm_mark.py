"""Answers with the mark of scheme vllm-gumbel: what is drawn, and that it is recognised."""

import asyncio

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.engine.reference import Reference, reference_answer
from tests.golden_files import load
from tests.tiny_engine import TINY_CONFIG, logits_after, tiny_core, tiny_engine, tiny_mark
from tokenmark.detector.detector import DetectionKey, Detector
from tokenmark.detector.report import Verdict
from tokenmark.engine.answer import Answer, Mark, UnmarkedReason, request_key
from tokenmark.engine.block_pool import BlockPool
from tokenmark.engine.request import Request, SamplingParams
from tokenmark.watermark.errors import RequestError, SchemeError
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.marking import RepeatScope
from tokenmark.watermark.payload import PayloadLayout
from tokenmark.watermark.prf import philox
from tokenmark.watermark.prf.family import Family
from tokenmark.watermark.scheme import Scheme

KEY = WatermarkKey.from_integer(0x5EED_0F_7E575)
SCHEME = Scheme(name="vllm-gumbel")
MARK = Mark(key=KEY, scheme=SCHEME)
MARKS = {
    "as served": MARK,
    "width 1": Mark(key=KEY, scheme=Scheme(name="vllm-gumbel", context_width=1)),
    "width 17": Mark(key=KEY, scheme=Scheme(name="vllm-gumbel", context_width=17)),
    "from the first id": Mark(key=KEY, scheme=SCHEME, warmup_nats=0.0),
    "conversation": Mark(
        key=KEY, scheme=SCHEME, warmup_nats=0.0, repeat_scope=RepeatScope.CONVERSATION
    ),
}
N_ANSWERS = 12
LENGTH = 40


def next_logits(token_ids: list[int]) -> Tensor:
    """What the model of the tiny engine gives."""
    return torch.from_numpy(logits_after(np.array(token_ids, dtype=np.int64)).astype(np.float32))


def prompt_of(number: int) -> list[int]:
    return list(b"Say it %d" % number)


def params_of(number: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=LENGTH,
        temperature=0.0 if number == 3 else 0.7 + 0.1 * (number % 6),
        top_k=20 if number % 5 == 2 else None,
        top_p=0.9 if number % 4 == 2 else 1.0,
        min_p=0.02 if number == 5 else 0.0,
        seed=number,
        ignore_eos=True,
    )


def is_marked(number: int) -> bool:
    return number % 3 != 1 and not params_of(number).is_greedy


def run(mark: Mark) -> tuple[list[list[int]], list[int]]:
    """Ids of all answers, drawn in one batch, and how many of each were marked."""
    core = tiny_core(TINY_CONFIG, BlockPool(TINY_CONFIG.n_blocks), mark=mark)
    for number in range(N_ANSWERS):
        marking = mark.begin(prompt_of(number)) if is_marked(number) else None
        reason = UnmarkedReason.OPTED_OUT if marking is None else None
        request = Request(
            request_id=str(number),
            prompt_ids=tuple(prompt_of(number)),
            params=params_of(number),
            eos_ids=frozenset(),
        )
        own_key = request_key(params_of(number).seed, 0)
        core.add(request, Answer(own_key, marking=marking, unmarked_reason=reason))
    ids, n_marked = [list[int]() for _ in range(N_ANSWERS)], [0] * N_ANSWERS
    while core.has_work:
        for result in core.step():
            assert result.error is None
            ids[int(result.request_id)] += result.token_ids
            n_marked[int(result.request_id)] = result.n_marked
    return ids, n_marked


def references(mark: Mark) -> list[Reference]:
    return [
        reference_answer(
            next_logits,
            prompt_of(number),
            params_of(number),
            mark=mark if is_marked(number) else None,
        )
        for number in range(N_ANSWERS)
    ]


@pytest.mark.parametrize("name", MARKS)
def test_a_batch_of_marked_and_unmarked_rows_draws_what_the_recipe_says(name: str) -> None:
    ids, n_marked = run(MARKS[name])
    expected = references(MARKS[name])
    assert ids == [reference.token_ids for reference in expected]
    # Where filters left one candidate nobody was behind it, and it does not count as marked.
    assert n_marked == [
        sum(np.isfinite(gap) for gap, marked in zip(each.gaps, each.marked, strict=True) if marked)
        for each in expected
    ]
    for number, count in enumerate(n_marked):
        assert (count > LENGTH // 2) is is_marked(number)


def test_words_of_another_scheme_or_key_are_told_apart() -> None:
    """The negative control: each marked answer parts, and no other does."""
    expected = [reference.token_ids for reference in references(MARK)]
    others = (tiny_mark(), Mark(key=WatermarkKey.from_integer(0x5EED_0F_7E576), scheme=SCHEME))
    for mark in others:
        ids, _ = run(mark)
        for number in range(N_ANSWERS):
            assert (ids[number] != expected[number]) is is_marked(number)


@pytest.mark.parametrize(("name", "n_texts"), [("as served", 4), ("from the first id", 1)])
def test_answers_to_one_prompt_differ(name: str, n_texts: int) -> None:
    """Without warm-up, the negative control, they are one: the key alone decides."""
    texts = {
        tuple(
            reference_answer(
                next_logits,
                prompt_of(0),
                SamplingParams(max_tokens=LENGTH, seed=seed),
                mark=MARKS[name],
            ).token_ids
        )
        for seed in range(4)
    }
    assert len(texts) == n_texts


async def generate(*, n: int = 1, max_tokens: int = 200) -> list[list[int]]:
    """Answers without a seed, as the server draws them; each says that it is marked."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    with tiny_engine(mark=MARK) as engine:
        submissions = engine.model.submissions(list(b"Tell me"), params, n=n)
        answers = {submission.request.request_id: list[int]() for submission in submissions}
        async for result in engine.model.engine.generate(submissions):
            answers[result.request_id] += result.token_ids
            assert result.finish_reason is None or result.n_marked > max_tokens // 2
    return list(answers.values())


def test_answers_without_a_seed_differ() -> None:
    """False-alarm rate 1e-10: each of three pairs coincides with probability of about e^-8."""
    answers = asyncio.run(generate(n=4, max_tokens=40))
    assert any(answer != answers[0] for answer in answers[1:])


def test_an_answer_is_recognised_by_its_key_and_by_no_other() -> None:
    """False-alarm rate 1e-9, the level; the power is beyond measure at 200 ids of 4 bits."""
    (token_ids,) = asyncio.run(generate())
    detected = {}
    for name, key in (("own", KEY), ("other", WatermarkKey.from_integer(0x5EED_0F_7E576))):
        entry = DetectionKey(name=name, key=key, scheme=SCHEME)
        detected[name] = Detector([entry], level=1e-9).detect_ids(token_ids)
    assert detected["own"].verdict is Verdict.WATERMARKED
    assert detected["other"].verdict is Verdict.NOT_DETECTED
    signal = detected["own"].best
    # The unmarked ids of the start are scored too, as vLLM does: their evidence is that of chance.
    assert signal.n_scored + signal.n_repeated == len(token_ids)
    assert signal.log_pvalue < -100


def test_a_mark_gives_the_row_states_of_its_scheme() -> None:
    published = load("vllm_goldens.json")["prf_words_key42"]
    mark = Mark(key=WatermarkKey.from_integer(42), scheme=SCHEME)
    states = mark.row_states(np.array([[1, 2, 3, 4], [4, 5, 6, 7]]))
    assert mark.family is Family.PHILOX
    assert states.shape == (2, mark.family.state_words)
    words = philox.words(states, 9)
    for row, context in enumerate(("ctx[1,2,3,4]", "ctx[4,5,6,7]")):
        expected = {int(token_id): word for token_id, word in published[context].items()}
        assert {token_id: int(words[row, token_id]) for token_id in expected} == expected
    assert tiny_mark().family is Family.CHACHA8
    assert tiny_mark().row_states(np.array([[1, 2, 3, 4]])).shape == (1, 8)


def test_it_carries_no_payload() -> None:
    with pytest.raises(SchemeError, match="carries no payload"):
        Scheme(name="vllm-gumbel", payload=PayloadLayout(slots=1, bits=4))
    with (
        tiny_engine(mark=MARK) as engine,
        pytest.raises(RequestError, match="carries no payload"),
    ):
        engine.model.submissions([1], SamplingParams(max_tokens=4), payload=5)
