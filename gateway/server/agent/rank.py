"""One rank on this host, started for a gateway elsewhere."""

from __future__ import annotations

import asyncio
import logging

from gateway.server.agent.news import NewsDesk
from gateway.system.clock import until_set
from gateway.system.memory_reading import Footprint
from gateway.workers import ladder
from gateway.workers.agent_bodies import OrderBody
from gateway.workers.host import LocalRank, RankEnd, RankOrder
from gateway.workers.ladder import LadderStep
from gateway.workers.leftovers import WorkerRecords
from gateway.workers.worker_log import RankLog, WorkerLog

logger = logging.getLogger(__name__)


class _Lines:
    """Goes to the agent's log, and to the gateway."""

    def __init__(self, rank_id: str, log: RankLog, desk: NewsDesk) -> None:
        self._rank_id = rank_id
        self._log = log
        self._desk = desk

    def begin(self, pid: int, incarnation: int) -> None:
        self._log.add(f"-- started: pid {pid}, incarnation {incarnation} --")

    def add(self, line: str) -> None:
        self._desk.add_line(self._rank_id, line)
        self._log.add(line)


class HostedRank:
    """`ended_by` is why the agent ends it by itself."""

    def __init__(
        self, order: OrderBody, log: WorkerLog, records: WorkerRecords, desk: NewsDesk
    ) -> None:
        """Raises: OSError: it can't be started."""
        self.id = order.id
        self.ended_by: str | None = None
        self.footprint_bytes = 0
        self._rank = LocalRank(
            RankOrder(
                name=order.name,
                incarnation=order.incarnation,
                rank=order.rank,
                arguments=order.arguments,
                environment=order.environment,
                secret=order.secret,
            ),
            _Lines(order.id, RankLog(log, order.rank), desk),
            records,
        )

    @property
    def pid(self) -> int:
        return self._rank.pid

    async def footprint(self) -> Footprint:
        """Raises: FootprintError; OSError if no answer comes in time."""
        found = await self._rank.footprint()
        self.footprint_bytes = found.current_bytes
        return found

    async def dump(self) -> None:
        await self._rank.dump()

    async def end(self) -> None:
        await self._rank.end()

    async def kill(self) -> None:
        await self._rank.kill()

    async def ended(self) -> RankEnd:
        return await self._rank.ended()

    async def climb(self) -> None:
        """End it, as a worker whose gateway is gone."""
        ended = asyncio.Event()
        end = asyncio.ensure_future(self.ended())
        end.add_done_callback(lambda _: ended.set())
        try:
            for rung in ladder.orphaned(self.footprint_bytes):
                if rung.step is LadderStep.TERMINATE:
                    await self._rank.end()
                else:
                    await self._rank.kill()
                if await until_set(ended, rung.deadline_s):
                    return
            logger.error("Rank %d survived SIGKILL; its memory stays taken", self.pid)
        finally:
            end.cancel()
