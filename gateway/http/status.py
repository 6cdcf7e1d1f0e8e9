"""GET /admin/v1/status: the state of everything. A value is null until it is known."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from msgspec import Struct

from gateway import VERSION
from gateway.config.model import Group
from gateway.config.read import Configuration
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.models.lifecycle import State
from gateway.models.recovery import LastExit
from gateway.system.memory_reading import Footprint
from gateway.workers.host import THIS_MACHINE
from gateway.workers.remote_host import RemoteReading
from gateway.workers.worker import Worker


class MemoryStatus(Struct):
    """The machine's memory. The bytes of workers, spares, the gateway, others, stranded and
    available ones add up to the total, except for changes between two readings. `granted_bytes` are
    the floors, the loans and the room of the spare.

    Workers on a card with its own memory count there, with the card's budget and grants; in the
    machine's memory they are among the others. The card's bytes are null if no worker uses one.
    """

    total_bytes: int
    budget_bytes: int | None
    granted_bytes: int
    footprint_bytes: int | None
    spare_bytes: int | None
    gateway_bytes: int | None
    other_bytes: int | None
    available_bytes: int
    stranded_bytes: int | None
    pressure: str | None
    card_total_bytes: int | None
    card_available_bytes: int | None


class RankStatus(Struct):
    """One of the processes that compute a model together."""

    rank: int
    host: str
    pid: int | None
    footprint_bytes: int | None


class WorkerStatus(Struct):
    """A process. Its footprint consists of the model's weights, the caches of its sequences with
    the memory of a step, and the buffers that MLX keeps for later.

    With several `ranks` the pid is that of rank 0, and the bytes are those of all ranks. Without
    ranks the list is empty.
    """

    pid: int
    incarnation: int
    started_at: float
    footprint_bytes: int | None
    peak_footprint_bytes: int | None
    granted_bytes: int | None
    weight_bytes: int | None
    cache_bytes: int | None
    buffer_bytes: int | None
    last_step_age_s: float | None
    tokens_per_s: float | None
    prompt_cache_bytes: int | None
    ranks: list[RankStatus]


class PromptCacheStatus(Struct):
    """Bytes of kept prompts in memory (0 without a worker) and on disk, where they outlive their
    worker. Of the `prompt_tokens` in requests that were answered since the gateway's start,
    `cached_tokens` were in the cache; the rate is their share.
    """

    memory_bytes: int | None
    disk_bytes: int | None
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float | None


class ModelStatus(Struct):
    """`failure` is what refused requests were told; null while nothing is wrong. The age of the
    oldest request counts from its arrival, also if it was parked; null if there is none.
    `context_tokens` is the longest prompt with its answer, once the model is loaded. `floor_bytes`
    stay with the model as long as it is loaded, `lent_bytes` may be called back, `returning_bytes`
    were called back and are still held, and with `wanted_bytes` in all no request would wait for
    memory.
    """

    id: str
    state: str
    reason: str | None
    failure: str | None
    pinned: bool
    queue_depth: int
    oldest_waiting_s: float | None
    active_requests: int
    oldest_active_s: float | None
    estimate_bytes: int | None
    floor_bytes: int | None
    lent_bytes: int | None
    returning_bytes: int | None
    wanted_bytes: int | None
    context_tokens: int | None
    last_used_at: float | None
    prompt_cache: PromptCacheStatus
    worker: WorkerStatus | None
    restarts: int
    last_exit: LastExit | None


class GroupStatus(Struct):
    """A group of models, as it is configured. `loaded` models have memory or are about to get it.
    `kept_bytes` are kept free for the others, or lent until they are called back. `reason` says
    which model of a group that is loaded together is missing, and why.
    """

    id: str
    models: tuple[str, ...]
    together: bool
    swap: bool
    reserve: bool
    loaded: tuple[str, ...]
    kept_bytes: int
    reason: str | None


class ConfigStatus(Struct):
    """The configuration file in force, if there is one, and the SHA-256 of its content."""

    file: str | None
    digest: str | None


class HostStatus(Struct):
    """Another machine that ranks may run on. `reason` is why it can't be reached, or why its ranks
    would not work with those here. The bytes are its agent's figures.
    """

    name: str
    url: str
    reachable: bool
    reason: str | None
    version: str | None
    budget_bytes: int | None
    held_bytes: int | None
    free_bytes: int | None
    ranks: int | None


class Status(Struct):
    version: str
    pid: int
    uptime_s: float
    state: str
    reason: str | None
    config: ConfigStatus
    memory: MemoryStatus
    prompt_cache: PromptCacheStatus
    models: list[ModelStatus]
    hosts: list[HostStatus]
    groups: list[GroupStatus]


def gateway_status(fleet: Fleet, configuration: Configuration) -> Status:
    file = configuration.file
    models = [model_status(each, fleet) for each in fleet.roster.configured.values()]
    return Status(
        version=VERSION,
        pid=os.getpid(),
        uptime_s=fleet.uptime_s,
        state=fleet.phase,
        reason=fleet.caution,
        config=ConfigStatus(None if file is None else str(file.absolute()), configuration.digest),
        memory=_memory_status(fleet),
        prompt_cache=_together([each.prompt_cache for each in models], fleet),
        models=models,
        hosts=[_host_status(each) for each in fleet.hosts.readings.values()],
        groups=[_group_status(each, fleet) for each in fleet.scheduler.admission.ledger.groups.all],
    )


def _host_status(reading: RemoteReading) -> HostStatus:
    told = reading.told
    return HostStatus(
        name=reading.link.name,
        url=reading.link.url,
        reachable=told is not None,
        reason=reading.trouble,
        version=None if told is None else told.version,
        budget_bytes=None if told is None else told.memory.budget_bytes,
        held_bytes=None if told is None else told.memory.held_bytes,
        free_bytes=None if told is None else told.memory.free_bytes,
        ranks=None if told is None else told.ranks,
    )


def _group_status(group: Group, fleet: Fleet) -> GroupStatus:
    ledger = fleet.scheduler.admission.ledger
    loaded = tuple(each for each in group.models if ledger.has_room(each))
    return GroupStatus(
        id=group.name,
        models=group.models,
        together=group.together,
        swap=group.swap,
        reserve=group.reserve,
        loaded=loaded,
        kept_bytes=ledger.kept_for(group) if group.reserve else 0,
        reason=_incomplete(group, loaded, fleet) if group.together else None,
    )


def _incomplete(group: Group, loaded: tuple[str, ...], fleet: Fleet) -> str | None:
    """Why only a part of the group is loaded. None: all of it is, or nothing."""
    missing = [each for each in group.models if each not in loaded]
    if not loaded or not missing:
        return None
    compartments = fleet.roster.configured
    found = (
        f"{each} {compartments[each].condition.describe()}"
        for each in missing
        if each in compartments
    )
    return "; ".join(found) or None


def model_status(compartment: Compartment, fleet: Fleet) -> ModelStatus:
    worker = compartment.worker
    estimated = fleet.scheduler.estimate_of(compartment.model.id)
    allocation = fleet.scheduler.admission.ledger.allocation(compartment.model.id)
    return ModelStatus(
        id=compartment.model.id,
        state=compartment.state,
        reason=compartment.condition.reason or _remark(compartment, fleet),
        failure=compartment.condition.trouble,
        pinned=compartment.model.settings.pinned,
        queue_depth=compartment.traffic.waiting,
        oldest_waiting_s=compartment.traffic.oldest_waiting_s,
        active_requests=compartment.traffic.running,
        oldest_active_s=compartment.traffic.oldest_running_s,
        estimate_bytes=None if estimated is None else estimated.whole_bytes,
        floor_bytes=None if allocation is None else allocation.floor_bytes,
        lent_bytes=None if allocation is None else allocation.lent_bytes,
        returning_bytes=None if allocation is None else allocation.returning_bytes,
        wanted_bytes=None if allocation is None else allocation.need.wanted_bytes,
        context_tokens=None if worker is None else worker.report.context_tokens,
        last_used_at=compartment.traffic.use.last_at,
        prompt_cache=_prompt_cache_status(compartment, fleet),
        worker=None if worker is None else _worker_status(worker),
        restarts=compartment.recovery.restarts,
        last_exit=compartment.recovery.last_exit,
    )


def _remark(compartment: Compartment, fleet: Fleet) -> str | None:
    """A remark on the disk or the memory of a model without a failure."""
    worker, disk = compartment.worker, fleet.disks.remark(compartment)
    if disk is not None or worker is None or compartment.state is not State.READY:
        return disk
    requests = worker.report.short_of_memory
    elsewhere = None if worker.followers is None else worker.followers.promise.remark(requests)
    return elsewhere or fleet.scheduler.remark(compartment.model.id, requests)


def _worker_status(worker: Worker) -> WorkerStatus:
    footprint = worker.memory.footprint
    return WorkerStatus(
        pid=worker.pid,
        incarnation=worker.incarnation,
        started_at=worker.started_at,
        footprint_bytes=None if footprint is None else footprint.current_bytes,
        peak_footprint_bytes=None if footprint is None else worker.memory.peak_footprint_bytes,
        granted_bytes=worker.memory.granted_bytes,
        weight_bytes=worker.memory.weight_bytes,
        cache_bytes=worker.memory.cache_bytes,
        buffer_bytes=worker.memory.buffer_bytes,
        last_step_age_s=worker.report.last_step_age_s,
        tokens_per_s=worker.report.tokens_per_s,
        prompt_cache_bytes=worker.memory.prompt_cache_bytes,
        ranks=list(_ranks(worker)),
    )


def _ranks(worker: Worker) -> Iterator[RankStatus]:
    if worker.followers is None:
        return
    yield RankStatus(0, THIS_MACHINE, worker.pid, worker.own_footprint_bytes)
    for each in worker.followers.each:
        pid = None if each.process is None else each.process.pid
        yield RankStatus(each.rank, each.host.name, pid, each.footprint_bytes)


def _prompt_cache_status(compartment: Compartment, fleet: Fleet) -> PromptCacheStatus:
    worker, traffic = compartment.worker, compartment.traffic
    return PromptCacheStatus(
        memory_bytes=0 if worker is None else worker.memory.prompt_cache_bytes,
        disk_bytes=fleet.prompts.of(compartment.model.id),
        prompt_tokens=traffic.prompt_tokens,
        cached_tokens=traffic.cached_tokens,
        hit_rate=_rate(traffic.prompt_tokens, traffic.cached_tokens),
    )


def _together(each: list[PromptCacheStatus], fleet: Fleet) -> PromptCacheStatus:
    """The sums of all models. The disk may also hold prompts of models that are no longer
    configured.
    """
    on_disk = fleet.prompts.disk_bytes
    prompt_tokens = sum(model.prompt_tokens for model in each)
    cached_tokens = sum(model.cached_tokens for model in each)
    return PromptCacheStatus(
        memory_bytes=sum(model.memory_bytes or 0 for model in each),
        disk_bytes=None if on_disk is None else sum(on_disk.values()),
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        hit_rate=_rate(prompt_tokens, cached_tokens),
    )


def _rate(prompt_tokens: int, cached_tokens: int) -> float | None:
    return cached_tokens / prompt_tokens if prompt_tokens else None


def _memory_status(fleet: Fleet) -> MemoryStatus:
    host, card = fleet.readings.host, fleet.readings.card
    ledger = fleet.scheduler.admission.ledger
    footprint_bytes = _sum(each.memory.footprint for each in fleet.workers)
    gateway_bytes = _sum([fleet.readings.footprint])
    in_machine = (each.memory.footprint for each in fleet.workers if not _on_card(each))
    known = [_sum(in_machine), gateway_bytes, ledger.stranded_bytes, host.available_bytes]
    return MemoryStatus(
        total_bytes=host.total_bytes,
        budget_bytes=ledger.budget_bytes,
        granted_bytes=ledger.spare_bytes + sum(each.limit_bytes for each in ledger.allocations),
        footprint_bytes=footprint_bytes,
        spare_bytes=_sum(each.memory.footprint for each in fleet.spares),
        gateway_bytes=gateway_bytes,
        other_bytes=_rest(host.total_bytes, known),
        available_bytes=host.available_bytes,
        stranded_bytes=ledger.stranded_bytes,
        pressure=host.pressure,
        card_total_bytes=None if card is None else card.total_bytes,
        card_available_bytes=None if card is None else card.available_bytes,
    )


def _on_card(worker: Worker) -> bool:
    return worker.memory.footprint is not None and worker.memory.footprint.card_bytes > 0


def _sum(footprints: Iterable[Footprint | None]) -> int | None:
    """The sum. None if one is unknown: a partial sum would be misleading."""
    total_bytes = 0
    for each in footprints:
        if each is None:
            return None
        total_bytes += each.current_bytes
    return total_bytes


def _rest(total_bytes: int, known: list[int | None]) -> int | None:
    """What is left of the total, at least 0: readings of different moments may exceed it."""
    for each in known:
        if each is None:
            return None
        total_bytes -= each
    return max(0, total_bytes)
