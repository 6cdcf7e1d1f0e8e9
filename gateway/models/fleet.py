"""All models together: their start, regular checks and end, and the gateway's own phase."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from gateway.config.model import Model, groups_of
from gateway.config.settings import Settings
from gateway.config.tables import InForce
from gateway.memory.fitting import Learned
from gateway.memory.forecast import misfits
from gateway.memory.leak_check import LeakCheck, write_stranded
from gateway.memory.scheduler import MemoryLimits, MemoryScheduler
from gateway.models.cached_prompts import CachedPrompts
from gateway.models.check_reports import CheckReports
from gateway.models.disks import Disks
from gateway.models.lifecycle import ModelEvent, State
from gateway.models.model_memory import GatewayParts
from gateway.models.model_supervisor import ModelSupervisor
from gateway.models.readings import Readings
from gateway.models.roster import Roster
from gateway.requests import refusals
from gateway.requests.request import REMINDER_S, Request
from gateway.requests.traffic import Successor
from gateway.system.clock import until_set
from gateway.system.events import EventLog
from gateway.system.refusal import Refusal
from gateway.system.state_dir import StateDir
from gateway.system.tasks import Faults, LoopLag, Tasks
from gateway.system.wakefulness import Wakefulness
from gateway.upstreams.upstreams import Upstreams
from gateway.workers.cache_failures import CacheFailures
from gateway.workers.orphans import Orphan, WorkerRecords
from gateway.workers.ssh_host import Hosts
from gateway.workers.starter import Channel, Starter
from gateway.workers.worker import Worker
from gateway.workers.worker_log import WorkerLog
from protocol.message_base import endpoint

logger = logging.getLogger(__name__)

_TICK_S: Final = 0.25


class Phase(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    # Another gateway has the models. Clients that are connected here are served to the end.
    LEAVING = "leaving"
    STOPPED = "stopped"


class FleetStart(NamedTuple):
    """The findings with which a fleet starts. `swept` are the workers that an earlier gateway has
    left. `leak_check` is None where memory is never stranded. `caution` is the reason why models
    with `preload` aren't loaded at the start; None: they are. `first_incarnation` is the number of
    the first worker.
    """

    records: WorkerRecords
    swept: Iterable[Orphan]
    leak_check: LeakCheck | None
    caution: str | None
    first_incarnation: int = 1


class Fleet:
    """All models of a gateway. `phase` is the phase of the gateway, `roster` has the models,
    `upstreams` other servers with models of their own, `readings` the last measurements, `prompts`
    the prompts on disk, `check_reports` the results of checks, `faults` the failures inside the
    gateway, and `lag` the delays of its event loop.
    """

    def __init__(
        self,
        models: Iterable[Model],
        settings: Settings,
        budget_bytes: int,
        state_dir: StateDir,
        start: FleetStart,
    ) -> None:
        """All workers together may hold `budget_bytes`."""
        self.phase = Phase.STARTING
        self._in_force = InForce(settings)
        self.started_at = time.time()
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self.caution = start.caution
        self.log_path = state_dir.gateway_log_path
        self.events = EventLog()
        self._tell_of(start)
        self.faults = Faults()
        self.faults.watch(self._loop)
        self._wakefulness = Wakefulness()
        self.hosts = Hosts(settings.hosts)
        self.upstreams = Upstreams(settings.upstreams, self.events)
        self._starter = Starter(
            self._in_force,
            state_dir,
            start.records,
            self.events,
            lambda: self.scheduler.room_bytes,
            self.hosts,
            start.first_incarnation,
        )
        self._learned = Learned(state_dir.learned_path)
        self._cache_failures = CacheFailures(state_dir.cache_failures_path)
        self.scheduler = MemoryScheduler(
            MemoryLimits.of(settings, budget_bytes),
            self._learned,
            start.leak_check,
            functools.partial(write_stranded, state_dir.stranded_path),
            self.events,
            self.hosts,
        )
        self._state_dir = state_dir
        self.prompts = CachedPrompts(state_dir.prompts, settings.prompt_cache)
        self.check_reports = CheckReports(state_dir.checks_path)
        self.roster = Roster(
            models,
            self._new_supervisor,
            self.scheduler,
            self.upstreams.names,
        )
        self.scheduler.arrange(groups_of(settings))
        self.readings = Readings(self.roster, lambda: self.workers, self.scheduler)
        self.disks = Disks(self.roster, self.events)
        self.lag = LoopLag()
        self._tasks = Tasks("fleet")
        self._handing_over = False

    def _tell_of(self, start: FleetStart) -> None:
        for orphan in start.swept:
            self.events.emit(
                "sweep",
                None,
                pid=orphan.pid,
                name=orphan.name,
                ended=orphan.ended,
                seconds=orphan.seconds,
            )
        if start.leak_check is not None and start.leak_check.bytes:
            self.events.emit("stranded", None, stranded_bytes=start.leak_check.bytes)
        if start.caution is not None:
            self.events.emit("caution", None, reason=start.caution)

    def start(self, *, preload: bool = True) -> None:
        self.readings.start()
        self.prompts.start()
        self.check_reports.start()
        self.hosts.start()
        self.upstreams.start()
        self.lag.watch(self._tasks)
        self._tasks.repeat(self._tick, "deadlines", _TICK_S)
        self.phase = Phase.SERVING
        for supervisor in self.roster.configured.values():
            if supervisor.model.settings.preload and self.caution is None and preload:
                supervisor.preload()

    def say_absent(self, model_ids: Iterable[str]) -> None:
        """Try to load these models, whose folders were missing when the configuration was read. The
        attempt fails, and gives each model the reason that its status and its refusals name.
        """
        for model_id in model_ids:
            if (supervisor := self.roster.configured[model_id]).state is State.UNLOADED:
                supervisor.preload(ModelEvent.MISSING)

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._in_force.settings

    @property
    def spares(self) -> list[Worker]:
        return self._starter.spares.workers

    @property
    def workers(self) -> list[Worker]:
        """Every worker, spares among them."""
        workers = (supervisor.worker for supervisor in self.roster.everyone)
        return [*(worker for worker in workers if worker is not None), *self.spares]

    def configure(self, models: Iterable[Model], settings: Settings, budget_bytes: int) -> None:
        """Take another configuration. Models that haven't changed go on undisturbed."""
        before = self._in_force.settings
        self._in_force.settings = settings
        self.roster.configure(
            models,
            everywhere=(before.queue, before.workers, before.memory)
            != (settings.queue, settings.workers, settings.memory),
        )
        self.scheduler.configure(MemoryLimits.of(settings, budget_bytes))
        self.scheduler.arrange(groups_of(settings))
        self.upstreams.configure(settings.upstreams)

    def _new_supervisor(self, model: Model) -> ModelSupervisor:
        gateway = GatewayParts(
            self._in_force,
            self.events,
            self.scheduler,
            self._starter,
            self.prompts.for_workers,
            self._cache_failures,
        )
        return ModelSupervisor(model, WorkerLog(self._state_dir.log_path(model.id)), gateway)

    @property
    def process_bytes(self) -> int:
        """The bytes of a worker without a model: measured here, or assumed until then."""
        return self._learned.process_bytes

    def misfits(self, settings: Settings, budget_bytes: int) -> list[tuple[str, str]]:
        """The names of groups that can't have the room they need, each with the reason. Blocks."""
        return list(misfits(settings, budget_bytes, self._learned))

    @property
    def uptime_s(self) -> float:
        """Seconds since the gateway's start. A change of the system's clock doesn't alter them."""
        return self._loop.time() - self._began_at

    def now(self) -> float:
        """The present time in seconds, on the event loop's clock, which all deadlines use."""
        return self._loop.time()

    def check_serves(self) -> None:
        """Raises: Refusal: the gateway takes no new requests."""
        if self.phase not in (Phase.SERVING, Phase.LEAVING):
            raise refusals.shutting_down()

    def check_decides(self) -> None:
        """Raises: Refusal: another gateway decides on the models, or is about to."""
        if self._handing_over or self.phase is Phase.LEAVING:
            raise refusals.being_replaced()

    def submit(self, supervisor: ModelSupervisor, *requests: Request) -> None:
        """Take all of these requests in, or none.

        Raises:
            Refusal: the gateway is shutting down, or the model refuses one of the requests.
        """
        self.check_serves()
        for index, request in enumerate(requests):
            try:
                supervisor.submit(request)
            except Refusal:
                for taken in requests[:index]:
                    supervisor.traffic.cancel(taken)
                raise

    # From one gateway to the next

    async def until_settled(self, seconds: float) -> None:
        """Stop all decisions on memory, and wait until no worker starts, loads, drains or ends.

        Raises:
            TimeoutError: the wait takes longer than `seconds`; decisions go on after that.
        """
        self.scheduler.freeze()
        try:
            async with asyncio.timeout(seconds):
                while unsettled := [
                    supervisor for supervisor in self.roster.everyone if supervisor.unsettled
                ]:
                    await unsettled[0].condition.until(lambda: not unsettled[0].unsettled)
        except BaseException:
            self.scheduler.thaw()
            raise

    def hand_over(self, successor: Successor) -> dict[str, Channel]:
        """Decide nothing more on the models, and send requests to `successor` instead of workers.
        Return a channel for each model with a worker, at which the successor can listen.
        """
        self._handing_over = True
        for supervisor in self.roster.everyone:
            supervisor.traffic.hand_over(successor)
        return {
            supervisor.model.id: self._starter.new_channel()
            for supervisor in self.roster.everyone
            if supervisor.worker is not None
        }

    def take_back(self) -> None:
        """Undo `hand_over`, as no successor has taken the models over."""
        self._handing_over = False
        for supervisor in self.roster.everyone:
            if supervisor.worker is not None:
                supervisor.worker.stay()
            supervisor.traffic.take_back()
        self.scheduler.thaw()

    @property
    def next_incarnation(self) -> int:
        return self._starter.next_incarnation

    def channel_address(self, channel: Channel) -> str:
        """Raises: EndpointError: the path of the socket is too long, or isn't UTF-8."""
        return endpoint(self._state_dir.socket_path(channel.number))

    async def release(self) -> list[tuple[int, bytes]]:
        """Give all models up to another gateway. Return the incarnation of each worker, with the
        part of an unfinished line that was read from its output.
        """
        self.phase = Phase.LEAVING
        self._wakefulness.end()
        self.events.close()
        await self._tasks.cancel_all()
        await self.readings.close()
        await self.disks.close()
        await self.hosts.close()
        await self.upstreams.close()
        await self.prompts.close()
        await self.check_reports.close()
        await self.scheduler.close()
        return await self.roster.release()

    async def end_spares(self) -> None:
        """End the spares, which a gateway doesn't hand over."""
        await self._starter.spares.close()

    async def drain(self, seconds: float) -> None:
        """Take no new requests, and wait for the end of all present ones, at most `seconds`."""
        self.phase = Phase.DRAINING
        idle = asyncio.Event()
        watch = self._tasks.start(self._watch_idle(idle), "drain")
        await until_set(idle, seconds)
        watch.cancel()

    async def _watch_idle(self, idle: asyncio.Event) -> None:
        for supervisor in self.roster.everyone:
            await supervisor.until_idle()
        await self.upstreams.until_idle()
        idle.set()

    def refuse_all(self) -> None:
        """Refuse all requests that still wait or run."""
        for supervisor in self.roster.everyone:
            supervisor.traffic.refuse_all(refusals.shutting_down())

    async def stop(self) -> None:
        """End all workers at the same time. Return when each worker has ended, or has survived its
        shutdown sequence.
        """
        for supervisor in self.roster.everyone:
            supervisor.end()
        await asyncio.gather(
            self._starter.spares.close(),
            *(supervisor.until_ended() for supervisor in self.roster.everyone),
        )
        self.phase = Phase.STOPPED
        self._wakefulness.end()
        await self._tasks.cancel_all()
        await self.readings.close()
        await self.disks.close()
        await self.prompts.close()
        await self.check_reports.close()
        await self.roster.close()
        await self.scheduler.close()
        self._starter.close()
        await self.hosts.close()
        await self.upstreams.close()
        self.events.close()

    async def _tick(self) -> None:
        """Run the regular checks. Each check runs even if another one fails."""
        if self._handing_over:
            return
        now = self.now()
        for supervisor in self.roster.everyone:
            tick = functools.partial(supervisor.tick, now, REMINDER_S)
            self._tasks.attempt(tick, supervisor.model.id)
        self._tasks.attempt(
            functools.partial(self.scheduler.tick, self.readings.host.pressure), "memory"
        )
        self._tasks.attempt(
            functools.partial(
                self._starter.spares.tick,
                now,
                at_most=self.scheduler.spares,
                loading=self._loading(),
            ),
            "spares",
        )
        self._tasks.attempt(
            functools.partial(self._wakefulness.tick, now, works=self._works()), "awake"
        )

    def _works(self) -> bool:
        """Whether the machine is to stay awake."""
        if not self._in_force.settings.gateway.keep_awake:
            return False
        return self._loading() or any(
            supervisor.traffic.busy for supervisor in self.roster.everyone
        )

    def _loading(self) -> bool:
        states = (supervisor.state for supervisor in self.roster.everyone)
        return any(state in (State.STARTING, State.LOADING) for state in states)
