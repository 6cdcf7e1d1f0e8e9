"""A second's reading of memory, from the processes to the limits of the workers:

1. The footprint of each worker's processes is read on threads beside the event loop.
2. `Worker.measure` makes a `WorkerReading` of the footprint, and of what the worker has reported.
3. `ModelMemory.record` learns sizes from the reading for later loads.
4. `Admission.record` writes the reading into the model's `Allocation` in the ledger.
5. `Admission.decide` admits, lends, recalls and evicts, by the ledger alone.
6. `Execution.perform` carries each decision out on its model.
7. `ModelMemory.send_limit` sends a worker its limit, if anything differs from the last message.
8. `LeakCheck` compares the machine's wired memory with the footprints of all workers.

The machine's memory, the gateway's own footprint, and the processes that workers have started are
read beside that. The decisions have two other inputs. `Fleet` passes the machine's memory pressure
to `MemoryScheduler.tick`. The floor of each model comes from its estimate, which is made at a load
(`gateway/memory/estimator.py`, `gateway/memory/fitting.py`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable
from typing import Final

from gateway.memory.allocation import WorkerReading
from gateway.memory.leak_check import LoadedWorker
from gateway.memory.scheduler import MemoryScheduler
from gateway.models.roster import Roster
from gateway.system.lane import Lane
from gateway.system.memory import FootprintGauge, card_memory, host_memory
from gateway.system.memory_reading import CardMemory, Footprint, FootprintError
from gateway.system.processes import descendants
from gateway.system.tasks import Tasks
from gateway.workers.worker import Worker

logger = logging.getLogger(__name__)

_READING_S: Final = 1.0
_DESCENDANTS_S: Final = 5.0
# A reading that takes longer is given up until its next turn.
_ANSWER_S: Final = 5.0


class Readings:
    """The last readings: `host` is the memory of the machine, `card` the memory of the cards that
    workers compute on, `footprint` the footprint of the gateway itself.
    """

    def __init__(
        self, roster: Roster, workers: Callable[[], list[Worker]], scheduler: MemoryScheduler
    ) -> None:
        """`workers` returns all workers, spares among them."""
        self.host = host_memory()
        self.card: CardMemory | None = None
        self.footprint: Footprint | None = None
        self._gauge = FootprintGauge(os.getpid())
        self._roster = roster
        self._workers = workers
        self._scheduler = scheduler
        self._tasks = Tasks("readings")
        self._machine = Lane("machine")
        self._processes = Lane("processes")

    def start(self) -> None:
        self._tasks.repeat(self._read_machine, "machine", _READING_S)
        self._tasks.repeat(self._read_workers, "footprints", _READING_S)
        self._tasks.repeat(self._look_at_processes, "descendants", _DESCENDANTS_S)

    async def close(self) -> None:
        await self._tasks.cancel_all()

    async def _read_workers(self) -> None:
        workers = self._workers()
        # 1, 2
        measured = dict(zip(workers, await asyncio.gather(*map(_measure, workers)), strict=True))
        for supervisor in self._roster.everyone:
            worker = supervisor.worker
            if worker is not None and (reading := measured.get(worker)) is not None:
                # 3 to 7: the scheduler decides after these calls, once for all readings.
                record = functools.partial(supervisor.model_memory.record, worker, reading)
                self._tasks.attempt(record, "reading")
        # 8
        if self.host.wired_bytes is not None:
            loaded = {
                supervisor.worker.pid: LoadedWorker(
                    supervisor.model.id, supervisor.worker.memory.host_bytes or 0
                )
                for supervisor in self._roster.everyone
                if supervisor.worker is not None
            }
            self._scheduler.check_leaks(self.host.wired_bytes, loaded)

    async def _read_machine(self) -> None:
        self.host = await self._machine.run(host_memory, _ANSWER_S, "the machine's memory")
        self.footprint = await self._machine.run(
            self._read_gateway, _ANSWER_S, "the gateway's footprint"
        )
        pids = {pid for worker in self._workers() for pid in worker.pids}
        self.card = await self._machine.run(
            functools.partial(_card_memory, pids), _ANSWER_S, "the card's memory"
        )

    def _read_gateway(self) -> Footprint | None:
        try:
            return self._gauge.read()
        except FootprintError as error:
            logger.debug("No footprint of the gateway: %s", error)
            return None

    async def _look_at_processes(self) -> None:
        workers = self._workers()
        children = await self._processes.run(
            functools.partial(descendants, [worker.pid for worker in workers]),
            _ANSWER_S,
            "the list of processes",
        )
        for worker in workers:
            worker.descendants.remember(children[worker.pid])


async def _measure(worker: Worker) -> WorkerReading | None:
    worker.report.count_tokens()
    try:
        return await worker.measure()
    except (FootprintError, OSError) as error:
        # The worker may just have ended. A reading that hangs doesn't hold up other workers'.
        logger.debug("No footprint of process %d: %s", worker.pid, error)
        return None


def _card_memory(pids: set[int]) -> CardMemory | None:
    try:
        return card_memory(pids)
    except FootprintError as error:
        logger.debug("No memory of the card: %s", error)
        return None
