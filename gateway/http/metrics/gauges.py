"""What the status knows, as Prometheus has it. What isn't known yet is left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from gateway.http.status import GroupStatus, ModelStatus, Status
from gateway.models.fleet import Phase
from gateway.models.lifecycle import State

MODEL: Final = "model_name"

_MEMORY: Final = {
    "total_bytes": "The machine's memory.",
    "budget_bytes": "What all workers together may hold.",
    "granted_bytes": "All floors and loans, and the spare's room.",
    "footprint_bytes": "What all workers hold, spares among them.",
    "spare_bytes": "What spare workers hold.",
    "gateway_bytes": "What the gateway holds.",
    "other_bytes": "What all other programs hold.",
    "available_bytes": "What the machine could give.",
    "stranded_bytes": "Wired memory that belongs to no process any more.",
    "card_total_bytes": "Memory of the card that workers compute on.",
    "card_available_bytes": "What that card could give.",
}
_MODEL: Final = {
    "estimate_bytes": "What the model takes by its files and by what it took before.",
    "floor_bytes": "What is the model's own while it is loaded.",
    "lent_bytes": "What it was lent beyond its floor.",
    "returning_bytes": "What was called back and is held still.",
    "wanted_bytes": "With so much in all nothing in it would wait.",
    "context_tokens": "The longest prompt with its answer that it takes.",
}
_WORKER: Final = {
    "footprint_bytes": "What the model's worker holds.",
    "peak_footprint_bytes": "The most that the worker held.",
    "granted_bytes": "What the worker may hold: floor and loan.",
    "weight_bytes": "The model's weights in the worker.",
    "cache_bytes": "Caches of running sequences, with what a step computes on.",
    "buffer_bytes": "What MLX keeps for later.",
}
_REQUESTS: Final = {
    "active_requests": ("num_requests_running", "Requests that a worker has."),
    "queue_depth": ("num_requests_waiting", "Requests in the queue, parked ones among them."),
    "oldest_waiting_s": (
        "oldest_waiting_request_age_seconds",
        "How long ago the oldest request in the queue arrived.",
    ),
}


def gauges(status: Status) -> Iterator[Metric]:
    """Of the gateway, the memory, and every model."""
    build = InfoMetricFamily("bulkhead_build", "The version that runs.")
    build.add_metric((), {"version": status.version})
    yield build
    yield _states(
        "bulkhead_gateway_state",
        "1 for the state that the gateway is in.",
        Phase,
        [((), status.state)],
    )
    for field, about in _MEMORY.items():
        yield _one(f"bulkhead_memory_{field}", about, [((), status.memory)], field)
    models = status.models
    named = [((each.id,), each) for each in models]
    yield _states(
        "bulkhead_model_state",
        "1 for the state that the model is in.",
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
        "How long ago the worker's engine made its last step.",
        workers,
        "last_step_age_s",
    )
    yield _prompt_cache(models)
    yield from _groups(status.groups)


def _groups(groups: Iterable[GroupStatus]) -> Iterator[Metric]:
    loaded = GaugeMetricFamily(
        "bulkhead_group_models_loaded", "Models of the group that have memory.", labels=("group",)
    )
    kept = GaugeMetricFamily(
        "bulkhead_group_kept_bytes",
        "What is kept for those of the group that aren't loaded.",
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
    """A gauge of this field of each, with its labels."""
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
