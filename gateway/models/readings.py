"""What is measured regularly: the machine, the gateway, and every worker with what it started."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable
from typing import Final

from gateway.memory.leak_check import Loaded
from gateway.memory.steward import Steward
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
# For a look at the machine; what hangs is left for the next turn.
_ANSWER_S: Final = 5.0


class Readings:
    """`host` is the machine's memory, `card` that of the cards that workers compute on, `footprint`
    the gateway's own.
    """

    def __init__(
        self, roster: Roster, workers: Callable[[], list[Worker]], steward: Steward
    ) -> None:
        """`workers` tells every worker that there is, spares among them."""
        self.host = host_memory()
        self.card: CardMemory | None = None
        self.footprint: Footprint | None = None
        self._own = FootprintGauge(os.getpid())
        self._roster = roster
        self._workers = workers
        self._steward = steward
        self._tasks = Tasks("readings")
        self._machine = Lane("machine")
        self._processes = Lane("processes")

    def start(self) -> None:
        self._tasks.keep(self._read_machine, "machine", _READING_S)
        self._tasks.keep(self._read_workers, "footprints", _READING_S)
        self._tasks.keep(self._look_at_processes, "descendants", _DESCENDANTS_S)

    async def close(self) -> None:
        await self._tasks.cancel_all()

    async def _read_machine(self) -> None:
        self.host = await self._machine.run(host_memory, _ANSWER_S, "the machine's memory")
        self.footprint = await self._machine.run(self._read_own, _ANSWER_S, "the own footprint")
        pids = {pid for each in self._workers() for pid in each.pids}
        self.card = await self._machine.run(
            functools.partial(_card_memory, pids), _ANSWER_S, "the card's memory"
        )

    def _read_own(self) -> Footprint | None:
        try:
            return self._own.read()
        except FootprintError as error:
            logger.debug("No footprint of the gateway: %s", error)
            return None

    async def _read_workers(self) -> None:
        workers = self._workers()
        await asyncio.gather(*(self._read_footprint(each) for each in workers))
        for compartment in self._roster.everyone:
            if compartment.worker is not None:
                self._tasks.attempt(
                    functools.partial(compartment.tenancy.measured, compartment.worker), "measured"
                )
        self._compare()

    async def _look_at_processes(self) -> None:
        workers = self._workers()
        found = await self._processes.run(
            functools.partial(descendants, [each.pid for each in workers]),
            _ANSWER_S,
            "the list of processes",
        )
        for worker in workers:
            worker.descendants.note(found[worker.pid])

    def _compare(self) -> None:
        """The machine's wired pages with what its workers did."""
        if self.host.wired_bytes is None:
            return
        workers = {
            each.worker.pid: Loaded(each.model.id, each.worker.memory.host_bytes or 0)
            for each in self._roster.everyone
            if each.worker is not None
        }
        self._steward.check_leaks(self.host.wired_bytes, workers)

    async def _read_footprint(self, worker: Worker) -> None:
        worker.report.count_tokens()
        try:
            await worker.measure()
        except (FootprintError, OSError) as error:
            # It may just have ended. If it hangs, that costs nobody else's reading.
            logger.debug("No footprint of process %d: %s", worker.pid, error)


def _card_memory(pids: set[int]) -> CardMemory | None:
    try:
        return card_memory(pids)
    except FootprintError as error:
        logger.debug("No memory of the card: %s", error)
        return None
