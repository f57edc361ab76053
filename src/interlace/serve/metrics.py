"""Metrics for Prometheus, under vLLM's names where the meaning is the same."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from interlace.engine import EngineStats, RequestOutput
from interlace.serve.engine_thread import AnswerStream

_FIRST_TOKEN_S = (*(0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64), 1.25, 2.5, 5.0, 10.0, 20.0, 80.0)
_BETWEEN_S = (*(0.0002, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2), 0.4, 0.8, 2.0, 5.0)
_WHOLE_S = (*(0.01, 0.03, 0.1, 0.3, 0.8), 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 480.0, 1920.0)

#: Name of each gauge and counter that the engine keeps, its description and its field in ``EngineStats``.
_GAUGES = (
    ("vllm:num_requests_running", "Requests in the batch of steps.", "num_running"),
    ("vllm:num_requests_waiting", "Requests that wait for a place in the batch.", "num_waiting"),
    ("vllm:kv_cache_usage_perc", "Share of KV-cache blocks in use, 0 to 1.", "block_usage"),
)
_COUNTERS = (
    ("vllm:prompt_tokens", "Tokens of prompts.", "prompt_tokens_total"),
    ("vllm:generation_tokens", "Tokens generated.", "generation_tokens_total"),
    ("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", "prefix_cache_queries_total"),
    ("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", "prefix_cache_hits_total"),
    ("vllm:num_preemptions", "Requests preempted to free KV-cache blocks.", "num_preemptions_total"),
)


class LatencyHistogram:
    """Histogram of times that costs little to add to: the package's own takes microseconds for each token.

    Args:
        name, text: name and description of the metric.
        bounds_s: upper bounds of its buckets in seconds.
    """

    def __init__(self, name: str, text: str, bounds_s: tuple[float, ...]) -> None:
        self._name, self._text, self._bounds_s = name, text, bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a time."""
        self._counts[bisect_left(self._bounds_s, seconds)] += 1
        self._sum_s += seconds

    def build_family(self, model_name: str) -> Metric:
        """Return the metric."""
        family = HistogramMetricFamily(self._name, self._text, labels=["model_name"])
        bounds = [*map(str, self._bounds_s), "+Inf"]
        buckets = [*zip(bounds, map(float, accumulate(self._counts)), strict=True)]
        family.add_metric([model_name], buckets, self._sum_s)
        return family


class Metrics:
    """Metrics of one server, in a registry of its own.

    Args:
        model_name: value of the label ``model_name``.
    """

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._stats: EngineStats | None = None
        self._registry = CollectorRegistry()
        self._first_token = LatencyHistogram("vllm:time_to_first_token_seconds", "Time to first token.", _FIRST_TOKEN_S)
        self._between = LatencyHistogram("vllm:inter_token_latency_seconds", "Time between two tokens.", _BETWEEN_S)
        self._whole = LatencyHistogram("vllm:e2e_request_latency_seconds", "Time of a whole request.", _WHOLE_S)
        self._registry.register(self)
        self._ends = Counter(
            "vllm:request_success", "Answers by reason of their end.", ["model_name", "finished_reason"],
            registry=self._registry,
        )  # fmt: skip

    def observe(self, stream: AnswerStream, output: RequestOutput, now_s: float) -> None:
        """Count news of a request."""
        if stream.last_s is None:
            self._first_token.observe(now_s - stream.begin_s)
        elif len(stream.prompts) == 1:  # else the last news may have been another prompt's
            self._between.observe(now_s - stream.last_s)
        for each in output.outputs:
            if each.finish_reason is not None:
                self._ends.labels(self._model_name, each.finish_reason).inc()
        if output.finished:
            self._whole.observe(now_s - stream.begin_s)

    def collect(self) -> Iterator[Metric]:
        """Yield the latencies, and the metrics that the engine keeps."""
        for latencies in (self._first_token, self._between, self._whole):
            yield latencies.build_family(self._model_name)
        for name, text, field in _GAUGES if self._stats else ():
            gauge = GaugeMetricFamily(name, text, labels=["model_name"])
            gauge.add_metric([self._model_name], getattr(self._stats, field))
            yield gauge
        for name, text, field in _COUNTERS if self._stats else ():
            counter = CounterMetricFamily(name, text, labels=["model_name"])
            counter.add_metric([self._model_name], getattr(self._stats, field))
            yield counter

    def render(self, stats: EngineStats) -> bytes:
        """Return all metrics as text of Prometheus."""
        self._stats = stats
        return generate_latest(self._registry)
