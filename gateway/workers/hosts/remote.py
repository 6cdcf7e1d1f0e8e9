"""Another machine as a host of ranks, by its agent."""

from __future__ import annotations

import asyncio

from gateway.system.memory_reading import Footprint
from gateway.workers.hosts.agent_link import AgentLink
from gateway.workers.hosts.host import HostFigures, RankEnd, RankOrder
from gateway.workers.hosts.leased import LeasedRank
from gateway.workers.worker_log import WorkerLog


class RemoteRank:
    """A rank that an agent has started."""

    def __init__(self, link: AgentLink, rank: LeasedRank) -> None:
        self._link = link
        self._rank = rank

    @property
    def pid(self) -> int:
        return self._rank.pid

    async def footprint(self) -> Footprint:
        return await self._link.footprint(self._rank)

    async def keep(self, wanted_bytes: int) -> int:
        return await self._link.raise_promise(self._rank, wanted_bytes)

    async def dump(self) -> None:
        await self._link.signal(self._rank, "dump")

    async def end(self) -> None:
        await self._link.signal(self._rank, "end")

    async def kill(self) -> None:
        await self._link.signal(self._rank, "kill")

    async def ended(self) -> RankEnd:
        return await asyncio.shield(self._rank.end)


class RemoteHost:
    """`figures` are the agent's own: it admits memory there, whoever asks."""

    def __init__(self, link: AgentLink, log: WorkerLog) -> None:
        """What ranks print there goes to `log` as well."""
        self._link = link
        self._log = log

    @property
    def name(self) -> str:
        return self._link.name

    async def figures(self) -> HostFigures:
        host = await self._link.host()
        if (trouble := self._link.disagreement(host)) is not None:
            raise OSError(trouble)
        return HostFigures(host.memory.budget_bytes, host.memory.free_bytes, host.versions)

    async def address(self) -> str:
        return await self._link.address()

    async def free_ports(self, count: int) -> tuple[int, ...]:
        return await self._link.free_ports(count)

    async def start(self, order: RankOrder) -> RemoteRank:
        return RemoteRank(self._link, await self._link.start(order, self._log))
