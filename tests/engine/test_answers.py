"""What the marking rules do to whole answers: diversity, repetition, honest accounting."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.engine.reference import reference_answer
from tests.tiny_engine import tiny_core, tiny_mark
from tokenmark.engine.answer import Answer, Mark, UnmarkedReason, request_key
from tokenmark.engine.block_pool import BlockPool
from tokenmark.engine.config import EngineConfig
from tokenmark.engine.request import FinishReason, Request, SamplingParams
from tokenmark.watermark import marking
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.scheme import Scheme

CONFIG = EngineConfig(max_model_len=512, n_blocks=256)


def answer_of(seed: int | None, *, choice: int = 0, prompt: str = "once", n: int = 40) -> list[int]:
    """The marked ids of one answer of the tiny engine."""
    core = tiny_core(CONFIG, BlockPool(CONFIG.n_blocks), mark=tiny_mark())
    ids = tuple(prompt.encode())
    params = SamplingParams(max_tokens=n, seed=seed, ignore_eos=True)
    request = Request(request_id="a", prompt_ids=ids, params=params, eos_ids=frozenset())
    core.add(request, Answer(request_key(seed, choice), marking=tiny_mark().begin(ids)))
    drawn: list[int] = []
    while core.has_work:
        for result in core.step():
            drawn += result.token_ids
    return drawn


def test_two_runs_of_one_prompt_differ() -> None:
    """False-alarm rate 1e-10: each of three pairs coincides with probability of about e^-8."""
    assert any(answer_of(None, prompt=p) != answer_of(None, prompt=p) for p in ("a", "b", "c"))


def test_four_choices_are_four_texts() -> None:
    answers = {tuple(answer_of(7, choice=choice)) for choice in range(4)}
    assert len(answers) == 4


def test_a_seed_gives_the_same_answer_again() -> None:
    assert answer_of(11) == answer_of(11)
    assert answer_of(11) != answer_of(12)


def sure_start(token_ids: list[int]) -> Tensor:
    """Four nearly certain ids after a prompt of one, then fifty equally likely ones."""
    logits = torch.zeros(50)
    if len(token_ids) < 5:
        logits[len(token_ids)] = 30.0
    return logits


@pytest.mark.parametrize(("warmup_nats", "n_texts"), [(8.0, 6), (0.0, 1)])
def test_warmup_keeps_answers_with_a_certain_start_apart(warmup_nats: float, n_texts: int) -> None:
    """Without warm-up, the negative control, all answers are one."""
    mark = Mark(key=tiny_mark().key, scheme=Scheme(name="tm1"), warmup_nats=warmup_nats)
    answers = {
        tuple(
            reference_answer(
                sure_start, [0], SamplingParams(max_tokens=30, seed=seed), mark=mark
            ).token_ids
        )
        for seed in range(6)
    }
    assert len(answers) == n_texts


def markov_chain(seed: int) -> Callable[[list[int]], Tensor]:
    """A language of forty ids in which the next id depends on the last one only."""
    table = torch.from_numpy(np.random.default_rng(seed).normal(scale=2.5, size=(40, 40)))
    return lambda token_ids: table[token_ids[-1]].float()


def repetition(token_ids: Sequence[int], order: int = 8) -> float:
    """Share of windows of `order` ids that occurred before."""
    windows = [tuple(token_ids[i : i + order]) for i in range(len(token_ids) - order)]
    return 1 - len(set(windows)) / len(windows)


class _Forgetful(marking.ContextHistory):
    """Finds every context new: a generator without deduplication."""

    def record(self, context: Sequence[int]) -> bool:
        super().record(context)
        return True


@pytest.mark.stat
@pytest.mark.parametrize("history", [marking.ContextHistory, _Forgetful])
def test_deduplication_keeps_repetition_at_the_unmarked_level(
    history: type[marking.ContextHistory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fixed seeds, so the outcome is fixed; the margin is ten times the spread between seeds.

    Without deduplication, the negative control, the chain runs into a loop.
    """
    monkeypatch.setattr(marking, "ContextHistory", history)
    differences: list[float] = []
    for seed in range(6):
        key = WatermarkKey.from_bytes(bytes([seed + 1]) * 32)
        mark = Mark(key=key, scheme=Scheme(name="tm1", context_width=2))
        params = SamplingParams(max_tokens=300, seed=seed)
        marked, unmarked = (
            reference_answer(markov_chain(seed), [0], params, mark=choice).token_ids
            for choice in (mark, None)
        )
        differences.append(repetition(marked) - repetition(unmarked))
    mean = float(np.mean(differences))
    if history is _Forgetful:
        assert mean > 0.3
    else:
        assert abs(mean) < 0.05


def finish(params: SamplingParams, mark: Mark | None) -> tuple[int, UnmarkedReason | None]:
    core = tiny_core(CONFIG, BlockPool(CONFIG.n_blocks), mark=mark)
    request = Request(request_id="a", prompt_ids=(65,), params=params, eos_ids=frozenset())
    answer = Answer(
        request_key(1, 0),
        marking=None if mark is None else mark.begin(()),
        unmarked_reason=UnmarkedReason.SERVER_UNMARKED if mark is None else None,
    )
    core.add(request, answer)
    while core.has_work:
        last = core.step()
    assert last[0].finish_reason is FinishReason.LENGTH
    return last[0].n_marked, last[0].unmarked_reason


def test_an_answer_says_how_much_of_it_is_marked_and_why_not() -> None:
    long, short = SamplingParams(max_tokens=40), SamplingParams(max_tokens=3)
    n_marked, reason = finish(long, tiny_mark())
    assert 20 < n_marked <= 36
    assert reason is None
    assert finish(short, tiny_mark()) == (0, UnmarkedReason.TOO_SHORT)
    assert finish(long, None) == (0, UnmarkedReason.SERVER_UNMARKED)


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}])
def test_a_sole_candidate_is_not_called_marked(options: dict[str, float]) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True, **options)  # type: ignore[arg-type]
    assert finish(params, tiny_mark()) == (0, UnmarkedReason.NO_CHOICE)
