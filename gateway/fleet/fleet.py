"""All models together: their start, their regular checks, the gateway's own phase and end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from gateway.config.in_force import InForce
from gateway.config.settings import Settings
from gateway.dispatch.request import Request
from gateway.events import EventLog
from gateway.fleet.prompts import Prompts
from gateway.fleet.readings import Readings
from gateway.fleet.roster import Roster
from gateway.fleet.starter import Starter
from gateway.hub.fit import Outlook, outlook
from gateway.hub.messages import Planned
from gateway.memory.admission import Admission
from gateway.memory.estimate.learned import Learned
from gateway.memory.steward import Steward
from gateway.memory.stranded.policy import Stranded
from gateway.memory.stranded.record import write_stranded
from gateway.metrics.loop_lag import LoopLag
from gateway.model import refusals
from gateway.model.compartment import Compartment
from gateway.model.lifecycle import State
from gateway.model.model import Model
from gateway.process.records import WorkerRecords
from gateway.process.sweep import Swept
from gateway.process.worker import Worker
from gateway.process.worker_log import WorkerLog
from gateway.serve.faults import Faults
from gateway.state.state_dir import StateDir
from gateway.system.tasks import Tasks

logger = logging.getLogger(__name__)

_TICK_S: Final = 0.25
# How long a client's connection may be silent before it gets an SSE comment.
REMINDER_S: Final = 5.0


class Phase(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


class Fleet:
    """`phase` is the gateway's own, `roster` has the models, `readings` what was measured last,
    `prompts` what is kept of them on disk, `faults` what failed inside the gateway, `lag` how late
    its event loop was.
    """

    def __init__(
        self,
        models: Iterable[Model],
        settings: Settings,
        budget_bytes: int,
        state_dir: StateDir,
        records: WorkerRecords,
        swept: Iterable[Swept],
        stranded: Stranded | None,
        caution: str | None,
    ) -> None:
        """`budget_bytes` is what all workers together may hold. `swept` are the leftovers of an
        earlier gateway that were found; `stranded` judges what belongs to nobody any more, where
        that can happen.
        `caution` is why no model is to be loaded that nobody asks for.
        """
        self.phase = Phase.STARTING
        self._in_force = InForce(settings)
        self.started_at = time.time()
        self.caution = caution
        self.log_path = state_dir.gateway_log_path
        self.events = EventLog()
        self.faults = Faults()
        self.faults.watch(asyncio.get_running_loop())
        for each in swept:
            self.events.emit(
                "sweep", None, pid=each.pid, name=each.name, ended=each.ended, seconds=each.seconds
            )
        if stranded is not None and stranded.bytes:
            self.events.emit("stranded", None, stranded_bytes=stranded.bytes)
        if caution is not None:
            self.events.emit("caution", None, reason=caution)
        self._starter = Starter(self._in_force, state_dir, records, self.events)
        learned = self._learned = Learned(state_dir.learned_path)
        self.steward = Steward(
            Admission(
                budget_bytes,
                settings.queue.max_wait_s,
                spare_bytes=settings.workers.spare * learned.process_bytes,
            ),
            learned,
            stranded,
            functools.partial(write_stranded, state_dir.stranded_path),
            self.events,
            settings.workers.spare,
            settings.memory.ordinary_tokens,
        )
        self._state_dir = state_dir
        self.prompts = Prompts(state_dir.prompts, settings.prompt_cache)
        self.roster = Roster(models, self._new_compartment, self.steward)
        self.readings = Readings(self.roster, lambda: self.workers, self.steward)
        self.lag = LoopLag()
        self._tasks = Tasks("fleet")

    def start(self) -> None:
        self.readings.start()
        self.prompts.start()
        self.lag.watch(self._tasks)
        self._tasks.keep(self._tick, "deadlines", _TICK_S)
        self.phase = Phase.SERVING
        for compartment in self.roster.configured.values():
            if compartment.model.settings.preload and self.caution is None:
                compartment.preload()

    @property
    def settings(self) -> Settings:
        """Those in force."""
        return self._in_force.settings

    @property
    def spares(self) -> list[Worker]:
        return self._starter.spares

    @property
    def workers(self) -> list[Worker]:
        """Every worker, spares among them."""
        models = (each.worker for each in self.roster.everyone)
        return [*(each for each in models if each is not None), *self.spares]

    def configure(self, models: Iterable[Model], settings: Settings, budget_bytes: int) -> None:
        """Take another configuration. Models that it leaves as they are don't notice."""
        before = self._in_force.settings
        self._in_force.settings = settings
        self.roster.configure(
            models,
            everywhere=(before.queue, before.workers, before.memory)
            != (settings.queue, settings.workers, settings.memory),
        )
        self.steward.configure(
            budget_bytes,
            settings.queue.max_wait_s,
            settings.workers.spare,
            settings.memory.ordinary_tokens,
        )

    def _new_compartment(self, model: Model) -> Compartment:
        return Compartment(
            model,
            self._in_force,
            self.steward,
            self._starter,
            WorkerLog(self._state_dir.log_path(model.id)),
            self.events,
            self.prompts.for_workers,
        )

    def outlook(self, planned: Planned) -> Outlook | None:
        """Whether a model that is to be pulled will fit beside what is pinned."""
        return outlook(
            planned,
            self.steward.admission.ledger.possible_bytes,
            self._learned.process_bytes,
            self.settings.memory.ordinary_tokens,
        )

    def now(self) -> float:
        """The clock of deadlines, in seconds."""
        return asyncio.get_running_loop().time()

    def check_serves(self) -> None:
        """Raises: Refusal if nothing new is taken any more."""
        if self.phase is not Phase.SERVING:
            raise refusals.shutting_down()

    def submit(self, compartment: Compartment, request: Request) -> None:
        """Take a request in.

        Raises:
            Refusal: the gateway is shutting down, or the model's queue is full.
        """
        self.check_serves()
        compartment.submit(request)

    async def drain(self, seconds: float) -> None:
        """Take nothing new, and wait until nothing runs, or for so many seconds."""
        self.phase = Phase.DRAINING
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for compartment in self.roster.everyone:
                    await compartment.until_idle()

    def refuse_all(self) -> None:
        """End what still waits or runs."""
        for compartment in self.roster.everyone:
            compartment.traffic.refuse_all(refusals.shutting_down())

    async def stop(self) -> None:
        """End every worker, side by side; returns when each is gone or survived its ladder."""
        for compartment in self.roster.everyone:
            compartment.end()
        await asyncio.gather(
            self._starter.end_spares(), *(each.until_ended() for each in self.roster.everyone)
        )
        self.phase = Phase.STOPPED
        await self._tasks.cancel_all()
        await self.readings.close()
        await self.prompts.close()
        await self.roster.close()
        await self.steward.close()
        self._starter.close()
        self.events.close()

    async def _tick(self) -> None:
        """A defect in one check must not keep the others from being made."""
        now = self.now()
        for each in self.roster.everyone:
            self._tasks.attempt(functools.partial(each.tick, now, REMINDER_S), each.model.id)
        self._tasks.attempt(
            functools.partial(self.steward.tick, self.readings.host.pressure), "memory"
        )
        self._tasks.attempt(
            functools.partial(
                self._starter.tick,
                now,
                spares=self.steward.spares,
                loading=self._loading(),
            ),
            "spares",
        )

    def _loading(self) -> bool:
        states = (each.state for each in self.roster.everyone)
        return any(each in (State.STARTING, State.LOADING) for each in states)
