"""Other machines as hosts of ranks: the link to the agent on each machine, and the last reading of
each configured machine.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.config.model_settings import LOCAL, HostSettings, RankPlace
from gateway.memory.execution import NoRoomError
from gateway.system.clock import until_set
from gateway.system.notation import format_size
from gateway.system.tasks import Tasks
from gateway.workers.agent_bodies import (
    API,
    HostBody,
    Opened,
    Opening,
    OrderBody,
    Ports,
    PortsBody,
    Started,
)
from gateway.workers.host import HostFigures, RankOrder, versions
from gateway.workers.leased import LeasedRank, Leasehold
from gateway.workers.pinned import FOREIGN, PinnedClient, RefusedError
from gateway.workers.worker_log import WorkerLog

_ANSWER_S: Final = 5.0
# The longest wait for the start of a rank.
_START_S: Final = 15.0


class _LeaseEndedError(OSError):
    """The agent has ended the lease, or is a new agent that doesn't know the lease."""


class AgentLink:
    """The link to the agent of one host. It opens a lease for the first rank, and ends the lease
    after the last rank.
    """

    def __init__(self, name: str, url: str, key_file: str, fingerprint: str, own_name: str) -> None:
        """`own_name` is this gateway's name, for people on the host. Raises: ValueError."""
        self.name = name
        self.url = url
        self._client = PinnedClient(url, key_file, fingerprint)
        self._own_name = own_name
        self._versions = versions()
        self._leasehold: Leasehold | None = None
        self._opening = asyncio.Lock()

    async def host(self) -> HostBody:
        """The agent's reading of its host. Raises: OSError."""
        return await self._client.get("/v1/host", HostBody, _ANSWER_S)

    def disagreement(self, host: HostBody) -> str | None:
        """A sentence that says why ranks on that host can't work with ranks on this one; None: they
        can.
        """
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
        """The IP address of the host's name. Raises: OSError."""
        return await self._client.address()

    async def free_ports(self, count: int) -> tuple[int, ...]:
        """TCP ports of the host that are free now. Raises: OSError."""
        body = await self._client.post("/v1/ports", Ports(count), PortsBody, _ANSWER_S)
        return body.ports

    async def start(self, order: RankOrder, log: WorkerLog) -> LeasedRank:
        """Start a rank. If the agent doesn't answer, the rank counts as started, and the agent is
        told to end it. Such a rank counts as ended once no process can be left.

        Raises:
            NoRoomError: the host lacks memory for the rank.
            OSError: there is no process.
        """
        if order.python is not None:
            raise OSError(
                f"{self.name}: ranks on other hosts run in the environment of the agent there; the "
                "model's python can't be had."
            )
        try:
            return await self._start(order, log)
        except _LeaseEndedError:
            # This gateway didn't know yet that the lease had ended.
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
        held.tenants.unanswered(rank.id, f"{self.name} didn't say whether it was started: {why}")

    async def close(self) -> None:
        """End the lease and close the link. The agent ends all ranks that are left."""
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


class RemoteHost:
    """Another machine as a host. `figures` are from its agent's account of memory."""

    def __init__(self, link: AgentLink, log: WorkerLog) -> None:
        """`log` gets the lines that ranks on the machine print, as the agent's log does."""
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

    async def start(self, order: RankOrder) -> LeasedRank:
        return await self._link.start(order, self._log)


logger = logging.getLogger(__name__)

_EVERY_S: Final = 10.0


class RemoteReading:
    """The last reading of one machine. `told` is the agent's answer. `trouble` says why there is no
    answer, or why ranks on the machine can't work with ranks here; None: they can.
    """

    def __init__(self, link: AgentLink) -> None:
        self.link = link
        self.told: HostBody | None = None
        self.trouble: str | None = "it was not asked yet"

    async def ask(self) -> None:
        before = self.trouble
        try:
            told = await self.link.host()
            self.told, self.trouble = told, self.link.disagreement(told)
        except OSError as error:
            self.told, self.trouble = None, str(error)
        if self.trouble is not None and self.trouble != before:
            logger.warning("Host %s: %s", self.link.name, self.trouble)


class Hosts:
    """The machines of the configuration, by their names."""

    def __init__(self, configured: Mapping[str, HostSettings]) -> None:
        own_name = socket.gethostname() or "a gateway"
        self.readings = {
            name: RemoteReading(
                AgentLink(name, each.url, each.key_file, each.fingerprint, own_name)
            )
            for name, each in configured.items()
        }
        self._tasks = Tasks("hosts")

    def link(self, name: str) -> AgentLink:
        """The link to a host. Raises: OSError: this gateway has no host of this name."""
        if name not in self.readings:
            raise OSError(f"The gateway knows no host {name}: it takes new ones at its next start")
        return self.readings[name].link

    async def check_room(self, places: Sequence[RankPlace], each_bytes: int) -> None:
        """Check that each other host has `each_bytes` of free memory for each of its ranks.

        Raises:
            NoRoomError: a host lacks the memory.
            OSError: a host can't be asked, or has other versions.
        """
        wanted = Counter(each.host for each in places if each.host != LOCAL)
        for name, ranks in wanted.items():
            link = self.link(name)
            told = await link.host()
            if (trouble := link.disagreement(told)) is not None:
                raise OSError(trouble)
            if told.memory.free_bytes < ranks * each_bytes:
                raise NoRoomError(
                    f"on {name} it needs {format_size(ranks * each_bytes)}, and "
                    f"{format_size(told.memory.free_bytes)} of the budget of "
                    f"{format_size(told.memory.budget_bytes)} there is free"
                )

    def start(self) -> None:
        for name, each in self.readings.items():
            self._tasks.repeat(each.ask, name, _EVERY_S)

    async def close(self) -> None:
        """Close all links. To be called when no rank is left."""
        await self._tasks.cancel_all()
        await asyncio.gather(*(each.link.close() for each in self.readings.values()))
