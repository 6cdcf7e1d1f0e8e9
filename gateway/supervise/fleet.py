"""All compartments, and what is done for every one of them: readings, deadlines, the end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Final

from gateway.config.in_force import InForce
from gateway.config.settings import Settings
from gateway.dispatch.refusal import Refusal
from gateway.dispatch.request import Request
from gateway.events import EventLog
from gateway.memory.admission import Admission
from gateway.memory.estimate.estimate import PROCESS_BYTES
from gateway.memory.estimate.learned import Learned
from gateway.memory.footprint import FootprintError, footprint
from gateway.memory.host import host_memory, resident_bytes
from gateway.memory.reading import Footprint
from gateway.memory.stranded import Reading, Stranded
from gateway.memory.stranded_record import write_stranded
from gateway.state_dir import StateDir
from gateway.supervise.compartment import Compartment
from gateway.supervise.identity import descendants
from gateway.supervise.lifecycle import State
from gateway.supervise.model import Model
from gateway.supervise.records import WorkerRecords
from gateway.supervise.starter import Starter
from gateway.supervise.steward import Steward
from gateway.supervise.sweep import Swept
from gateway.supervise.tasks import Tasks
from gateway.supervise.worker import Worker
from gateway.supervise.worker_log import WorkerLog

logger = logging.getLogger(__name__)

_READING_S: Final = 1.0
_DESCENDANTS_S: Final = 5.0
_TICK_S: Final = 0.25
_MOVING: Final = (State.STARTING, State.LOADING, State.DRAINING, State.STOPPING)
# How long a client's connection may be silent before it gets an SSE comment.
REMINDER_S: Final = 5.0


class Phase(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


class Fleet:
    """The models by id, and the gateway's own phase."""

    def __init__(
        self,
        models: Iterable[Model],
        settings: Settings,
        budget_bytes: int,
        state_dir: StateDir,
        records: WorkerRecords,
        swept: Iterable[Swept],
        stranded_bytes: int,
        caution: str | None,
    ) -> None:
        """`budget_bytes` is what all workers together may hold. `swept` are the leftovers of an
        earlier gateway that were found, and `stranded_bytes` what belongs to nobody any more.
        `caution` is why no model is to be loaded that nobody asks for.
        """
        self.phase = Phase.STARTING
        self._in_force = InForce(settings)
        self.started_at = time.time()
        self.caution = caution
        self.log_path = state_dir.gateway_log_path
        self.events = EventLog()
        for each in swept:
            self.events.emit(
                "sweep", None, pid=each.pid, name=each.name, ended=each.ended, seconds=each.seconds
            )
        if stranded_bytes:
            self.events.emit("stranded", None, stranded_bytes=stranded_bytes)
        if caution is not None:
            self.events.emit("caution", None, reason=caution)
        self._starter = Starter(self._in_force, state_dir, records, self.events)
        self.steward = Steward(
            Admission(
                budget_bytes,
                settings.queue.max_wait_s,
                spare_bytes=settings.workers.spare * PROCESS_BYTES,
            ),
            Learned(state_dir.learned_path),
            Stranded(stranded_bytes),
            functools.partial(write_stranded, state_dir.stranded_path),
            self.events,
        )
        self._others_bytes: int | None = None
        self._state_dir = state_dir
        self.compartments = {model.id: self._new_compartment(model) for model in models}
        # Not configured any more, but not over yet either.
        self._leaving: dict[str, Compartment] = {}
        self._register()
        self.host = host_memory()
        # The gateway's own.
        self.footprint: Footprint | None = None
        self._tasks = Tasks("fleet")
        # One thread: readings may be slow, and must not take the threads that others wait for.
        self._reader = ThreadPoolExecutor(1, "footprints")

    def start(self) -> None:
        self._tasks.start(self._read_regularly(), "readings")
        self._tasks.start(self._look_for_descendants(), "descendants")
        self._tasks.start(self._tick_regularly(), "deadlines")
        self.phase = Phase.SERVING
        for compartment in self.compartments.values():
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
        models = (each.worker for each in self._everyone)
        return [*(each for each in models if each is not None), *self.spares]

    def configure(self, models: Iterable[Model], settings: Settings, budget_bytes: int) -> None:
        """Take another configuration. Models that it leaves as they are don't notice."""
        before = self._in_force.settings
        self._in_force.settings = settings
        present, self.compartments = self.compartments, {}
        everywhere = before.queue != settings.queue or before.workers != settings.workers
        changed = []
        for model in models:
            known = present.pop(model.id, None) or self._leaving.pop(model.id, None)
            if known is None:
                known = self._new_compartment(model)
                changed.append(functools.partial(known.configure, model))
            elif known.model != model or known.removed or everywhere:
                changed.append(functools.partial(known.configure, model))
            self.compartments[model.id] = known
        self._leaving |= present
        self._register()
        for each in changed:
            each()
        self._by_name = self._names()
        for compartment in present.values():
            compartment.remove()
            self._tasks.start(self._see_off(compartment), f"end of {compartment.model.id}")
        self.steward.configure(
            budget_bytes, settings.queue.max_wait_s, settings.workers.spare * PROCESS_BYTES
        )

    async def _see_off(self, compartment: Compartment) -> None:
        model_id = compartment.model.id
        await compartment.condition.until(lambda: compartment.over or not compartment.removed)
        if self._leaving.get(model_id) is compartment and compartment.removed:
            del self._leaving[model_id]
            self._register()
            await compartment.close()

    def _new_compartment(self, model: Model) -> Compartment:
        return Compartment(
            model,
            self._in_force,
            self.steward,
            self._starter,
            WorkerLog(self._state_dir.log_path(model.id)),
            self.events,
        )

    def _register(self) -> None:
        self.steward.register(each.tenancy for each in self._everyone)
        self._by_name = self._names()

    def _names(self) -> dict[str, Compartment]:
        names = dict(self.compartments)
        for compartment in self.compartments.values():
            for alias in compartment.model.settings.aliases:
                names[alias] = compartment
        return names

    @property
    def _everyone(self) -> list[Compartment]:
        return [*self.compartments.values(), *self._leaving.values()]

    def now(self) -> float:
        """The clock of deadlines, in seconds."""
        return asyncio.get_running_loop().time()

    def find(self, name: str) -> Compartment:
        """The compartment of a model's id or alias.

        Raises:
            Refusal: there is none.
        """
        if (compartment := self._by_name.get(name)) is None:
            known = ", ".join(sorted(self.compartments))
            raise Refusal(
                "model_not_found", f"There is no model {name!r}; there are: {known}.", param="model"
            )
        return compartment

    def submit(self, compartment: Compartment, request: Request) -> None:
        """Take a request in.

        Raises:
            Refusal: the gateway is shutting down, or the model's queue is full.
        """
        if self.phase is not Phase.SERVING:
            raise _shutting_down()
        compartment.submit(request)

    async def drain(self, seconds: float) -> None:
        """Take nothing new, and wait until nothing runs, or for so many seconds."""
        self.phase = Phase.DRAINING
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for compartment in self._everyone:
                    await compartment.until_idle()

    def refuse_all(self) -> None:
        """End what still waits or runs."""
        for compartment in self._everyone:
            compartment.traffic.refuse_all(_shutting_down())

    async def stop(self) -> None:
        """End every worker, side by side; returns when each is gone or survived its ladder."""
        for compartment in self._everyone:
            compartment.end()
        await asyncio.gather(
            self._starter.end_spares(), *(each.until_ended() for each in self._everyone)
        )
        self.phase = Phase.STOPPED
        await self._tasks.cancel_all()
        for compartment in self._everyone:
            await compartment.close()
        await self.steward.close()
        self._starter.close()
        self.events.close()
        self._reader.shutdown(wait=False)

    async def _tick_regularly(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK_S)
            now = loop.time()
            ticks: list[Callable[[], None]] = [
                functools.partial(each.tick, now, REMINDER_S) for each in self._everyone
            ]
            ticks.append(functools.partial(self.steward.tick, self.host.pressure))
            ticks.append(functools.partial(self._starter.tick, now, loading=self._loading()))
            for tick in ticks:
                try:
                    tick()
                except Exception:
                    # A defect in one must not end the supervision of all.
                    logger.exception("A regular check failed")

    def _loading(self) -> bool:
        states = (each.state for each in self._everyone)
        return any(each in (State.STARTING, State.LOADING) for each in states)

    async def _look_for_descendants(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_DESCENDANTS_S)
            workers = self.workers
            found = await loop.run_in_executor(
                self._reader, descendants, [each.pid for each in workers]
            )
            for worker in workers:
                worker.note_descendants(found[worker.pid])
            pids = {each.pid for each in self.workers}
            self._others_bytes = await loop.run_in_executor(self._reader, resident_bytes, pids)

    async def _read_regularly(self) -> None:
        while True:
            await asyncio.sleep(_READING_S)
            loop = asyncio.get_running_loop()
            self.host = await loop.run_in_executor(self._reader, host_memory)
            self.footprint = await self._read_footprint(os.getpid())
            for worker in self.workers:
                worker.count_tokens()
                reading = await self._read_footprint(worker.pid)
                if reading is not None:
                    worker.note_footprint(reading)
            for compartment in self._everyone:
                if compartment.worker is not None:
                    compartment.tenancy.measured(compartment.worker)
            self._compare()

    def _compare(self) -> None:
        """The machine's memory with what is known to hold it."""
        footprints = [each.footprint for each in self.workers]
        if self._others_bytes is None or None in footprints:
            return
        compartments = self._everyone
        self.steward.observe(
            Reading(
                self.now(),
                self.host.total_bytes - self.host.available_bytes,
                sum(each.current_bytes for each in footprints if each is not None),
                self._others_bytes,
                busy=any(each.traffic.running or each.state in _MOVING for each in compartments),
            )
        )

    async def _read_footprint(self, pid: int) -> Footprint | None:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._reader, footprint, pid)
        except FootprintError as error:
            # It may just have ended.
            logger.debug("No footprint of process %d: %s", pid, error)
            return None


def _shutting_down() -> Refusal:
    return Refusal(
        "shutting_down", "The gateway is shutting down: try again in a moment.", retry_after_s=10
    )
