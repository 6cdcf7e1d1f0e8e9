"""All compartments, and what is done for every one of them: readings, deadlines, the end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Final

from gateway.config.settings import Settings
from gateway.dispatch.refusal import Refusal
from gateway.dispatch.request import Request
from gateway.events import EventLog
from gateway.memory.admission import Admission
from gateway.memory.estimate.estimate import PROCESS_BYTES
from gateway.memory.estimate.learned import Learned
from gateway.memory.footprint import FootprintError, footprint
from gateway.memory.host import host_memory, resident_bytes
from gateway.memory.stranded import Reading, Stranded
from gateway.memory.stranded_record import read_stranded, write_stranded
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
    ) -> None:
        """`budget_bytes` is what all workers together may hold. `swept` are the leftovers of an
        earlier gateway that were found.
        """
        self.phase = Phase.STARTING
        self.settings = settings
        self.started_at = time.time()
        self.log_path = state_dir.gateway_log_path
        self.events = EventLog()
        for each in swept:
            self.events.emit(
                "sweep", None, pid=each.pid, name=each.name, ended=each.ended, seconds=each.seconds
            )
        self._starter = Starter(settings, state_dir, records, self.events)
        self.steward = Steward(
            Admission(
                budget_bytes,
                settings.queue.max_wait_s,
                spare_bytes=settings.workers.spare * PROCESS_BYTES,
            ),
            Learned(state_dir.learned_path),
            Stranded(read_stranded(state_dir.stranded_path)),
            functools.partial(write_stranded, state_dir.stranded_path),
            self.events,
        )
        self._others_bytes: int | None = None
        self.compartments = {
            model.id: Compartment(
                model,
                settings,
                self.steward,
                self._starter,
                WorkerLog(state_dir.log_path(model.id)),
                self.events,
            )
            for model in models
        }
        self.steward.register(self.compartments.values())
        self._by_name = dict(self.compartments)
        for compartment in self.compartments.values():
            for alias in compartment.model.settings.aliases:
                self._by_name[alias] = compartment
        self.host = host_memory()
        self._tasks = Tasks("fleet")
        # One thread: readings may be slow, and must not take the threads that others wait for.
        self._reader = ThreadPoolExecutor(1, "footprints")

    def start(self) -> None:
        self._tasks.start(self._read_regularly(), "readings")
        self._tasks.start(self._look_for_descendants(), "descendants")
        self._tasks.start(self._tick_regularly(), "deadlines")
        self.phase = Phase.SERVING
        for compartment in self.compartments.values():
            if compartment.model.settings.preload:
                compartment.preload()

    @property
    def workers(self) -> list[Worker]:
        """Every worker, spares among them."""
        models = (each.worker for each in self.compartments.values())
        return [*(each for each in models if each is not None), *self._starter.spares]

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
                for compartment in self.compartments.values():
                    await compartment.until_idle()

    def refuse_all(self) -> None:
        """End what still waits or runs."""
        for compartment in self.compartments.values():
            compartment.traffic.refuse_all(_shutting_down())

    async def stop(self) -> None:
        """End every worker, side by side; returns when each is gone or survived its ladder."""
        for compartment in self.compartments.values():
            compartment.end()
        await asyncio.gather(
            self._starter.end_spares(), *(each.until_ended() for each in self.compartments.values())
        )
        self.phase = Phase.STOPPED
        await self._tasks.cancel_all()
        for compartment in self.compartments.values():
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
                functools.partial(each.tick, now, REMINDER_S) for each in self.compartments.values()
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
        states = (each.state for each in self.compartments.values())
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
            for worker in self.workers:
                worker.count_tokens()
                await self._read_footprint(worker)
            for compartment in self.compartments.values():
                if compartment.worker is not None:
                    compartment.note_footprint(compartment.worker)
            self._compare()

    def _compare(self) -> None:
        """The machine's memory with what is known to hold it."""
        footprints = [each.footprint for each in self.workers]
        if self._others_bytes is None or None in footprints:
            return
        compartments = self.compartments.values()
        self.steward.observe(
            Reading(
                self.now(),
                self.host.total_bytes - self.host.available_bytes,
                sum(each.current_bytes for each in footprints if each is not None),
                self._others_bytes,
                busy=any(each.traffic.running or each.state in _MOVING for each in compartments),
            )
        )

    async def _read_footprint(self, worker: Worker) -> None:
        loop = asyncio.get_running_loop()
        try:
            reading = await loop.run_in_executor(self._reader, footprint, worker.pid)
        except FootprintError as error:
            if not worker.ended.is_set():
                logger.debug("No footprint of worker %d: %s", worker.pid, error)
        else:
            worker.note_footprint(reading)


def _shutting_down() -> Refusal:
    return Refusal(
        "shutting_down", "The gateway is shutting down: try again in a moment.", retry_after_s=10
    )
