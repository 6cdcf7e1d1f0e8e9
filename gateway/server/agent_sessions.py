"""All gateways with ranks on this host, and the memory that these ranks share."""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from typing import Final

from gateway.server.agent_session import HostedRank, RankSession
from gateway.system.memory_reading import FootprintError
from gateway.system.notation import format_size
from gateway.system.refusal import Refusal
from gateway.system.tasks import Tasks
from gateway.workers import shutdown_steps
from gateway.workers.agent_bodies import API, LEASE_OVER, Opening, OrderBody
from gateway.workers.host import versions
from gateway.workers.orphans import WorkerRecords
from gateway.workers.worker_log import WorkerLog

# Variables that the collectives of MLX and NCCL read. Other variables are refused, since they could
# choose files, libraries or programs.
ENVIRONMENT: Final = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "MLX_RANK",
        "MLX_RING_VERBOSE",
        "MLX_WORLD_SIZE",
        "NCCL_DEBUG",
        "NCCL_HOST_IP",
        "NCCL_IB_DISABLE",
        "NCCL_IB_HCA",
        "NCCL_NVLS_ENABLE",
        "NCCL_P2P_DISABLE",
        "NCCL_PORT",
        "NCCL_SHM_DISABLE",
        "NCCL_SOCKET_IFNAME",
    }
)
# The option that names the process which a worker must not outlive. Only the agent may set it. A
# worker also understands the option when it is shortened.
_PARENT: Final = "--parent"
_SHORTEST_OPTION: Final = 3


class RankMemory:
    """The agent's budget, and the bytes of it that are promised to ranks. A rank takes up the bytes
    of its promise, or of its footprint if that is larger.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._promised: dict[str, int] = {}
        self._held: dict[str, int] = {}

    @property
    def taken_bytes(self) -> int:
        return sum(
            max(promised_bytes, self._held[rank]) for rank, promised_bytes in self._promised.items()
        )

    @property
    def held_bytes(self) -> int:
        """The footprints of all ranks, by the last readings."""
        return sum(self._held.values())

    @property
    def free_bytes(self) -> int:
        return max(0, self.budget_bytes - self.taken_bytes)

    def admit(self, rank: str, needed_bytes: int) -> str | None:
        """Promise `needed_bytes` to a rank and return None, or return why they aren't free."""
        if needed_bytes <= self.free_bytes:
            self._promised[rank] = needed_bytes
            self._held[rank] = 0
            return None
        others = f"; other ranks have {format_size(self.taken_bytes)}" if self._promised else ""
        return (
            f"it needs {format_size(needed_bytes)}, and {format_size(self.free_bytes)} of the "
            f"budget of {format_size(self.budget_bytes)} is free{others}"
        )

    def raise_to(self, rank: str, wanted_bytes: int) -> int:
        """Raise the promise of a rank to `wanted_bytes`, or as far as the budget allows. Returns
        the promised bytes.
        """
        possible_bytes = self.free_bytes + max(self._promised[rank], self._held[rank])
        wanted_bytes = min(wanted_bytes, possible_bytes)
        self._promised[rank] = max(self._promised[rank], wanted_bytes)
        return self._promised[rank]

    def note(self, rank: str, held_bytes: int) -> None:
        """Note the footprint of a rank. The rank may have ended by now."""
        if rank in self._held:
            self._held[rank] = held_bytes

    def gone(self, rank: str) -> None:
        self._promised.pop(rank, None)
        self._held.pop(rank, None)


logger = logging.getLogger(__name__)

MOST_SESSIONS: Final = 16
MOST_RANKS: Final = 32
_TICK_S: Final = 0.2
_READING_S: Final = 1.0


class Sessions:
    """The sessions of all gateways. Everything runs on the event loop."""

    def __init__(
        self, budget_bytes: int, lease_s: float, log: WorkerLog, records: WorkerRecords
    ) -> None:
        self.room = RankMemory(budget_bytes)
        self._lease_s = lease_s
        self._log = log
        self._records = records
        self._sessions: dict[str, RankSession] = {}
        self.versions = versions()
        self._tasks = Tasks("agent")

    def begin(self) -> None:
        self._tasks.repeat(self._judge, "leases", _TICK_S)
        self._tasks.repeat(self._measure, "footprints", _READING_S)

    @property
    def ranks(self) -> list[HostedRank]:
        return [rank for each in self._sessions.values() for rank in each.ranks.values()]

    def open(self, opening: Opening) -> RankSession:
        """Raises: Refusal: the gateway has other versions, or there are too many sessions."""
        if opening.api != API:
            raise Refusal(
                "invalid_request_error",
                f"This agent speaks version {API} of the agents' protocol, and the gateway "
                f"{opening.api}: install the same Bulkhead on both hosts.",
                lasting=True,
            )
        if opening.versions != self.versions:
            raise Refusal(
                "invalid_request_error",
                f"This host has {_listed(self.versions)}, and the gateway's "
                f"{_listed(opening.versions)}: install the same on both.",
                lasting=True,
            )
        if len(self._sessions) >= MOST_SESSIONS:
            raise Refusal(
                "overloaded",
                f"{MOST_SESSIONS} gateways have leases here, the most that are allowed.",
            )
        session = RankSession(
            secrets.token_hex(16), opening.gateway, self._lease_s, self._log, self._records
        )
        self._sessions[session.id] = session
        return session

    def session(self, session_id: str) -> RankSession:
        """Raises: Refusal: there is no such lease, or it is over."""
        found = self._sessions.get(session_id)
        if found is None:
            raise Refusal("not_found", "There is no such lease: it was closed, or is over.")
        if found.over is not None:
            raise Refusal(LEASE_OVER, f"The lease is over, and its ranks are ended: {found.over}.")
        return found

    def rank(self, rank_id: str) -> HostedRank:
        """Raises: Refusal: there is no such rank, or it has ended."""
        for session in self._sessions.values():
            if rank_id in session.ranks:
                return session.ranks[rank_id]
        raise Refusal("not_found", "There is no such rank: it has ended.")

    def start(self, session: RankSession, order: OrderBody) -> HostedRank:
        """Raises: Refusal: the order is wrong, too many ranks run, memory is short, or the process
        can't be started.
        """
        if (reason := complaint(order)) is not None:
            raise Refusal("invalid_request_error", f"The order can't be taken: {reason}.")
        if len(self.ranks) >= MOST_RANKS:
            raise Refusal("overloaded", f"{MOST_RANKS} ranks run here, the most that are allowed.")
        if any(each.id == order.id for each in self.ranks):
            raise Refusal("invalid_request_error", f"There is a rank {order.id} already.")
        if (reason := self.room.admit(order.id, order.needed_bytes)) is not None:
            raise Refusal("insufficient_memory", f"There is no room for {order.name}: {reason}.")
        try:
            rank = session.start(order)
        except BaseException as error:
            self.room.gone(order.id)
            if isinstance(error, OSError):
                raise Refusal("overloaded", f"It can't be started: {error}.") from error
            raise
        logger.info("Rank %d of %s starts: pid %d", order.rank, order.name, rank.pid)
        self._tasks.start(self._release(rank), f"memory of rank {rank.pid}")
        return rank

    def raise_promise(self, rank: HostedRank, wanted_bytes: int) -> int:
        """Raise the promise of a rank to `wanted_bytes`, or as far as the budget allows. Returns
        the promised bytes.
        """
        promised_bytes = self.room.raise_to(rank.id, wanted_bytes)
        logger.info("Rank %d is promised %s now", rank.pid, format_size(promised_bytes))
        return promised_bytes

    def close(self, session: RankSession, reason: str) -> None:
        """Begin to end the ranks of a session. After their end the session is forgotten."""
        if session.over is None:
            session.end(reason)
            self._tasks.start(self._forget(session), f"end of {session.id}")

    async def end(self) -> None:
        """End all sessions at the agent's end. Wait until all ranks have ended, for the longest
        ladder at most.
        """
        sessions = list(self._sessions.values())
        for each in sessions:
            self.close(each, "its agent ends")
        overs = [asyncio.ensure_future(each.until_over()) for each in sessions]
        if overs:
            _, late = await asyncio.wait(overs, timeout=shutdown_steps.longest_s())
            for over in late:
                over.cancel()
        await asyncio.gather(*(each.close() for each in sessions))
        await self._tasks.cancel_all()

    async def _release(self, rank: HostedRank) -> None:
        await rank.ended()
        self.room.gone(rank.id)

    async def _forget(self, session: RankSession) -> None:
        await session.until_over()
        self._sessions.pop(session.id, None)
        await session.close()

    async def _judge(self) -> None:
        now = asyncio.get_running_loop().time()
        for session in list(self._sessions.values()):
            reason = session.lease.judge(now)
            if reason is not None:
                self._tasks.attempt(functools.partial(self.close, session, reason), "end of lease")

    async def _measure(self) -> None:
        await asyncio.gather(*(self._read(each) for each in self.ranks))

    async def _read(self, rank: HostedRank) -> None:
        try:
            self.room.note(rank.id, (await rank.footprint()).current_bytes)
        except (FootprintError, OSError) as error:
            # The rank may be ending.
            logger.debug("The footprint of rank %d: %s", rank.pid, error)


def _listed(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(found.items()))


def complaint(order: OrderBody) -> str | None:
    """Why an order can't be taken, as the end of a sentence; None: the order can be taken. Only the
    worker program of this installation is started, and its arguments never go through a shell.
    """
    for each in order.arguments:
        if "\0" in each:
            return "an argument has a zero byte"
        option = each.partition("=")[0]
        if len(option) >= _SHORTEST_OPTION and _PARENT.startswith(option):
            return f"{option} is the agent's to say"
    for name, value in order.environment.items():
        if name not in ENVIRONMENT:
            return f"the variable {name!r} may not be set from elsewhere"
        if "\0" in value:
            return f"the variable {name} has a zero byte"
    return None
