"""The case of the whole engine with the mark on, beside the same engine with the mark off.

Knows nothing of how an id is drawn. Two engines over the same weights answer the same prompts, step
by step in turn, so that whatever slows the machine for longer than a step slows both. What slows
it for less falls on a few steps: the ratio of a pair is the median over its steps, with the ratio
of the sums told beside it.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
import torch

from tokenmark.detector.detector import DetectionKey, Detector
from tokenmark.detector.report import Verdict
from tokenmark.engine.answer import Answer, Mark, UnmarkedReason, request_key
from tokenmark.engine.block_pool import BlockPool
from tokenmark.engine.config import EngineConfig
from tokenmark.engine.core import EngineCore
from tokenmark.engine.model_runner import ModelRunner, default_dtype
from tokenmark.engine.request import Request, SamplingParams
from tokenmark.engine.sampler import Sampler
from tokenmark.engine.scheduler import Scheduler
from tokenmark.engine.text_codec import TextCodec
from tokenmark.eval.demo_model import demo_checkpoint, demo_llama, prose_ids
from tokenmark.eval.measuring import Case, GateError, Run, Tier
from tokenmark.eval.paired_ratio import MIN_PAIRS, ratio_interval
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.scheme import Scheme

__all__ = ["ENGINE_CASES", "EnginePair", "Generation", "check_marks", "is_narrow"]

_N_PROMPTS: Final = 16
_N_PROMPT_IDS: Final = 64
_N_TOKENS: Final = 128
_MAX_PAIRS: Final = 100
_HALF_WIDTH: Final = 0.005
# Of one text; a run of the gate examines sixteen without a mark.
_LEVEL: Final = 1e-6


@dataclass(slots=True, eq=False)
class Generation:
    """What one engine made of all prompts, and what each of its steps took."""

    core: EngineCore
    requests: list[Request] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, request: Request, answer: Answer) -> None:
        """Queue a prompt."""
        self.requests.append(request)
        self.answers.append(answer)
        self.core.add(request, answer)

    def step(self) -> None:
        """Compute one step.

        Raises:
            GateError: it failed for one of the prompts.
        """
        started = time.perf_counter()
        results = self.core.step()
        self.seconds.append(time.perf_counter() - started)
        for result in results:
            if result.error is not None:
                raise GateError(str(result.error))

    def run(self, beside: "Generation | None" = None) -> Run:
        """What all of it took, beside one whose steps were taken in turn with these."""
        step_ratio = None
        if beside is not None:
            pairs = zip(self.seconds, beside.seconds, strict=True)
            step_ratio = statistics.median(own / other for own, other in pairs)
        return Run(
            seconds=sum(self.seconds),
            n_tokens=sum(request.n_output for request in self.requests),
            first_s=self.seconds[0],
            peer=None if beside is None else beside.run(),
            step_ratio=step_ratio,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnginePair:
    """Two engines that differ in the mark alone, and what both are asked.

    Args:
        marked: the one that marks.
        plain: the other.
        mark: what is marked with.
        prompts: the ids of each prompt.
        n_tokens: ids of each answer.
    """

    marked: EngineCore
    plain: EngineCore
    mark: Mark
    prompts: Sequence[tuple[int, ...]]
    n_tokens: int

    def generate(self, number: int) -> tuple[Generation, Generation]:
        """The answers of the marking engine and of the other one, step by step in turn.

        Args:
            number: of this pair; the seed of its ordinary draws, and which engine begins.
        """
        marked, plain = Generation(self.marked), Generation(self.plain)
        for i, prompt_ids in enumerate(self.prompts):
            key = request_key(number, i)
            marked.add(self._request(number, i), Answer(key, marking=self.mark.begin(prompt_ids)))
            plain.add(
                self._request(number, i),
                Answer(key, marking=None, unmarked_reason=UnmarkedReason.SERVER_UNMARKED),
            )
        order = [marked, plain] if number % 2 == 0 else [plain, marked]
        while self.marked.has_work or self.plain.has_work:
            for generation in order:
                generation.step()
            order.reverse()
        return marked, plain

    def _request(self, number: int, choice: int) -> Request:
        params = SamplingParams(max_tokens=self.n_tokens, seed=number, ignore_eos=True)
        return Request(
            request_id=f"{number}-{choice}",
            prompt_ids=self.prompts[choice],
            params=params,
            eos_ids=frozenset(),
            choice=choice,
        )


def check_marks(pair: EnginePair, marked: Generation, plain: Generation) -> None:
    """Raise GateError unless the mark is in every marked answer, in most of it, and in no other."""
    key = DetectionKey(name="bench", key=pair.mark.key, scheme=pair.mark.scheme)
    detector = Detector([key], level=_LEVEL)
    for generation, has_mark in ((marked, True), (plain, False)):
        for request, answer in zip(generation.requests, generation.answers, strict=True):
            if request.n_output != pair.n_tokens:
                raise GateError(f"an answer has {request.n_output} ids and not {pair.n_tokens}")
            least, most = (pair.n_tokens // 2, pair.n_tokens) if has_mark else (0, 0)
            if not least <= answer.n_marked <= most:
                raise GateError(f"{answer.n_marked} of {pair.n_tokens} ids were marked")
            verdict = detector.detect_ids(request.output_ids).verdict
            if (verdict is Verdict.WATERMARKED) is not has_mark:
                raise GateError(f"an answer {'with' if has_mark else 'without'} mark: {verdict}")


def is_narrow(runs: Sequence[Run]) -> bool:
    """Whether the mean step ratio of the runs is known to within 0.005 at 95 %."""
    if len(runs) < MIN_PAIRS:
        return False
    ratios = [run.step_ratio for run in runs if run.step_ratio is not None]
    return ratio_interval(ratios).half_width <= _HALF_WIDTH


def _demo_pair() -> EnginePair:
    model = demo_llama(default_dtype(torch.device("cpu")))
    length = _N_PROMPT_IDS + _N_TOKENS
    config = EngineConfig(
        max_model_len=length,
        n_blocks=_N_PROMPTS * -(-length // 16),
        block_size=16,
        # The first step reads all prompts, and each later one gives every answer an id.
        max_batched_tokens=_N_PROMPTS * _N_PROMPT_IDS,
        max_running=_N_PROMPTS,
    )
    decode = TextCodec(demo_checkpoint().tokenizer_json).decode

    def core(mark: Mark | None) -> EngineCore:
        return EngineCore(
            scheduler=Scheduler(config, BlockPool(config.n_blocks)),
            runner=ModelRunner(model, config),
            sampler=Sampler(mark),
            decode=decode,
        )

    mark = Mark(key=WatermarkKey.generate(), scheme=Scheme(name="tm1"))
    ids = prose_ids(_N_PROMPTS * _N_PROMPT_IDS)
    prompts = [ids[i : i + _N_PROMPT_IDS] for i in range(0, len(ids), _N_PROMPT_IDS)]
    return EnginePair(
        marked=core(mark), plain=core(None), mark=mark, prompts=prompts, n_tokens=_N_TOKENS
    )


def _prepare(_folder: Path) -> Callable[[], Run]:
    pair = _demo_pair()
    check_marks(pair, *pair.generate(0))
    ratios: list[float] = []

    def run() -> Run:
        marked, plain = pair.generate(len(ratios) + 1)
        run = marked.run(beside=plain)
        assert run.step_ratio is not None
        ratios.append(run.step_ratio)
        click.echo(f"pair {len(ratios)}: {ratios[-1]:.4f}, {_so_far(ratios)}", err=True)
        return run

    return run


def _so_far(ratios: Sequence[float]) -> str:
    if len(ratios) < MIN_PAIRS:
        return f"mean {statistics.geometric_mean(ratios):.4f}"
    interval = ratio_interval(ratios)
    return f"mean {interval.mean:.4f}, 95 % {interval.low:.4f} to {interval.high:.4f}"


ENGINE_CASES: Final[Mapping[str, Case]] = {
    "engine-mark": Case(
        what="16 answers of 128 tokens at once by the demo model, tm1 mark on; peer: mark off",
        prepare=_prepare,
        n_runs=_MAX_PAIRS,
        is_enough=is_narrow,
        tier=Tier.LONG,
    )
}
"""Every case by name."""
