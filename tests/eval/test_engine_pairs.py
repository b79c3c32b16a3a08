import dataclasses

import pytest

from tests.tiny_engine import TINY_CONFIG, tiny_core, tiny_mark
from tokenmark.engine.answer import Mark
from tokenmark.engine.block_pool import BlockPool
from tokenmark.engine.core import EngineCore, StepResult
from tokenmark.eval.engine_pairs import EnginePair, check_marks, is_narrow
from tokenmark.eval.measuring import GateError, Run
from tokenmark.watermark.key import WatermarkKey

N_TOKENS = 60


def core(mark: Mark | None) -> EngineCore:
    return tiny_core(TINY_CONFIG, BlockPool(TINY_CONFIG.n_blocks), mark=mark)


def tiny_pair() -> EnginePair:
    mark = tiny_mark()
    return EnginePair(
        marked=core(mark),
        plain=core(None),
        mark=mark,
        prompts=[tuple(b"Once upon a time"), tuple(b"In a hole lived"), tuple(b"Call me")],
        n_tokens=N_TOKENS,
    )


def test_only_the_marking_engine_marks() -> None:
    pair = tiny_pair()
    marked, plain = pair.generate(0)
    check_marks(pair, marked, plain)
    assert len(marked.answers) == len(plain.answers) == 3
    # A step reads the prompts and draws; each later one draws.
    assert len(marked.seconds) == len(plain.seconds) == N_TOKENS


def test_what_an_engine_took_is_the_sum_of_its_steps() -> None:
    marked, plain = tiny_pair().generate(0)
    run = marked.run(beside=plain)
    assert run.seconds == sum(marked.seconds)
    assert run.first_s == marked.seconds[0]
    assert run.n_tokens == 3 * N_TOKENS
    assert run.peer is not None
    assert run.peer.seconds == sum(plain.seconds)


def test_the_ratio_of_a_pair_is_that_of_its_steps_and_not_of_one_that_was_disturbed() -> None:
    marked, plain = tiny_pair().generate(0)
    plain.seconds = [1.0] * N_TOKENS
    marked.seconds = [1.02] * (N_TOKENS - 3) + [50.0, 60.0, 70.0]
    assert marked.run(beside=plain).step_ratio == pytest.approx(1.02)
    assert marked.run().step_ratio is None


def test_an_engine_answers_pair_after_pair() -> None:
    pair = tiny_pair()
    answers = [pair.generate(number)[0].requests[0].output_ids for number in (0, 1, 0)]
    assert answers[0] != answers[1]


@pytest.mark.parametrize(("number", "expected"), [(0, "ABBAAB"), (1, "BAABBA")])
def test_engines_take_turns_at_going_first(
    number: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, order, step = tiny_pair(), list[str](), EngineCore.step

    def noted(engine: EngineCore) -> list[StepResult]:
        order.append("A" if engine is pair.marked else "B")
        return step(engine)

    monkeypatch.setattr(EngineCore, "step", noted)
    pair.generate(number)
    assert "".join(order[:6]) == expected
    assert len(order) == 2 * N_TOKENS


def test_unmarked_answers_in_place_of_marked_ones_are_told() -> None:
    pair = tiny_pair()
    marked, plain = pair.generate(0)
    with pytest.raises(GateError, match="0 of 60 ids were marked"):
        check_marks(pair, plain, plain)
    with pytest.raises(GateError, match="of 60 ids were marked"):
        check_marks(pair, marked, marked)


def test_a_mark_of_another_key_is_told() -> None:
    pair = tiny_pair()
    marked, plain = pair.generate(0)
    other = Mark(key=WatermarkKey.from_hex("a1" * 32), scheme=pair.mark.scheme)
    with pytest.raises(GateError, match="an answer with mark"):
        check_marks(dataclasses.replace(pair, mark=other), marked, plain)


def test_a_mark_that_ids_do_not_show_is_told() -> None:
    pair = tiny_pair()
    marked, plain = pair.generate(0)
    plain.requests[1].output_ids[:] = marked.requests[1].output_ids
    with pytest.raises(GateError, match="an answer without mark"):
        check_marks(pair, marked, plain)


def test_a_short_answer_is_told() -> None:
    pair = tiny_pair()
    marked, plain = pair.generate(0)
    with pytest.raises(GateError, match="has 60 ids and not 61"):
        check_marks(dataclasses.replace(pair, n_tokens=N_TOKENS + 1), marked, plain)


def test_a_step_that_fails_is_told() -> None:
    pair = dataclasses.replace(tiny_pair(), prompts=[tuple(b"\x00")])
    with pytest.raises(GateError, match="no usable logits"):
        pair.generate(0)


def runs_of(*ratios: float) -> list[Run]:
    return [Run(seconds=1.0, peer=Run(seconds=1.0), step_ratio=ratio) for ratio in ratios]


def test_pairs_are_enough_once_their_interval_is_narrow() -> None:
    # With 20 pairs of 1 +- d the half width is close to 0.4818 d.
    assert not is_narrow(runs_of(*[1.0] * 19))
    assert is_narrow(runs_of(*[1.0] * 20))
    assert is_narrow(runs_of(*[0.99, 1.01] * 10))
    assert not is_narrow(runs_of(*[0.9, 1.1] * 10))
    assert not is_narrow(runs_of(*[0.989, 1.011] * 10))
    assert is_narrow(runs_of(*[0.989, 1.011] * 20))
