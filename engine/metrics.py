"""Counters of the engine in Prometheus form. Knows nothing of texts, keys or who asked."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from tokenmark.engine.core import StepResult

__all__ = ["EngineMetrics"]


class EngineMetrics:
    """What the engine has done since it started.

    Args:
        registry: where the metrics are collected; one server has one.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._running = Gauge(
            "tokenmark_requests_running", "Answers that hold KV blocks.", registry=registry
        )
        self._waiting = Gauge(
            "tokenmark_requests_waiting", "Answers that wait for KV blocks.", registry=registry
        )
        self._finished = Counter(
            "tokenmark_answers", "Answers that ended, by reason.", ["reason"], registry=registry
        )
        self._prompt_tokens = Counter(
            "tokenmark_prompt_tokens", "Prompt tokens of admitted answers.", registry=registry
        )
        self._tokens = Counter(
            "tokenmark_generated_tokens",
            "Tokens drawn, with and without the mark.",
            ["marked"],
            registry=registry,
        )
        self._unmarked_answers = Counter(
            "tokenmark_unmarked_answers",
            "Answers that ended without a mark, by reason.",
            ["reason"],
            registry=registry,
        )

    def observe_load(self, n_running: int, n_waiting: int) -> None:
        """State the queues as they are now."""
        self._running.set(n_running)
        self._waiting.set(n_waiting)

    def observe_admission(self, n_prompt: int) -> None:
        """Count the prompt of an admitted answer."""
        self._prompt_tokens.inc(n_prompt)

    def observe_result(self, result: StepResult) -> None:
        """Count an answer's tokens and how it ended, once it has."""
        if result.finish_reason is None:
            return
        self._finished.labels(result.finish_reason.value).inc()
        self._tokens.labels("true").inc(result.n_marked)
        self._tokens.labels("false").inc(result.n_output - result.n_marked)
        if result.unmarked_reason is not None:
            self._unmarked_answers.labels(result.unmarked_reason.value).inc()
