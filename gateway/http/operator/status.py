"""The state of the gateway and its models, for /livez, /readyz, /health and /admin/v1/status.

Only a deep check of /health waits for a worker. In /admin/v1/status, whose types are in
`command_bodies`, a value is null until it is known.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from gateway import VERSION
from gateway.access.caller import Caller, NeededKey
from gateway.config.model import Group
from gateway.config.read import Configuration
from gateway.http.generation.model_call import deadline_s
from gateway.http.wire.auth import caller_of
from gateway.http.wire.bodies import json_response
from gateway.http.wire.command_bodies import (
    ConfigStatus,
    GroupStatus,
    GuessesStatus,
    HostStatus,
    MemoryStatus,
    ModelStatus,
    OfferStatus,
    PromptCacheStatus,
    RankStatus,
    SharerStatus,
    Status,
    UpstreamStatus,
    WorkerStatus,
)
from gateway.http.wire.openapi import NAMES_MODEL, Operation, Query, Routes
from gateway.models.check_reports import places_of
from gateway.models.fleet import Fleet, Phase
from gateway.models.lifecycle import State
from gateway.models.model_supervisor import ModelSupervisor
from gateway.requests.request import Request, Terms
from gateway.system.memory_reading import Footprint
from gateway.system.refusal import Refusal
from gateway.system.tasks import Fault
from gateway.upstreams.upstream import Upstream
from gateway.upstreams.upstreams import Way
from gateway.workers.host import THIS_MACHINE
from gateway.workers.ssh_host import SshHost
from gateway.workers.worker import Worker
from protocol.requests import Embed, Generate, Sampling, Task, TextPrompt

routes = Routes("probes", key=NeededKey.NOTHING)


def gateway_status(fleet: Fleet, configuration: Configuration) -> Status:
    file = configuration.file
    models = [model_status(model, fleet) for model in fleet.roster.configured.values()]
    return Status(
        version=VERSION,
        pid=os.getpid(),
        uptime_s=fleet.uptime_s,
        state=fleet.phase,
        reason=fleet.caution,
        config=ConfigStatus(None if file is None else str(file.absolute()), configuration.digest),
        memory=_memory_status(fleet),
        prompt_cache=_together([model.prompt_cache for model in models], fleet),
        models=models,
        hosts=[_host_status(host) for host in fleet.hosts.by_name.values()],
        groups=[_group_status(group, fleet) for group in fleet.scheduler.ledger.groups.all],
        upstreams=[_upstream_status(upstream) for upstream in fleet.upstreams.by_name.values()],
        instance=fleet.upstreams.instance,
    )


def status_for(caller: Caller, fleet: Fleet, configuration: Configuration) -> Status:
    """The whole state; for a key that reads without the ends of logs."""
    status = gateway_status(fleet, configuration)
    for model in status.models if caller.reads else ():
        if model.last_exit is not None:
            model.last_exit = msgspec.structs.replace(model.last_exit, log_tail=[])
    return status


def state_of(way: Way) -> tuple[str, str | None]:
    """The state of an upstream's model, in the words for the models here, and its reason. A server
    that tells no states has what it lists.
    """
    if (trouble := way.upstream.trouble()) is not None:
        return State.BACKOFF, f"{way.upstream.name}: {trouble}"
    assert way.offer is not None
    known = way.offer.state if way.offer.state in tuple(State) else State.READY
    return known, way.offer.reason


def _upstream_status(upstream: Upstream) -> UpstreamStatus:
    models = []
    for offer in upstream.models:
        state, reason = state_of(Way(upstream, offer.id, offer))
        running = sum(upstream.running[name] for name in offer.names)
        models.append(OfferStatus(offer.id, state, reason, running))
    return UpstreamStatus(
        name=upstream.name,
        url=upstream.settings.url,
        reachable=upstream.health.reachable,
        reason=upstream.trouble(),
        bulkhead=upstream.of_bulkhead,
        active_requests=upstream.running.total(),
        models=models,
    )


def _host_status(host: SshHost) -> HostStatus:
    memory = None if host.reading is None else host.memory
    return HostStatus(
        name=host.name,
        ssh=host.settings.ssh,
        reachable=host.reading is not None,
        reason=host.trouble,
        version=None if host.hello is None else host.hello.version,
        budget_bytes=None if memory is None else memory.budget_bytes,
        held_bytes=None if memory is None else memory.held_bytes,
        free_bytes=None if memory is None else memory.free_bytes,
        ranks=None if memory is None else memory.ranks,
    )


def _group_status(group: Group, fleet: Fleet) -> GroupStatus:
    ledger = fleet.scheduler.ledger
    loaded = tuple(model for model in group.models if ledger.is_present(model))
    return GroupStatus(
        id=group.name,
        models=group.models,
        together=group.together,
        swap=group.swap,
        reserve=group.reserve,
        loaded=loaded,
        kept_bytes=ledger.reserved_for(group) if group.reserve else 0,
        reason=_incomplete(group, loaded, fleet) if group.together else None,
    )


def _incomplete(group: Group, loaded: tuple[str, ...], fleet: Fleet) -> str | None:
    """Why only some models of the group are loaded. None: all models are loaded, or no model."""
    missing = [model for model in group.models if model not in loaded]
    if not loaded or not missing:
        return None
    supervisors = fleet.roster.configured
    conditions = (
        f"{name} {supervisors[name].condition.describe()}"
        for name in missing
        if name in supervisors
    )
    return "; ".join(conditions) or None


def model_status(supervisor: ModelSupervisor, fleet: Fleet) -> ModelStatus:
    worker = supervisor.worker
    estimated = fleet.scheduler.estimate_of(supervisor.model.id)
    allocation = fleet.scheduler.ledger.allocation(supervisor.model.id)
    guesses = supervisor.traffic.meter.guesses
    return ModelStatus(
        id=supervisor.model.id,
        state=supervisor.state,
        reason=supervisor.condition.reason or _remark(supervisor, fleet),
        failure=supervisor.condition.trouble,
        pinned=supervisor.model.settings.pinned,
        queue_depth=supervisor.traffic.queue.waiting,
        oldest_waiting_s=supervisor.traffic.oldest_waiting_s,
        active_requests=supervisor.traffic.queue.running,
        oldest_active_s=supervisor.traffic.oldest_running_s,
        estimate_bytes=None if estimated is None else estimated.whole_bytes,
        floor_bytes=None if allocation is None else allocation.floor_bytes,
        lent_bytes=None if allocation is None else allocation.lent_bytes,
        returning_bytes=None if allocation is None else allocation.returning_bytes,
        wanted_bytes=None if allocation is None else allocation.need.wanted_bytes,
        context_tokens=None if worker is None else worker.report.context_tokens,
        last_used_at=supervisor.traffic.use.last_at,
        prompt_cache=_prompt_cache_status(supervisor, fleet),
        worker=None if worker is None else _worker_status(worker),
        restarts=supervisor.recovery.restarts,
        last_exit=supervisor.recovery.last_exit,
        repeated_deaths=supervisor.recovery.deaths.repeated(asyncio.get_running_loop().time()),
        guesses=GuessesStatus(
            guesses.accepted,
            guesses.rejected,
            _rate(guesses.accepted + guesses.rejected, guesses.accepted),
        ),
        sharers=[SharerStatus(*sharer) for sharer in supervisor.traffic.queue.sharers()],
        command=supervisor.model.is_command,
        cache_proof=supervisor.cache_proof.state,
        invalid_outputs=supervisor.invalid_outputs.count,
        plain=supervisor.invalid_outputs.plain,
        looped_answers=supervisor.traffic.meter.looped_answers,
        repetition_stops=supervisor.traffic.meter.repetition_stops,
        check=fleet.check_reports.status(places_of(supervisor.model)),
    )


def _remark(supervisor: ModelSupervisor, fleet: Fleet) -> str | None:
    """A remark on a model that has no failure: on its disk, its memory, or how it runs."""
    worker, disk = supervisor.worker, fleet.disks.remark(supervisor)
    if disk is not None or worker is None or supervisor.state is not State.READY:
        return disk
    requests = worker.report.short_of_memory
    elsewhere = None if worker.followers is None else worker.followers.reservation.remark(requests)
    memory = elsewhere or fleet.scheduler.remark(supervisor.model.id, requests)
    if memory is None and worker.report.alone:
        return f"requests run one at a time: {worker.report.alone}"
    return memory


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
    for member in worker.followers.members:
        pid = None if member.process is None else member.process.pid
        yield RankStatus(member.rank, member.host.name, pid, member.footprint_bytes)


def _prompt_cache_status(supervisor: ModelSupervisor, fleet: Fleet) -> PromptCacheStatus:
    worker, traffic = supervisor.worker, supervisor.traffic
    return PromptCacheStatus(
        memory_bytes=0 if worker is None else worker.memory.prompt_cache_bytes,
        disk_bytes=fleet.prompts.of(supervisor.model.id),
        prompt_tokens=traffic.prompt_tokens,
        cached_tokens=traffic.cached_tokens,
        hit_rate=_rate(traffic.prompt_tokens, traffic.cached_tokens),
    )


def _together(statuses: list[PromptCacheStatus], fleet: Fleet) -> PromptCacheStatus:
    """The sums over all models. The sum of the disk also has the prompts of models that are no
    longer configured.
    """
    on_disk = fleet.prompts.disk_bytes
    prompt_tokens = sum(status.prompt_tokens for status in statuses)
    cached_tokens = sum(status.cached_tokens for status in statuses)
    return PromptCacheStatus(
        memory_bytes=sum(status.memory_bytes or 0 for status in statuses),
        disk_bytes=None if on_disk is None else sum(on_disk.values()),
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        hit_rate=_rate(prompt_tokens, cached_tokens),
    )


def _rate(all_tokens: int, tokens: int) -> float | None:
    return tokens / all_tokens if all_tokens else None


def _memory_status(fleet: Fleet) -> MemoryStatus:
    host, card = fleet.readings.host, fleet.readings.card
    ledger = fleet.scheduler.ledger
    footprint_bytes = _sum(worker.memory.footprint for worker in fleet.workers)
    gateway_bytes = _sum([fleet.readings.footprint])
    in_machine = (worker.memory.footprint for worker in fleet.workers if not _on_card(worker))
    known = [_sum(in_machine), gateway_bytes, ledger.stranded_bytes, host.available_bytes]
    return MemoryStatus(
        total_bytes=host.total_bytes,
        budget_bytes=ledger.budget_bytes,
        granted_bytes=ledger.spare_bytes
        + ledger.check_bytes
        + sum(allocation.limit_bytes for allocation in ledger.allocations),
        footprint_bytes=footprint_bytes,
        spare_bytes=_sum(spare.memory.footprint for spare in fleet.spares),
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
    """The sum in bytes. None if a footprint is unknown: a partial sum would be misleading."""
    total_bytes = 0
    for footprint in footprints:
        if footprint is None:
            return None
        total_bytes += footprint.current_bytes
    return total_bytes


def _rest(total_bytes: int, known: list[int | None]) -> int | None:
    """The total without the known bytes. At least 0, since readings of different moments may exceed
    the total. None if a value is unknown.
    """
    for bytes_ in known:
        if bytes_ is None:
            return None
        total_bytes -= bytes_
    return max(0, total_bytes)


_TEXT: Final = "text/plain"
_DEEP: Final = Query("deep", "string", "The loaded model that is to generate one token.")
_DEEP_DEADLINE_S: Final = 10.0
_DEGRADED: Final = (State.FAILED, State.BACKOFF)


class ModelHealth(Struct):
    id: str
    state: str
    last_step_age_s: float | None


class DeepHealth(Struct):
    """Whether a model generates. `seconds` is the time until its token came, or until the check
    gave up.
    """

    model: str
    ok: bool
    seconds: float
    reason: str | None


class Health(Struct):
    status: Literal["ok", "degraded"]
    version: str
    uptime_s: float
    models: list[ModelHealth]
    faults: list[Fault]
    deep: DeepHealth | UnsetType = UNSET


@routes.get("/livez", Operation("Whether the event loop runs", answer=_TEXT))
async def livez(_request: HttpRequest) -> Response:
    return PlainTextResponse("ok\n")


@routes.get(
    "/readyz", Operation("Whether the gateway takes requests", answer=_TEXT, others={503: _TEXT})
)
async def readyz(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    return PlainTextResponse(
        f"{fleet.phase}\n", status_code=200 if fleet.phase is Phase.SERVING else 503
    )


@routes.get(
    "/health",
    Operation(
        "The health of the models",
        answer=Health,
        query=[_DEEP],
        refusals=NAMES_MODEL,
        others={503: Health},
    ),
)
async def health(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    caller = caller_of(request)
    supervisors = fleet.roster.visible(caller)
    deep: DeepHealth | UnsetType = UNSET
    if (name := request.query_params.get("deep")) is not None:
        if not caller.admin:
            raise Refusal(
                "permission_denied", "A deep check runs the model, so it needs the admin key."
            )
        limit_s = min(deadline_s(request, _DEEP_DEADLINE_S), _DEEP_DEADLINE_S)
        deep = await _generate_token(fleet, fleet.roster.find(name, caller), limit_s)
    failed = deep is not UNSET and not deep.ok
    faults = fleet.faults.recent(time.time())
    body = Health(
        status="degraded"
        if failed or faults or any(supervisor.state in _DEGRADED for supervisor in supervisors)
        else "ok",
        version=VERSION,
        uptime_s=fleet.uptime_s,
        models=[
            ModelHealth(
                supervisor.model.id,
                supervisor.state,
                None if supervisor.worker is None else supervisor.worker.report.last_step_age_s,
            )
            for supervisor in supervisors
        ],
        faults=faults if caller.admin or caller.reads else [],
        deep=deep,
    )
    return json_response(body, 503 if failed else 200)


# A guard asks its server every two seconds.
_FRESH_S: Final = 10.0


async def _generate_token(fleet: Fleet, supervisor: ModelSupervisor, limit_s: float) -> DeepHealth:
    """Check that a model generates one token, or a vector or a score if it makes no text. A model
    that isn't loaded fails the check, and is not loaded for it.
    """
    began = time.monotonic()
    reason: str | None = None
    if supervisor.state is not State.READY:
        reason = f"it is {supervisor.state}"
    elif supervisor.model.is_command:
        reason = _silence(supervisor)
    else:
        task = _probe(supervisor)
        generation = Request(task, Terms(deadline_s=limit_s, probe=True), fleet.now())
        try:
            fleet.submit(supervisor, generation)
            async with asyncio.timeout(limit_s):
                while not generation.over:
                    await generation.next_piece()
        except Refusal as refusal:
            reason = refusal.message
        except TimeoutError:
            reason = f"no token within {limit_s:g} s"
        finally:
            if not generation.over:
                supervisor.traffic.cancel(generation)
    return DeepHealth(supervisor.model.id, reason is None, time.monotonic() - began, reason)


def _silence(supervisor: ModelSupervisor) -> str | None:
    """Why the server of a command counts as silent; None: it has answered just now."""
    worker = supervisor.worker
    age_s = None if worker is None else worker.report.last_step_age_s
    if age_s is not None and age_s < _FRESH_S:
        return None
    return "its server doesn't answer on its health path"


def _probe(supervisor: ModelSupervisor) -> Task:
    hello, request_id = TextPrompt("Hello"), uuid.uuid4().hex
    abilities = supervisor.traffic.abilities
    if abilities is None or "text" in abilities:
        return Generate(
            request_id=request_id,
            prompt=hello,
            sampling=Sampling(seed=0, temperature=0.0),
            max_tokens=1,
            ignore_eos=True,
        )
    query = None if "embedding" in abilities else "Hello"
    return Embed(request_id=request_id, inputs=(hello,), query=query)
