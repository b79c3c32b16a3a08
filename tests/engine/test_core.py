"""The engine against the slow, obvious generator, alone and in company."""

import numpy as np
import pytest
import torch

from tests.engine.reference import Reference, reference_answer
from tests.steps import all_logits
from tests.tiny_engine import TINY_CONFIG, tiny_core, tiny_mark
from tests.tiny_model import TINY, tiny_llama
from tokenmark.engine.answer import Answer, Mark, UnmarkedReason, request_key
from tokenmark.engine.block_pool import BlockPool
from tokenmark.engine.config import EngineConfig
from tokenmark.engine.core import EngineCore, StepResult
from tokenmark.engine.model_runner import ModelOutput, ModelRunner
from tokenmark.engine.request import FinishReason, Request, SamplingParams
from tokenmark.engine.sampler import Sampler
from tokenmark.engine.scheduler import Scheduler, SchedulerOutput
from tokenmark.watermark.errors import SamplingError

N_ANSWERS = 16
LENGTH = 48
NEAR_TIE = 1e-4

ROOMY = EngineConfig(max_model_len=128, n_blocks=512, block_size=4)
CONFIGS = {
    "roomy": ROOMY,
    # A prompt takes several steps, and blocks run out many times over.
    "chunked": EngineConfig(max_model_len=128, n_blocks=512, block_size=4, max_batched_tokens=7),
    "preempting": EngineConfig(
        max_model_len=128, n_blocks=40, block_size=4, max_batched_tokens=32, max_running=8
    ),
}


def params_of(number: int) -> SamplingParams:
    """Marked and unmarked rows, greedy ones and filtered ones, side by side."""
    return SamplingParams(
        max_tokens=LENGTH,
        temperature=0.0 if number % 8 == 3 else 0.7 + 0.1 * (number % 6),
        top_k=20 if number % 5 == 2 else None,
        top_p=0.9 if number % 4 == 1 else 1.0,
        min_p=0.02 if number % 7 == 5 else 0.0,
        seed=number,
        ignore_eos=True,
    )


def mark_of(number: int) -> Mark | None:
    return None if number % 3 == 1 else tiny_mark()


def prompt_of(number: int) -> list[int]:
    return np.random.default_rng(number).integers(0, TINY.vocab_size, 3 + 2 * number).tolist()


def submit(core: EngineCore, number: int) -> None:
    params, mark = params_of(number), mark_of(number)
    marking = None if mark is None or params.is_greedy else mark.begin(prompt_of(number))
    reason = UnmarkedReason.OPTED_OUT if marking is None else None
    request = Request(
        request_id=str(number),
        prompt_ids=tuple(prompt_of(number)),
        params=params,
        eos_ids=frozenset(),
    )
    core.add(request, Answer(request_key(params.seed, 0), marking=marking, unmarked_reason=reason))


def run(core: EngineCore) -> dict[str, list[int]]:
    ids: dict[str, list[int]] = {}
    while core.has_work:
        for result in core.step():
            ids.setdefault(result.request_id, []).extend(result.token_ids)
        core.check_integrity()
    return ids


def llama_core(config: EngineConfig) -> EngineCore:
    return EngineCore(
        scheduler=Scheduler(config, BlockPool(config.n_blocks)),
        runner=ModelRunner(tiny_llama(), config),
        sampler=Sampler(tiny_mark()),
        decode=lambda ids: " ".join(map(str, ids)),
    )


@pytest.fixture(scope="module")
def references() -> list[Reference]:
    model = tiny_llama()

    def next_logits(token_ids: list[int]) -> torch.Tensor:
        return all_logits(model, token_ids)[-1]

    return [
        reference_answer(next_logits, prompt_of(i), params_of(i), mark=mark_of(i))
        for i in range(N_ANSWERS)
    ]


def assert_same_but_for_near_ties(answers: dict[str, list[int]], expected: list[Reference]) -> None:
    """Answers may part only where the race was nearly a tie, and in at most one of sixteen."""
    n_parted = 0
    for number, reference in enumerate(expected):
        ids = answers[str(number)]
        assert len(ids) == LENGTH
        parted = [
            i
            for i, pair in enumerate(zip(ids, reference.token_ids, strict=True))
            if len(set(pair)) > 1
        ]
        if parted:
            n_parted += 1
            assert reference.gaps[parted[0]] < NEAR_TIE
    assert n_parted <= 1


@pytest.mark.parametrize("name", CONFIGS)
def test_a_batch_of_sixteen_draws_what_the_obvious_generator_draws(
    name: str, references: list[Reference]
) -> None:
    core = llama_core(CONFIGS[name])
    for number in range(N_ANSWERS):
        submit(core, number)
    assert_same_but_for_near_ties(run(core), references)
    assert any(any(reference.marked) for reference in references)


def test_alone_is_the_same_as_among_fifteen_others(references: list[Reference]) -> None:
    answers: dict[str, list[int]] = {}
    for number in range(N_ANSWERS):
        core = llama_core(ROOMY)
        submit(core, number)
        answers |= run(core)
    assert_same_but_for_near_ties(answers, references)


def test_a_wrong_word_is_told_from_a_near_tie(references: list[Reference]) -> None:
    """The negative control: another key's words part early and with wide gaps."""
    answers = {str(i): list(reference.token_ids) for i, reference in enumerate(references)}
    answers["0"][20] = (answers["0"][20] + 1) % TINY.vocab_size
    with pytest.raises(AssertionError):
        assert_same_but_for_near_ties(answers, references)


class _SpoilingRunner:
    """Makes the logits of one request useless."""

    def __init__(self, inner: ModelRunner, victim: str, value: float) -> None:
        self._inner, self._victim, self._value = inner, victim, value

    def run(self, output: SchedulerOutput) -> ModelOutput:
        computed = self._inner.run(output)
        logits = computed.logits.clone()
        if self._victim in computed.request_ids:
            logits[computed.request_ids.index(self._victim)] = self._value
        return ModelOutput(computed.request_ids, logits)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_a_row_without_usable_logits_fails_alone(value: float, references: list[Reference]) -> None:
    core = EngineCore(
        scheduler=Scheduler(ROOMY, BlockPool(ROOMY.n_blocks)),
        runner=_SpoilingRunner(ModelRunner(tiny_llama(), ROOMY), "2", value),
        sampler=Sampler(tiny_mark()),
        decode=lambda ids: " ".join(map(str, ids)),
    )
    for number in range(4):
        submit(core, number)
    results: list[StepResult] = []
    while core.has_work:
        results += core.step()
        core.check_integrity()
    failed = [result for result in results if result.error is not None]
    assert [(result.request_id, result.finish_reason) for result in failed] == [
        ("2", FinishReason.ERROR)
    ]
    assert isinstance(failed[0].error, SamplingError)
    for number in (0, 1, 3):
        ids = [
            i for result in results if result.request_id == str(number) for i in result.token_ids
        ]
        assert len(ids) == len(references[number].token_ids)


def test_min_tokens_keeps_the_end_away_and_eos_then_ends_the_answer() -> None:
    eos_ids = frozenset(range(40, 97))
    for min_tokens in (0, 12):
        core = llama_core(ROOMY)
        params = SamplingParams(max_tokens=60, min_tokens=min_tokens, seed=5)
        core.add(
            Request(request_id="a", prompt_ids=(1, 2), params=params, eos_ids=eos_ids),
            Answer(request_key(5, 0), marking=None, unmarked_reason=UnmarkedReason.SERVER_UNMARKED),
        )
        ids = run(core)["a"]
        assert not eos_ids & set(ids[:-1])
        assert ids[-1] in eos_ids
        assert len(ids) > min_tokens


def test_an_aborted_request_gives_its_blocks_back_at_any_stage() -> None:
    pool = BlockPool(TINY_CONFIG.n_blocks)
    core = tiny_core(TINY_CONFIG, pool, mark=tiny_mark())
    for stage in range(4):
        submit(core, 0)
        for _ in range(stage):
            core.step()
        core.abort("0")
        assert pool.n_free == TINY_CONFIG.n_blocks
        assert not core.has_work
        core.check_integrity()
    core.abort("never there")


@pytest.mark.parametrize("temperature", [5e-324, 1e-38, 1e-5])
def test_a_tiny_temperature_takes_the_likeliest_id(temperature: float) -> None:
    tiny, zero = (
        SamplingParams(max_tokens=9, temperature=value, ignore_eos=True)
        for value in (temperature, 0.0)
    )
    assert tiny.is_greedy
    answers = []
    for params in (tiny, zero):
        core = llama_core(ROOMY)
        request = Request(request_id="a", prompt_ids=(1,), params=params, eos_ids=frozenset())
        reason = UnmarkedReason.GREEDY
        core.add(request, Answer(request_key(1, 0), marking=None, unmarked_reason=reason))
        answers.append(run(core)["a"])
    assert answers[0] == answers[1]


def test_logits_that_temperature_lifts_out_of_range_end_one_request_only() -> None:
    core = EngineCore(
        scheduler=Scheduler(ROOMY, BlockPool(ROOMY.n_blocks)),
        runner=_SpoilingRunner(ModelRunner(tiny_llama(), ROOMY), "0", 3e38),
        sampler=Sampler(tiny_mark()),
        decode=lambda ids: " ".join(map(str, ids)),
    )
    # 3e38 / 0.7 is infinite in float32, and finite before.
    for number in (0, 1):
        submit(core, number)
    answers = run(core)
    assert answers["0"] == []
    assert len(answers["1"]) == LENGTH
