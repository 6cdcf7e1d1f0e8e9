"""GET /admin/v1/status: everything that the operator can know. Null: not known yet."""

from __future__ import annotations

import os
import time

from msgspec import Struct

from gateway.supervise.compartment import Compartment
from gateway.supervise.fleet import Fleet
from gateway.supervise.last_exit import LastExit
from gateway.supervise.worker import Worker
from gateway.version import VERSION


class MemoryStatus(Struct):
    total_bytes: int
    budget_bytes: int | None
    granted_bytes: int
    footprint_bytes: int | None
    available_bytes: int
    stranded_bytes: int | None
    pressure: str | None


class WorkerStatus(Struct):
    pid: int
    incarnation: int
    started_at: float
    footprint_bytes: int | None
    peak_footprint_bytes: int | None
    granted_bytes: int | None
    last_step_age_s: float | None
    tokens_per_s: float | None
    prompt_cache_bytes: int | None


class ModelStatus(Struct):
    id: str
    state: str
    reason: str | None
    pinned: bool
    queue_depth: int
    active_requests: int
    estimate_bytes: int | None
    last_used_at: float | None
    worker: WorkerStatus | None
    restarts: int
    last_exit: LastExit | None


class Status(Struct):
    version: str
    pid: int
    uptime_s: float
    state: str
    reason: str | None
    memory: MemoryStatus
    models: list[ModelStatus]


def gateway_status(fleet: Fleet) -> Status:
    return Status(
        version=VERSION,
        pid=os.getpid(),
        uptime_s=time.time() - fleet.started_at,
        state=fleet.phase,
        reason=fleet.caution,
        memory=_memory_status(fleet),
        models=[model_status(each, fleet) for each in fleet.compartments.values()],
    )


def model_status(compartment: Compartment, fleet: Fleet) -> ModelStatus:
    worker = compartment.worker
    estimated = fleet.steward.estimates.get(compartment.model.id)
    return ModelStatus(
        id=compartment.model.id,
        state=compartment.state,
        reason=compartment.reason,
        pinned=compartment.model.settings.pinned,
        queue_depth=compartment.traffic.waiting,
        active_requests=compartment.traffic.running,
        estimate_bytes=None if estimated is None else estimated.full_bytes,
        last_used_at=compartment.traffic.last_used_at,
        worker=None if worker is None else _worker_status(worker),
        restarts=compartment.restarts,
        last_exit=compartment.last_exit,
    )


def _worker_status(worker: Worker) -> WorkerStatus:
    footprint = worker.footprint
    return WorkerStatus(
        pid=worker.pid,
        incarnation=worker.incarnation,
        started_at=worker.started_at,
        footprint_bytes=None if footprint is None else footprint.current_bytes,
        peak_footprint_bytes=None if footprint is None else worker.peak_footprint_bytes,
        granted_bytes=worker.granted_bytes,
        last_step_age_s=worker.last_step_age_s,
        tokens_per_s=worker.tokens_per_s,
        prompt_cache_bytes=None,
    )


def _memory_status(fleet: Fleet) -> MemoryStatus:
    host, admission = fleet.host, fleet.steward.admission
    workers = fleet.workers
    footprints = [each.footprint for each in workers]
    known = [each.current_bytes for each in footprints if each is not None]
    return MemoryStatus(
        total_bytes=host.total_bytes,
        budget_bytes=admission.budget_bytes,
        granted_bytes=sum(each.granted_bytes for each in admission.holders),
        # A sum with a worker left out would be a number that looks like an answer.
        footprint_bytes=sum(known) if len(known) == len(footprints) else None,
        available_bytes=host.available_bytes,
        stranded_bytes=admission.stranded_bytes,
        pressure=host.pressure,
    )
