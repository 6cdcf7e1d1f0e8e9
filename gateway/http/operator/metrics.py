"""Metrics for Prometheus. A value that is not known yet is left out."""

from __future__ import annotations

import functools
import math
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import psutil
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

from gateway.access.caller import NeededKey
from gateway.access.limits import Counts
from gateway.http.operator.status import gateway_status
from gateway.http.wire.access_log import HttpMeter
from gateway.http.wire.command_bodies import Status
from gateway.http.wire.connection_limits import ConnectionLimiter, Doing
from gateway.http.wire.openapi import Operation, Routes
from gateway.models.fleet import Fleet, Phase
from gateway.models.lifecycle import State
from gateway.models.model_supervisor import ModelSupervisor
from gateway.system.lane import Lane
from gateway.system.refusal import Refusal
from gateway.system.tasks import Histogram
from gateway.upstreams.upstream import Upstream
from protocol.answers import Guesses

routes = Routes("probes", key=NeededKey.ADMIN)

_PREFIX: Final = "bulkhead_"
MODEL: Final = "model_name"

_MEMORY: Final = {
    "total_bytes": "The machine's memory.",
    "budget_bytes": "Memory that all workers together may hold.",
    "granted_bytes": "Memory of all floors and loans, with the room of the spare and of a check.",
    "footprint_bytes": "Memory that all workers hold, with the spares.",
    "spare_bytes": "Memory that spare workers hold.",
    "gateway_bytes": "Memory that the gateway holds.",
    "other_bytes": "Memory that all other programs hold.",
    "available_bytes": "Memory that the machine could give now.",
    "stranded_bytes": "Wired memory that belongs to no process any more.",
    "card_total_bytes": "Memory of the card that workers compute on.",
    "card_available_bytes": "Memory that the card could give now.",
}
# The names of metrics, the fields of a model's status that they show, and what they are.
_MODEL: Final = (
    ("num_requests_running", "active_requests", "Requests that run in a worker."),
    ("num_requests_waiting", "queue_depth", "Requests in the queue, parked ones among them."),
    (
        "oldest_waiting_request_age_seconds",
        "oldest_waiting_s",
        "Time since the oldest request in the queue arrived.",
    ),
    (
        "model_estimate_bytes",
        "estimate_bytes",
        "Estimate of the model's memory, from its files and its earlier workers.",
    ),
    ("model_floor_bytes", "floor_bytes", "Memory that stays with the model while it is loaded."),
    ("model_lent_bytes", "lent_bytes", "Memory that is lent to the model beyond its floor."),
    (
        "model_returning_bytes",
        "returning_bytes",
        "Memory that was called back from the model, and that it still holds.",
    ),
    (
        "model_wanted_bytes",
        "wanted_bytes",
        "Memory with which no request of the model would wait for memory.",
    ),
    (
        "model_context_tokens",
        "context_tokens",
        "The context in force: the longest prompt with its answer, in tokens.",
    ),
)
# The same for the status of a worker.
_WORKER: Final = (
    ("footprint_bytes", "footprint_bytes", "Memory that the model's worker holds."),
    ("peak_footprint_bytes", "peak_footprint_bytes", "The most memory that the worker held."),
    ("granted_bytes", "granted_bytes", "Memory that the worker may hold: floor and loan."),
    ("weight_bytes", "weight_bytes", "Memory of the model's weights in the worker."),
    ("cache_bytes", "cache_bytes", "Memory of the caches of running sequences, and of a step."),
    ("buffer_bytes", "buffer_bytes", "Memory of buffers that MLX keeps for later."),
    (
        "last_step_age_seconds",
        "last_step_age_s",
        "Time since the last step of the worker's engine.",
    ),
)
# The same for the counters of a key, and for the histograms of a model's meter.
_KEYS: Final = (
    ("requests", "requests", "Requests under the key that have ended."),
    ("prompt_tokens", "prompt_tokens", "Tokens of prompts under the key."),
    (
        "cached_tokens",
        "cached_tokens",
        "Of these, the tokens that were found in the prompt cache.",
    ),
    ("generation_tokens", "completion_tokens", "Tokens that were generated under the key."),
)
_HISTOGRAMS: Final = (
    (
        "time_to_first_token_seconds",
        "first_token_s",
        "From a request's arrival to the first token.",
    ),
    (
        "inter_token_latency_seconds",
        "between_tokens_s",
        "Between two tokens of an answer, as they come from the worker.",
    ),
    (
        "request_queue_time_seconds",
        "queue_s",
        "From a request's arrival until a worker had it, with a load.",
    ),
    (
        "model_load_seconds",
        "load_s",
        "From the start of a model's worker until the model was ready.",
    ),
)

# The values of a metric, each with its labels. None: the value isn't known.
_Samples: TypeAlias = Iterable[tuple[Sequence[str], float | None]]


def _gauge(name: str, about: str, labels: Sequence[str], samples: _Samples) -> Metric:
    return _filled(GaugeMetricFamily(_PREFIX + name, about, labels=labels), samples)


def _counter(name: str, about: str, labels: Sequence[str], samples: _Samples) -> Metric:
    return _filled(CounterMetricFamily(_PREFIX + name, about, labels=labels), samples)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, samples: _Samples) -> Metric:
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    return family


def _histogram(
    name: str, about: str, histograms: Mapping[str, Histogram], label: str = MODEL
) -> Metric:
    family = HistogramMetricFamily(_PREFIX + name, about, labels=(label,) if label else ())
    for label_value, histogram in histograms.items():
        buckets = [
            ("+Inf" if math.isinf(bound) else str(bound), count)
            for bound, count in histogram.buckets()
        ]
        family.add_metric((label_value,) if label else (), buckets, histogram.sum)
    return family


def _gauges(status: Status) -> Iterator[Metric]:
    """The gauges of the gateway, the memory, the models, the groups and the upstreams."""
    build = InfoMetricFamily(f"{_PREFIX}build", "The version that runs.")
    build.add_metric((), {"version": status.version})
    yield build
    yield _gauge(
        "gateway_state",
        "1 for the gateway's present state.",
        ("state",),
        (((state,), state == status.state) for state in Phase),
    )
    for field, about in _MEMORY.items():
        yield _gauge(f"memory_{field}", about, (), [((), getattr(status.memory, field))])
    models = status.models
    yield _gauge(
        "model_state",
        "1 for the model's present state.",
        (MODEL, "state"),
        (((model.id, state), state == model.state) for model in models for state in State),
    )
    for name, field, about in _MODEL:
        values = [((model.id,), getattr(model, field)) for model in models]
        yield _gauge(name, about, (MODEL,), values)
    for name, field, about in _WORKER:
        values = [
            ((model.id,), getattr(model.worker, field))
            for model in models
            if model.worker is not None
        ]
        yield _gauge(f"worker_{name}", about, (MODEL,), values)
    yield _gauge(
        "prompt_cache_bytes",
        "Cached prompts, in memory or on disk.",
        (MODEL, "tier"),
        (
            ((model.id, tier), getattr(model.prompt_cache, f"{tier}_bytes"))
            for model in models
            for tier in ("memory", "disk")
        ),
    )
    yield _gauge(
        "group_models_loaded",
        "Models of the group that have memory.",
        ("group",),
        (((group.id,), len(group.loaded)) for group in status.groups),
    )
    yield _gauge(
        "group_kept_bytes",
        "Memory that is reserved for models of the group that aren't loaded.",
        ("group",),
        (((group.id,), group.kept_bytes) for group in status.groups),
    )
    yield _gauge(
        "upstream_reachable",
        "1 if the upstream has listed its models when it was asked last.",
        ("upstream",),
        (((upstream.name,), upstream.reachable) for upstream in status.upstreams),
    )
    yield _gauge(
        "upstream_requests_running",
        "Requests from here that run at the upstream.",
        ("upstream",),
        (((upstream.name,), upstream.active_requests) for upstream in status.upstreams),
    )


def _of_models(models: Sequence[ModelSupervisor]) -> Iterator[Metric]:
    """The counters and histograms of all models, and the gauge of parked requests."""
    named = [(model.model.id, model) for model in models]
    for name, about, counts in (
        (
            "prompt_tokens",
            "Tokens of prompts whose answer has begun.",
            [model.traffic.meter.prompt_tokens for model in models],
        ),
        (
            "generation_tokens",
            "Tokens that were generated.",
            [model.traffic.meter.generated_tokens for model in models],
        ),
        (
            "prefix_cache_queries",
            "Tokens of prompts that were answered.",
            [model.traffic.prompt_tokens for model in models],
        ),
        (
            "prefix_cache_hits",
            "Of these, the tokens that were found in the prompt cache.",
            [model.traffic.cached_tokens for model in models],
        ),
        (
            "proven_tokens",
            "Tokens of cached prompts that were computed anew, and found to be right or wrong.",
            [model.cache_proof.proven_tokens for model in models],
        ),
        (
            "quarantined_blocks",
            "Cached blocks that were found to be wrong, with those that follow them.",
            [model.cache_proof.quarantined_blocks for model in models],
        ),
        (
            "requests_parked",
            "Requests that lost their worker, or were paused.",
            [model.traffic.meter.parked for model in models],
        ),
        (
            "requests_resumed",
            "Requests that went on in another worker.",
            [model.traffic.meter.resumed for model in models],
        ),
        (
            "invalid_outputs",
            "Answers, try by try, whose logits weren't finite or were all the same.",
            [model.invalid_outputs.count for model in models],
        ),
        (
            "looped_answers",
            "Answers that repeated the same tokens until they were cut off.",
            [model.traffic.meter.looped_answers for model in models],
        ),
        (
            "repetition_stops",
            "Of these, the answers that were cut off for repetition_stop.",
            [model.traffic.meter.repetition_stops for model in models],
        ),
    ):
        samples = zip(((id_,) for id_, _ in named), counts, strict=True)
        yield _counter(name, about, (MODEL,), samples)
    yield _gauge(
        "num_requests_parked",
        "Requests in the queue that ran in an earlier worker.",
        (MODEL,),
        (((id_,), model.traffic.queue.parked) for id_, model in named),
    )
    yield _counter(
        "worker_restarts",
        "Workers that replaced another.",
        (MODEL, "cause"),
        (
            ((id_, cause), count)
            for id_, model in named
            for cause, count in model.recovery.restarts_by.items()
        ),
    )
    yield _counter(
        "guesses",
        "Guessed tokens that were checked, by their result; accepted ones were right.",
        (MODEL, "result"),
        (
            ((id_, result), getattr(model.traffic.meter.guesses, result))
            for id_, model in named
            if model.traffic.meter.guesses != Guesses()
            for result in ("accepted", "rejected")
        ),
    )
    yield _counter(
        "sharer_seconds",
        "Seconds of the model that requests of a key took, or of an address without a key.",
        (MODEL, "sharer"),
        (
            ((id_, sharer), cost_s)
            for id_, model in named
            for sharer, cost_s in model.traffic.queue.shares.costs.items()
        ),
    )
    for name, field, about in _HISTOGRAMS:
        yield _histogram(
            name, about, {id_: getattr(model.traffic.meter, field) for id_, model in named}
        )


def _of_requests(fleet: Fleet, http: HttpMeter, limiter: ConnectionLimiter) -> Iterator[Metric]:
    """The events, the HTTP requests and the connections."""
    yield _counter(
        "events",
        "Events, as `bulkhead events` lists them.",
        ("event", MODEL),
        (((kind, model or ""), count) for (kind, model), count in fleet.events.counts.items()),
    )
    yield _counter(
        "requests",
        "HTTP requests that have ended.",
        ("route", MODEL, "outcome"),
        http.ended.items(),
    )
    yield _histogram(
        "e2e_request_latency_seconds",
        "From the end of a request's head to the end of its answer, for answers in full.",
        http.whole_s,
    )
    yield _gauge(
        "connections",
        "Connections of clients, by their activity.",
        ("doing",),
        (((doing.name.lower(),), limiter.count(doing)) for doing in Doing),
    )
    yield _counter(
        "connections_refused",
        "Connections that were refused, or ended for an invalid or a late request.",
        ("code",),
        (((code,), count) for code, count in limiter.refused.items()),
    )
    yield _histogram(
        "event_loop_lag_seconds",
        "How late the gateway's event loop is, measured four times a second.",
        {"": fleet.lag.late_s},
        "",
    )


def _of_upstreams(upstreams: Iterable[Upstream]) -> Iterator[Metric]:
    """The failures and the latencies of requests to upstreams."""
    named = {upstream.name: upstream for upstream in upstreams}
    yield _counter(
        "upstream_failures",
        "Requests from here that got no answer there, or not all of it.",
        ("upstream",),
        (((name,), upstream.failures) for name, upstream in named.items()),
    )
    yield _histogram(
        "upstream_answer_seconds",
        "From a request to the upstream until its answer has begun.",
        {name: upstream.answer_s for name, upstream in named.items()},
        "upstream",
    )


def _of_keys(used: Mapping[str, Counts]) -> Iterator[Metric]:
    """The counters of the keys in force, by their names."""
    for name, field, about in _KEYS:
        values = [((key,), getattr(counts, field)) for key, counts in used.items()]
        yield _counter(f"key_{name}", about, ("key",), values)


def _of_process() -> Iterator[Metric]:
    """The figures of the gateway's process. Reading the figures may take some milliseconds."""
    gateway = psutil.Process()
    times, memory = gateway.cpu_times(), gateway.memory_info()
    yield CounterMetricFamily(
        "process_cpu_seconds",
        "Processor time of the gateway, in user and system mode.",
        value=times.user + times.system,
    )
    for name, about, value in (
        ("resident_memory_bytes", "Resident memory of the gateway.", memory.rss),
        ("virtual_memory_bytes", "Virtual memory of the gateway.", memory.vms),
        ("open_fds", "Open file descriptors of the gateway.", gateway.num_fds()),
        (
            "max_fds",
            "File descriptors that the gateway may open.",
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        ),
        ("start_time_seconds", "Unix time of the gateway's start.", gateway.create_time()),
    ):
        yield GaugeMetricFamily(f"process_{name}", about, value=value)


# Writes the text in a thread: with many models the writing would block the event loop.
_writer: Final = Lane("metrics")
_WRITTEN_S: Final = 10.0
_RETRY_AFTER_S: Final = 10


@routes.get("/metrics", Operation("Figures for Prometheus", answer="text/plain", reads=True))
async def metrics(request: HttpRequest) -> Response:
    state = request.app.state
    fleet: Fleet = state.fleet
    families = [
        *_gauges(gateway_status(fleet, state.reloader.present)),
        *_of_models([*fleet.roster.configured.values()]),
        *_of_requests(fleet, state.http_meter, state.limiter),
        *_of_upstreams(fleet.upstreams.by_name.values()),
        *_of_keys(state.keys.since_start()),
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


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _written(families: list[Metric]) -> bytes:
    return generate_latest(_Families([*families, *_of_process()]))
