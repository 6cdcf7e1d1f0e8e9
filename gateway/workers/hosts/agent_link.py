"""This gateway's way to the agent of one host, whatever models have ranks there."""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.memory.tenant import NoRoomError
from gateway.system.clock import until_set
from gateway.system.memory_reading import Footprint, FootprintError
from gateway.workers.hosts.agent_bodies import (
    API,
    FootprintBody,
    HostBody,
    Opened,
    Opening,
    OrderBody,
    Ports,
    PortsBody,
    Promised,
    Started,
    Wish,
)
from gateway.workers.hosts.host import RankOrder
from gateway.workers.hosts.leased import LeasedRank, Leasehold
from gateway.workers.hosts.local import versions
from gateway.workers.hosts.pinned import FOREIGN, PinnedClient, RefusedError
from gateway.workers.worker_log import WorkerLog

_ANSWER_S: Final = 5.0
# A process is started while it waits.
_START_S: Final = 15.0
# Longer than the agent itself waits for a reading.
_READING_S: Final = 8.0
_SIGNAL_S: Final = 3.0


class _LeaseEndedError(OSError):
    """The agent has ended it, or is another one than before."""


class AgentLink:
    """Opens a lease with the first rank, and lets go of it some time after the last one."""

    def __init__(self, name: str, url: str, key_file: str, fingerprint: str, own_name: str) -> None:
        """`own_name` says to the people there whose ranks they are. Raises: ValueError."""
        self.name = name
        self.url = url
        self._client = PinnedClient(url, key_file, fingerprint)
        self._own_name = own_name
        self._versions = versions()
        self._leasehold: Leasehold | None = None
        self._opening = asyncio.Lock()

    async def host(self) -> HostBody:
        """Raises: OSError."""
        return await self._client.get("/v1/host", HostBody, _ANSWER_S)

    def disagreement(self, host: HostBody) -> str | None:
        """What keeps ranks there from working with those here, as a sentence."""
        if host.api != API:
            return (
                f"{self.name} has Bulkhead {host.version}, whose agent speaks version {host.api} "
                f"of its protocol, and this one {API}: install the same on both hosts."
            )
        differing = [
            f"{name} {host.versions.get(name, 'nowhere')} there and {here} here"
            for name, here in self._versions.items()
            if host.versions.get(name) != here
        ]
        if not differing:
            return None
        return f"{self.name} has other versions ({'; '.join(differing)}): install the same on both."

    async def address(self) -> str:
        """The one that its name leads to. Raises: OSError."""
        return await self._client.address()

    async def free_ports(self, count: int) -> tuple[int, ...]:
        """Raises: OSError."""
        body = await self._client.post("/v1/ports", Ports(count), PortsBody, _ANSWER_S)
        return body.ports

    async def start(self, order: RankOrder, log: WorkerLog) -> LeasedRank:
        """A rank of which no answer came counts as one that runs, and is ended; its end comes once
        it can't be there any more.

        Raises:
            NoRoomError; OSError: there is no process.
        """
        if order.python is not None:
            raise OSError(
                f"{self.name}: ranks on other hosts run in the environment of the agent there; the "
                "model's python can't be had."
            )
        try:
            return await self._start(order, log)
        except _LeaseEndedError:
            # This side hadn't heard of it yet.
            return await self._start(order, log)

    async def _start(self, order: RankOrder, log: WorkerLog) -> LeasedRank:
        held = await self._held()
        rank = held.expect(order.rank, log, order.needed_bytes)
        body = OrderBody(
            id=rank.id,
            name=order.name,
            incarnation=order.incarnation,
            rank=order.rank,
            arguments=order.arguments,
            environment=order.environment,
            secret=order.secret,
            needed_bytes=order.needed_bytes,
        )
        try:
            path = f"/v1/leases/{held.lease}/ranks"
            rank.pid = (await self._client.post(path, body, Started, _START_S)).pid
        except RefusedError as error:
            if error.code == FOREIGN:
                self._disown(held, rank, error)
                return rank
            held.forget(rank)
            if held.ended_by(error):
                raise _LeaseEndedError(f"{self.name}: {error}") from error
            if error.code == "insufficient_memory":
                raise NoRoomError(f"{self.name}: {error}") from error
            raise OSError(f"{self.name}: {error}") from error
        except OSError as error:
            self._disown(held, rank, error)
        except BaseException as error:
            self._disown(held, rank, error)
            raise
        return rank

    def _disown(self, held: Leasehold, rank: LeasedRank, error: BaseException) -> None:
        why = str(error) or "nobody waited for it"
        held.unanswered(rank, f"{self.name} didn't say whether it was started: {why}")

    async def footprint(self, rank: LeasedRank) -> Footprint:
        """Raises: FootprintError, OSError."""
        try:
            body = await self._client.get(
                f"/v1/ranks/{rank.id}/footprint", FootprintBody, _READING_S
            )
        except RefusedError as error:
            raise FootprintError(f"rank {rank.pid} on {self.name}: {error}") from error
        if self._leasehold is not None:
            self._leasehold.measured(rank, body.footprint.current_bytes)
        return body.footprint

    async def raise_promise(self, rank: LeasedRank, wanted_bytes: int) -> int:
        """What it may hold from now on, in bytes. Raises: OSError."""
        path = f"/v1/ranks/{rank.id}/promise"
        promised = await self._client.post(path, Wish(wanted_bytes), Promised, _ANSWER_S)
        if self._leasehold is not None:
            self._leasehold.measured(rank, promised.promised_bytes)
        return promised.promised_bytes

    async def signal(self, rank: LeasedRank, signal: str) -> None:
        """dump, end or kill. Raises: OSError."""
        try:
            await self._client.order("POST", f"/v1/ranks/{rank.id}/{signal}", _SIGNAL_S)
        except RefusedError as error:
            # It has ended, which is on its way here.
            if error.code != "not_found":
                raise
        except OSError:
            if signal != "dump" and self._leasehold is not None:
                # As soon as the link is back, if its lease lasts so long.
                self._leasehold.disown(rank)
            raise

    async def close(self) -> None:
        """Whatever is left there ends."""
        held, self._leasehold = self._leasehold, None
        if held is not None:
            await held.close()
        await self._client.close()

    async def _held(self) -> Leasehold:
        async with self._opening:
            if self._leasehold is None or self._leasehold.over:
                opening = Opening(API, self._own_name, self._versions)
                try:
                    opened = await self._client.post("/v1/leases", opening, Opened, _ANSWER_S)
                except RefusedError as error:
                    raise OSError(f"{self.name}: {error}") from error
                self._leasehold = Leasehold(self._client, self.name, opened.lease, opened.lease_s)
                if not await until_set(self._leasehold.begun, _ANSWER_S):
                    raise TimeoutError(f"{self.name} did not answer within {_ANSWER_S:g} s")
            return self._leasehold
