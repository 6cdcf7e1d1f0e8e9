"""What is measured regularly: the machine, the gateway, and every worker with what it started."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from gateway.memory.footprint import FootprintError, footprint
from gateway.memory.host import host_memory, resident_bytes
from gateway.memory.reading import Footprint
from gateway.memory.stranded import Reading
from gateway.supervise.identity import descendants
from gateway.supervise.lifecycle import State
from gateway.supervise.roster import Roster
from gateway.supervise.steward import Steward
from gateway.supervise.tasks import Tasks
from gateway.supervise.worker import Worker

logger = logging.getLogger(__name__)

_READING_S: Final = 1.0
_DESCENDANTS_S: Final = 5.0
_MOVING: Final = (State.STARTING, State.LOADING, State.DRAINING, State.STOPPING)


class Readings:
    """`host` is the machine's memory, `footprint` the gateway's own."""

    def __init__(
        self, roster: Roster, workers: Callable[[], list[Worker]], steward: Steward
    ) -> None:
        """`workers` tells every worker that there is, spares among them."""
        self.host = host_memory()
        self.footprint: Footprint | None = None
        self._roster = roster
        self._workers = workers
        self._steward = steward
        self._others_bytes: int | None = None
        self._tasks = Tasks("readings")
        # One thread: readings may be slow, and must not take the threads that others wait for.
        self._reader = ThreadPoolExecutor(1, "footprints")

    def start(self) -> None:
        self._tasks.start(self._read_regularly(), "footprints")
        self._tasks.start(self._look_for_descendants(), "descendants")

    async def close(self) -> None:
        await self._tasks.cancel_all()
        self._reader.shutdown(wait=False)

    async def _read_regularly(self) -> None:
        while True:
            await asyncio.sleep(_READING_S)
            loop = asyncio.get_running_loop()
            self.host = await loop.run_in_executor(self._reader, host_memory)
            self.footprint = await self._read_footprint(os.getpid())
            for worker in self._workers():
                worker.count_tokens()
                reading = await self._read_footprint(worker.pid)
                if reading is not None:
                    worker.note_footprint(reading)
            for compartment in self._roster.everyone:
                if compartment.worker is not None:
                    compartment.tenancy.measured(compartment.worker)
            self._compare()

    async def _look_for_descendants(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_DESCENDANTS_S)
            workers = self._workers()
            found = await loop.run_in_executor(
                self._reader, descendants, [each.pid for each in workers]
            )
            for worker in workers:
                worker.note_descendants(found[worker.pid])
            pids = {each.pid for each in self._workers()}
            self._others_bytes = await loop.run_in_executor(self._reader, resident_bytes, pids)

    def _compare(self) -> None:
        """The machine's memory with what is known to hold it."""
        held_bytes = [each.held_bytes for each in self._workers()]
        if self._others_bytes is None or None in held_bytes:
            return
        self._steward.observe(
            Reading(
                asyncio.get_running_loop().time(),
                self.host.total_bytes - self.host.available_bytes,
                sum(each for each in held_bytes if each is not None),
                self._others_bytes,
                busy=any(
                    each.traffic.running or each.state in _MOVING for each in self._roster.everyone
                ),
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
