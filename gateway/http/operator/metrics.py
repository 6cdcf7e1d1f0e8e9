"""Metrics for Prometheus. A value that is not known yet is left out."""

from __future__ import annotations

import functools
import math
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import psutil
from msgspec import Struct
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.access.limits import Counts
from gateway.http.operator.status import gateway_status
from gateway.http.wire.access_log import HttpMeter
from gateway.http.wire.command_bodies import GroupStatus, ModelStatus, Status, UpstreamStatus
from gateway.http.wire.connection_limits import ConnectionLimiter, Doing
from gateway.http.wire.openapi import Operation, Routes
from gateway.models.fleet import Fleet, Phase
from gateway.models.lifecycle import State
from gateway.requests.use import ModelMeter
from gateway.system.events import Kind
from gateway.system.lane import Lane
from gateway.system.refusal import Code, Refusal
from gateway.system.tasks import Histogram
from gateway.upstreams.upstream import Upstream
from protocol.answers import Guesses

routes = Routes("probes")

MODEL: Final = "model_name"

_MEMORY: Final = {
    "total_bytes": "The machine's memory.",
    "budget_bytes": "Memory that all workers together may hold.",
    "granted_bytes": "Memory of all floors and loans, with the room of the spare.",
    "footprint_bytes": "Memory that all workers hold, with the spares.",
    "spare_bytes": "Memory that spare workers hold.",
    "gateway_bytes": "Memory that the gateway holds.",
    "other_bytes": "Memory that all other programs hold.",
    "available_bytes": "Memory that the machine could give now.",
    "stranded_bytes": "Wired memory that belongs to no process any more.",
    "card_total_bytes": "Memory of the card that workers compute on.",
    "card_available_bytes": "Memory that the card could give now.",
}
_MODEL: Final = {
    "estimate_bytes": "Estimate of the model's memory, from its files and its earlier workers.",
    "floor_bytes": "Memory that stays with the model while it is loaded.",
    "lent_bytes": "Memory that is lent to the model beyond its floor.",
    "returning_bytes": "Memory that was called back from the model, and that it still holds.",
    "wanted_bytes": "Memory with which no request of the model would wait for memory.",
    "context_tokens": "The context in force: the longest prompt with its answer, in tokens.",
}
_WORKER: Final = {
    "footprint_bytes": "Memory that the model's worker holds.",
    "peak_footprint_bytes": "The most memory that the worker held.",
    "granted_bytes": "Memory that the worker may hold: floor and loan.",
    "weight_bytes": "Memory of the model's weights in the worker.",
    "cache_bytes": "Memory of the caches of running sequences, and of a step.",
    "buffer_bytes": "Memory of buffers that MLX keeps for later.",
}
_REQUESTS: Final = {
    "active_requests": ("num_requests_running", "Requests that run in a worker."),
    "queue_depth": ("num_requests_waiting", "Requests in the queue, parked ones among them."),
    "oldest_waiting_s": (
        "oldest_waiting_request_age_seconds",
        "Time since the oldest request in the queue arrived.",
    ),
}


def gauges(status: Status) -> Iterator[Metric]:
    """The gauges of the gateway, the memory, and each model."""
    build = InfoMetricFamily("bulkhead_build", "The version that runs.")
    build.add_metric((), {"version": status.version})
    yield build
    yield _states(
        "bulkhead_gateway_state",
        "1 for the gateway's present state.",
        Phase,
        [((), status.state)],
    )
    for field, about in _MEMORY.items():
        yield _one(f"bulkhead_memory_{field}", about, [((), status.memory)], field)
    models = status.models
    named = [((each.id,), each) for each in models]
    yield _states(
        "bulkhead_model_state",
        "1 for the model's present state.",
        State,
        [(labels, each.state) for labels, each in named],
    )
    for field, (name, about) in _REQUESTS.items():
        yield _one(f"bulkhead_{name}", about, named, field)
    for field, about in _MODEL.items():
        yield _one(f"bulkhead_model_{field}", about, named, field)
    workers = [((each.id,), each.worker) for each in models if each.worker is not None]
    for field, about in _WORKER.items():
        yield _one(f"bulkhead_worker_{field}", about, workers, field)
    yield _one(
        "bulkhead_worker_last_step_age_seconds",
        "Time since the last step of the worker's engine.",
        workers,
        "last_step_age_s",
    )
    yield _prompt_cache(models)
    yield from _groups(status.groups)
    yield from _upstreams(status.upstreams)


def _upstreams(upstreams: Iterable[UpstreamStatus]) -> Iterator[Metric]:
    reachable = GaugeMetricFamily(
        "bulkhead_upstream_reachable",
        "1 if the upstream has listed its models when it was asked last.",
        labels=("upstream",),
    )
    running = GaugeMetricFamily(
        "bulkhead_upstream_requests_running",
        "Requests from here that run at the upstream.",
        labels=("upstream",),
    )
    for each in upstreams:
        reachable.add_metric((each.name,), each.reachable)
        running.add_metric((each.name,), each.active_requests)
    yield reachable
    yield running


def upstream_requests(upstreams: Iterable[Upstream]) -> Iterator[Metric]:
    """The failures and the latencies of requests to upstreams."""
    failures = CounterMetricFamily(
        "bulkhead_upstream_failures",
        "Requests from here that got no answer there, or not all of it.",
        labels=("upstream",),
    )
    upstreams = list(upstreams)
    yield _filled(failures, (((upstream.name,), upstream.failures) for upstream in upstreams))
    yield _histogram(
        "bulkhead_upstream_answer_seconds",
        "From a request to the upstream until its answer has begun.",
        {upstream.name: upstream.answer_s for upstream in upstreams},
        "upstream",
    )


_KEYS: Final[dict[str, tuple[str, Callable[[Counts], int]]]] = {
    "requests": ("Requests under the key that have ended.", lambda each: each.requests),
    "prompt_tokens": ("Tokens of prompts under the key.", lambda each: each.prompt_tokens),
    "cached_tokens": (
        "Of these, the tokens that were found in the prompt cache.",
        lambda each: each.cached_tokens,
    ),
    "generation_tokens": (
        "Tokens that were generated under the key.",
        lambda each: each.completion_tokens,
    ),
}


def keys(used: Mapping[str, Counts]) -> Iterator[Metric]:
    """The counters of the keys in force, by their names."""
    for name, (about, value) in _KEYS.items():
        counter = CounterMetricFamily(f"bulkhead_key_{name}", about, labels=("key",))
        yield _filled(counter, (((key,), value(each)) for key, each in used.items()))


def _groups(groups: Iterable[GroupStatus]) -> Iterator[Metric]:
    loaded = GaugeMetricFamily(
        "bulkhead_group_models_loaded", "Models of the group that have memory.", labels=("group",)
    )
    kept = GaugeMetricFamily(
        "bulkhead_group_kept_bytes",
        "Memory that is kept for models of the group that aren't loaded.",
        labels=("group",),
    )
    for each in groups:
        loaded.add_metric((each.id,), len(each.loaded))
        kept.add_metric((each.id,), each.kept_bytes)
    yield loaded
    yield kept


def _one(
    name: str, about: str, of: Iterable[tuple[tuple[str, ...], Struct]], field: str
) -> GaugeMetricFamily:
    """A gauge of one field of several objects. `of` pairs labels and objects."""
    of = list(of)
    family = GaugeMetricFamily(name, about, labels=(MODEL,) if any(ids for ids, _ in of) else ())
    for labels, each in of:
        if (value := getattr(each, field)) is not None:
            family.add_metric(labels, value)
    return family


def _states(
    name: str, about: str, states: Iterable[str], of: Iterable[tuple[tuple[str, ...], str]]
) -> GaugeMetricFamily:
    of, states = list(of), list(states)
    labels = (MODEL, "state") if any(ids for ids, _ in of) else ("state",)
    family = GaugeMetricFamily(name, about, labels=labels)
    for ids, present in of:
        for state in states:
            family.add_metric((*ids, str(state)), float(state == present))
    return family


def _prompt_cache(models: list[ModelStatus]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "bulkhead_prompt_cache_bytes",
        "Prompts that are kept, in memory or on disk.",
        labels=(MODEL, "tier"),
    )
    for each in models:
        tiers = {"memory": each.prompt_cache.memory_bytes, "disk": each.prompt_cache.disk_bytes}
        for tier, held_bytes in tiers.items():
            if held_bytes is not None:
                family.add_metric((each.id, tier), held_bytes)
    return family


class Counted(NamedTuple):
    """The counters of a model. `queried_tokens` counts the tokens of answered prompts; of these
    tokens, `found_tokens` were in the prompt cache. `restarts_by` counts restarts by their cause,
    and `seconds_by` has the seconds that the requests of each sharer took.
    """

    model_id: str
    meter: ModelMeter
    parked: int
    queried_tokens: int
    found_tokens: int
    restarts_by: Mapping[str, int]
    seconds_by: Mapping[str, float]


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
        "Requests that lost their worker, or were paused.",
        lambda each: each.meter.parked,
    ),
    "requests_resumed": (
        "Requests that went on in another worker.",
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
        "From a request's arrival until a worker had it, with a load.",
        lambda meter: meter.queue_s,
    ),
    "model_load_seconds": (
        "From the start of a model's worker until the model was ready.",
        lambda meter: meter.load_s,
    ),
}


def counted(models: Iterable[Counted]) -> Iterator[Metric]:
    """The counters and histograms of all models, and the gauge of parked requests."""
    models = list(models)
    for name, (about, value) in _COUNTERS.items():
        counter = CounterMetricFamily(f"bulkhead_{name}", about, labels=(MODEL,))
        for each in models:
            counter.add_metric((each.model_id,), value(each))
        yield counter
    parked = GaugeMetricFamily(
        "bulkhead_num_requests_parked",
        "Requests in the queue that ran in an earlier worker.",
        labels=(MODEL,),
    )
    restarts = CounterMetricFamily(
        "bulkhead_worker_restarts", "Workers that replaced another.", labels=(MODEL, "cause")
    )
    guesses = CounterMetricFamily(
        "bulkhead_guesses",
        "Guessed tokens that were checked, by their result; accepted ones were right.",
        labels=(MODEL, "result"),
    )
    seconds = CounterMetricFamily(
        "bulkhead_sharer_seconds",
        "Seconds of the model that requests of a key took, or of an address without a key.",
        labels=(MODEL, "sharer"),
    )
    for each in models:
        for sharer, taken_s in each.seconds_by.items():
            seconds.add_metric((each.model_id, sharer), taken_s)
        checked = each.meter.guesses
        if checked != Guesses():
            guesses.add_metric((each.model_id, "accepted"), checked.accepted)
            guesses.add_metric((each.model_id, "rejected"), checked.rejected)
        parked.add_metric((each.model_id,), each.parked)
        for cause, count in each.restarts_by.items():
            restarts.add_metric((each.model_id, cause), count)
    yield parked
    yield restarts
    yield guesses
    yield seconds
    for name, (about, histogram) in _HISTOGRAMS.items():
        by_model = {each.model_id: histogram(each.meter) for each in models}
        yield _histogram(f"bulkhead_{name}", about, by_model)


def counted_http(meter: HttpMeter) -> Iterator[Metric]:
    """The counter and the latencies of HTTP requests."""
    requests = CounterMetricFamily(
        "bulkhead_requests",
        "HTTP requests that have ended.",
        labels=("route", MODEL, "outcome"),
    )
    yield _filled(requests, meter.ended.items())
    yield _histogram(
        "bulkhead_e2e_request_latency_seconds",
        "From the end of a request's head to the end of its answer, for answers in full.",
        meter.whole_s,
    )


def events(counts: Mapping[tuple[Kind, str | None], int]) -> Metric:
    """The counter of events, by kind and model."""
    family = CounterMetricFamily(
        "bulkhead_events", "Events, as `bulkhead events` lists them.", labels=("event", MODEL)
    )
    return _filled(family, (((kind, model or ""), n) for (kind, model), n in counts.items()))


def connections(by_doing: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(
        "bulkhead_connections", "Connections of clients, by their activity.", labels=("doing",)
    )
    return _filled(family, (((doing,), count) for doing, count in by_doing.items()))


def refusals(by_code: Mapping[Code, int]) -> Metric:
    """The counter of connections and requests that were refused before they reached a route."""
    family = CounterMetricFamily(
        "bulkhead_connections_refused",
        "Connections that were refused, or ended for an invalid or a late request.",
        labels=("code",),
    )
    return _filled(family, (((code,), count) for code, count in by_code.items()))


Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)


def _filled(family: Family, values: Iterable[tuple[Sequence[str], float]]) -> Family:
    """Add these values, each with its labels, to the family, and return the family."""
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def lag(late_s: Histogram) -> Metric:
    family = HistogramMetricFamily(
        "bulkhead_event_loop_lag_seconds",
        "How late the gateway's event loop is, measured four times a second.",
    )
    family.add_metric((), _buckets(late_s), late_s.sum)
    return family


def _histogram(
    name: str, about: str, histograms: Mapping[str, Histogram], label: str = MODEL
) -> Metric:
    family = HistogramMetricFamily(name, about, labels=(label,))
    for value, each in histograms.items():
        family.add_metric((value,), _buckets(each), each.sum)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    return [("+Inf" if math.isinf(b) else str(b), count) for b, count in histogram.buckets()]


def process() -> Iterator[Metric]:
    """The figures of the gateway's process. Reading the figures may take some milliseconds."""
    own = psutil.Process()
    times, memory = own.cpu_times(), own.memory_info()
    yield CounterMetricFamily(
        "process_cpu_seconds",
        "Processor time of the gateway, in user and system mode.",
        value=times.user + times.system,
    )
    gauges = {
        "process_resident_memory_bytes": ("Resident memory of the gateway.", memory.rss),
        "process_virtual_memory_bytes": ("Virtual memory of the gateway.", memory.vms),
        "process_open_fds": ("Open file descriptors of the gateway.", own.num_fds()),
        "process_max_fds": (
            "File descriptors that the gateway may open.",
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        ),
        "process_start_time_seconds": ("Unix time of the gateway's start.", own.create_time()),
    }
    for name, (about, value) in gauges.items():
        yield GaugeMetricFamily(name, about, value=value)


# Writes the text in a thread: with many models the writing would block the event loop.
_writer: Final = Lane("metrics")
_WRITTEN_S: Final = 10.0
_RETRY_AFTER_S: Final = 10


@routes.get("/metrics", Operation("Figures for Prometheus", answer="text/plain"))
async def metrics(request: HttpRequest) -> Response:
    state = request.app.state
    known = gauges(gateway_status(state.fleet, state.reloader.present))
    families = [
        *known,
        *_counted(state.fleet, state.http_meter, state.limiter),
        *upstream_requests(state.fleet.upstreams.by_name.values()),
        *keys(state.keys.since_start()),
    ]
    try:
        text = await _writer.run(functools.partial(_written, families), _WRITTEN_S, "/metrics")
    except OSError as error:
        raise Refusal(
            "overloaded",
            f"The metrics can't be written now: {error}.",
            retry_after_s=_RETRY_AFTER_S,
        ) from error
    return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})


def _counted(fleet: Fleet, http: HttpMeter, limiter: ConnectionLimiter) -> Iterator[Metric]:
    yield from counted(
        Counted(
            each.model.id,
            each.traffic.meter,
            each.traffic.queue.parked,
            each.traffic.prompt_tokens,
            each.traffic.cached_tokens,
            each.recovery.restarts_by,
            each.traffic.queue.shares.costs,
        )
        for each in fleet.roster.configured.values()
    )
    yield events(fleet.events.counts)
    yield from counted_http(http)
    yield connections({doing.name.lower(): limiter.count(doing) for doing in Doing})
    yield refusals(limiter.refused)
    yield lag(fleet.lag.late_s)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _written(families: list[Metric]) -> bytes:
    return generate_latest(_Families([*families, *process()]))
