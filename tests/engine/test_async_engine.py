import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from tests.tiny_engine import STOPS_THE_ENGINE, TinyEngine, tiny_engine, tiny_mark
from tokenmark.engine.config import EngineConfig
from tokenmark.engine.core import StepResult
from tokenmark.engine.request import FinishReason, SamplingParams
from tokenmark.watermark.errors import CapacityError, RequestError


def generate(
    tiny: TinyEngine, prompt: str = "hello", *, n: int = 1, max_tokens: int = 20
) -> AsyncGenerator[StepResult, None]:
    params = SamplingParams(max_tokens=max_tokens, seed=1, ignore_eos=True)
    submissions = tiny.model.submissions(list(prompt.encode()), params, n=n)
    results = tiny.model.engine.generate(submissions)
    assert isinstance(results, AsyncGenerator)
    return results


async def until_free(tiny: TinyEngine) -> None:
    for _ in range(500):
        if tiny.pool.n_free == tiny.pool.n_blocks:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{tiny.pool.n_held} blocks are still held")


def test_choices_come_interleaved_and_end_each() -> None:
    async def run() -> None:
        with tiny_engine(mark=tiny_mark()) as tiny:
            results = [result async for result in generate(tiny, n=3)]
            ended = [result for result in results if result.finish_reason is not None]
            assert {result.finish_reason for result in ended} == {FinishReason.LENGTH}
            assert len({result.request_id for result in ended}) == 3
            assert [result.n_output for result in ended] == [20] * 3
            await until_free(tiny)

    asyncio.run(run())


def test_a_closed_iterator_frees_its_blocks() -> None:
    async def run() -> None:
        with tiny_engine(step_s=0.002) as tiny:
            async with aclosing(generate(tiny, n=2, max_tokens=400)) as results:
                await anext(results)
                assert tiny.pool.n_held > 0
            await until_free(tiny)
            # The engine goes on with the next request.
            assert [r async for r in generate(tiny)][-1].finish_reason is FinishReason.LENGTH

    asyncio.run(run())


def test_a_request_that_cannot_fit_is_refused_and_takes_no_other_with_it() -> None:
    async def run() -> None:
        with tiny_engine() as tiny:
            with pytest.raises(RequestError, match="exceed the context"):
                await anext(generate(tiny, max_tokens=600))
            results = [result async for result in generate(tiny)]
            assert results[-1].n_output == 20

    asyncio.run(run())


def test_a_full_queue_refuses_all_choices_at_once() -> None:
    async def run() -> None:
        config = EngineConfig(max_model_len=64, n_blocks=4, max_running=1, max_queued=2)
        with tiny_engine(config, step_s=0.002) as tiny:
            async with aclosing(generate(tiny, n=2, max_tokens=50)) as first:
                await anext(first)
                with pytest.raises(CapacityError, match="waiting"):
                    await anext(generate(tiny, n=2))
                rest = [result async for result in first]
            assert sum(result.finish_reason is not None for result in rest) == 2
            await until_free(tiny)

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_reaches_every_client_and_the_health_check() -> None:
    async def run() -> None:
        with tiny_engine(step_s=0.002) as tiny:
            async with aclosing(generate(tiny, max_tokens=400)) as bystander:
                await anext(bystander)
                with pytest.raises(CapacityError, match="internal error"):
                    await anext(generate(tiny, "x" + STOPS_THE_ENGINE))
                with pytest.raises(CapacityError, match="internal error"):
                    [result async for result in bystander]
            assert not tiny.model.engine.is_healthy
            with pytest.raises(CapacityError, match="has stopped"):
                await anext(generate(tiny))

    asyncio.run(run())


def test_a_stopped_engine_takes_no_request() -> None:
    async def run() -> None:
        with tiny_engine() as tiny:
            pass
        with pytest.raises(CapacityError, match="has stopped"):
            await anext(generate(tiny))

    asyncio.run(run())


def test_nobody_waits_for_an_engine_that_was_left() -> None:
    async def run() -> None:
        with tiny_engine(step_s=0.002) as tiny:
            results = generate(tiny, max_tokens=400)
            await anext(results)
        with pytest.raises(CapacityError, match="shutting down"):
            async for _ in results:
                pass

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_who_asked_while_the_engine_failed() -> None:
    async def run() -> None:
        with tiny_engine(step_s=0.05) as tiny:
            doomed = asyncio.ensure_future(anext(generate(tiny, "x" + STOPS_THE_ENGINE)))
            await asyncio.sleep(0.02)
            late = [asyncio.ensure_future(anext(generate(tiny))) for _ in range(4)]
            outcomes = await asyncio.gather(doomed, *late, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [CapacityError] * 5

    asyncio.run(asyncio.wait_for(run(), timeout=20))


def test_an_abandoned_answer_counts_as_aborted_with_its_tokens() -> None:
    async def run() -> None:
        with tiny_engine(step_s=0.002, mark=tiny_mark()) as tiny:
            async with aclosing(generate(tiny, max_tokens=400)) as results:
                for _ in range(10):
                    await anext(results)
            await until_free(tiny)
            registry = tiny.model.metrics.registry
            aborted = registry.get_sample_value("tokenmark_answers_total", {"reason": "abort"})
            assert aborted == 1
            drawn = sum(
                registry.get_sample_value("tokenmark_generated_tokens_total", {"marked": marked})
                or 0
                for marked in ("true", "false")
            )
            assert drawn >= 10

    asyncio.run(run())
