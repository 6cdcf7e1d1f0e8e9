"""What was counted since the gateway's start, as Prometheus has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from gateway.http.metrics.gauges import MODEL
from gateway.http.metrics.http_meter import HttpMeter
from gateway.requests.use import ModelMeter
from gateway.system.events import Kind
from gateway.system.refusal import Code
from gateway.system.tasks import Histogram


class Counted(NamedTuple):
    """One model's: what its traffic and its recovery have counted. Of `queried_tokens` in prompts
    that were answered, `found_tokens` were not computed anew.
    """

    model_id: str
    meter: ModelMeter
    parked: int
    queried_tokens: int
    found_tokens: int
    restarts_by: Mapping[str, int]


_COUNTERS: Final[dict[str, tuple[str, Callable[[Counted], int]]]] = {
    "prompt_tokens": (
        "Tokens of prompts whose answer has begun.",
        lambda each: each.meter.prompt_tokens,
    ),
    "generation_tokens": (
        "Tokens that were generated.",
        lambda each: each.meter.generated_tokens,
    ),
    "prefix_cache_queries": (
        "Tokens of prompts that were answered.",
        lambda each: each.queried_tokens,
    ),
    "prefix_cache_hits": (
        "Of these, the tokens that were found in the prompt cache.",
        lambda each: each.found_tokens,
    ),
    "requests_parked": (
        "Requests that lost their worker, or had to pause.",
        lambda each: each.meter.parked,
    ),
    "requests_resumed": (
        "Requests that another worker went on with.",
        lambda each: each.meter.resumed,
    ),
}
_HISTOGRAMS: Final[dict[str, tuple[str, Callable[[ModelMeter], Histogram]]]] = {
    "time_to_first_token_seconds": (
        "From a request's arrival to the first token.",
        lambda meter: meter.first_token_s,
    ),
    "inter_token_latency_seconds": (
        "Between two tokens of an answer, as they come from the worker.",
        lambda meter: meter.between_tokens_s,
    ),
    "request_queue_time_seconds": (
        "From a request's arrival until a worker had it; a load counts.",
        lambda meter: meter.queue_s,
    ),
    "model_load_seconds": (
        "From the start of a model's worker until it answered.",
        lambda meter: meter.load_s,
    ),
}


def counted(models: Iterable[Counted]) -> Iterator[Metric]:
    """Of every model."""
    models = list(models)
    for name, (about, value) in _COUNTERS.items():
        counter = CounterMetricFamily(f"bulkhead_{name}", about, labels=(MODEL,))
        for each in models:
            counter.add_metric((each.model_id,), value(each))
        yield counter
    parked = GaugeMetricFamily(
        "bulkhead_num_requests_parked",
        "Requests in the queue that ran already.",
        labels=(MODEL,),
    )
    restarts = CounterMetricFamily(
        "bulkhead_worker_restarts", "Workers that replaced another.", labels=(MODEL, "cause")
    )
    for each in models:
        parked.add_metric((each.model_id,), each.parked)
        for cause, count in each.restarts_by.items():
            restarts.add_metric((each.model_id, cause), count)
    yield parked
    yield restarts
    for name, (about, histogram) in _HISTOGRAMS.items():
        by_model = {each.model_id: histogram(each.meter) for each in models}
        yield _histogram(f"bulkhead_{name}", about, by_model)


def counted_http(meter: HttpMeter) -> Iterator[Metric]:
    """Of requests as their clients see them."""
    requests = CounterMetricFamily(
        "bulkhead_requests",
        "HTTP requests that are over.",
        labels=("route", MODEL, "outcome"),
    )
    for ended, count in meter.ended.items():
        requests.add_metric(ended, count)
    yield requests
    yield _histogram(
        "bulkhead_e2e_request_latency_seconds",
        "From the end of a request's head to the end of its answer, of those that were answered.",
        meter.whole_s,
    )


def events(counts: Mapping[tuple[Kind, str | None], int]) -> Metric:
    """By kind and model."""
    family = CounterMetricFamily(
        "bulkhead_events", "Events, as `bulkhead events` tells them.", labels=("event", MODEL)
    )
    for (kind, model_id), count in counts.items():
        family.add_metric((kind, model_id or ""), count)
    return family


def connections(by_doing: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(
        "bulkhead_connections", "Connections of clients, by what they do.", labels=("doing",)
    )
    for doing, count in by_doing.items():
        family.add_metric((doing,), count)
    return family


def refusals(by_code: Mapping[Code, int]) -> Metric:
    """Of what never came as far as a route."""
    family = CounterMetricFamily(
        "bulkhead_connections_refused",
        "Connections that were refused, or ended for what they sent or didn't send.",
        labels=("code",),
    )
    for code, count in by_code.items():
        family.add_metric((code,), count)
    return family


def lag(late_s: Histogram) -> Metric:
    family = HistogramMetricFamily(
        "bulkhead_event_loop_lag_seconds",
        "How late the gateway's event loop is, four times a second.",
    )
    family.add_metric((), _buckets(late_s), late_s.sum)
    return family


def _histogram(name: str, about: str, by_model: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, about, labels=(MODEL,))
    for model_id, each in by_model.items():
        family.add_metric((model_id,), _buckets(each), each.sum)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    return [("+Inf" if math.isinf(b) else str(b), count) for b, count in histogram.buckets()]
