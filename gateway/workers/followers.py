"""The followers of one incarnation, which are all its ranks but rank 0, from start to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from gateway.memory.weights import sharing
from gateway.system.child import ExitStatus
from gateway.system.log_lines import about
from gateway.system.memory_reading import Footprint
from gateway.system.tasks import Tasks
from gateway.workers.host import LocalHost, RankEnd, RankHost, RankOrder, RankProcess, own_address
from gateway.workers.rank_group import RankGroup
from gateway.workers.rank_memory import RankReservation, capped, for_all_ranks, for_each_rank
from gateway.workers.shutdown_steps import ShutdownStep
from gateway.workers.worker_log import WorkerLog
from protocol.channel import new_keys
from protocol.life import Need, RankBackend, RankLost, Ranks, RankSplit
from protocol.message_base import Message, endpoint
from protocol.messages import WorkerMessage

M = TypeVar("M", bound=Message)

logger = logging.getLogger(__name__)

# The longest wait for an answer of a host.
_ANSWER_S: Final = 20.0
# The longest wait for a host to start a rank, longer than the host's own wait. After it the rank
# may run or not.
_START_S: Final = 60.0
# After this time a host that keeps too little memory is asked again, as other ranks on the host may
# have ended.
_ASK_AGAIN_S: Final = 5.0


class Plan(Struct, frozen=True):
    """How several ranks compute a model. `hosts` has the host of each rank. `interfaces` has for
    each rank the addresses at which other ranks reach it; without any the host's own address is
    used. With JACCL the interfaces are RDMA devices. Each rank on this machine gets one of the
    `cards`, if there are any. Each rank on another host needs `needed_bytes`, and can use
    `wanted_bytes`. A rank that is silent for `silence_s` is lost. All ranks print to `log`.
    """

    model_id: str
    incarnation: int
    backend: RankBackend
    split: RankSplit
    hosts: Sequence[RankHost]
    interfaces: Sequence[Sequence[str]]
    silence_s: float
    log: WorkerLog
    needed_bytes: int = 0
    wanted_bytes: int = 0
    cards: Sequence[str] = ()
    python: str | None = None


class FollowingRank:
    """A follower, which is a rank other than rank 0. `process` is set when the rank is started, and
    `end` when the rank has ended.
    """

    def __init__(self, rank: int, host: RankHost) -> None:
        self.rank = rank
        self.host = host
        self.process: RankProcess | None = None
        self.footprint_bytes: int | None = None
        self.end: RankEnd | None = None

    @property
    def is_here(self) -> bool:
        """Whether the rank's process runs on this machine."""
        return isinstance(self.host, LocalHost)

    @property
    def running(self) -> RankProcess | None:
        return self.process if self.end is None else None

    async def read_footprint(self) -> Footprint | None:
        """Read the rank's footprint; None: no process runs. Raises: FootprintError, OSError."""
        if self.running is None:
            return None
        footprint = await self.running.footprint()
        self.footprint_bytes = footprint.current_bytes
        return footprint

    async def apply(self, step: ShutdownStep) -> None:
        """Apply a shutdown step to the rank. Raises: OSError."""
        match step:
            case _ if self.running is None:
                return
            case ShutdownStep.DUMP:
                await self.running.dump()
            case ShutdownStep.ASK:
                # Rank 0 asks its followers to stop, at the end of the engine's present step.
                return
            case ShutdownStep.TERMINATE:
                await self.running.end()
            case ShutdownStep.KILL:
                await self.running.kill()


class RankZero(Protocol):
    """Rank 0, which gets the starts and ends of its followers."""

    def followers_started(self, failure: str | None) -> None:
        """All starts of followers are over. `failure` says why a start failed; None: none did."""

    def reservation_changed(self, failure: str | None) -> None:
        """Other hosts were asked to keep more memory for their ranks. `failure` says why all ranks
        must end; None: they may go on.
        """

    def follower_ended(self) -> None: ...

    def end_ranks(self) -> None:
        """A rank was lost: all other ranks, rank 0 among them, must be ended."""


class Followers:
    """The followers of one incarnation. They are started when this object is made. All ranks end
    together, as `fate` decides. Everything runs on the event loop.
    """

    def __init__(self, plan: Plan, path: Path, leader: RankZero) -> None:
        """`leader` is rank 0. If all ranks run on this machine, the followers connect to the socket
        of rank 0 at `path`.
        """
        self._plan = plan
        self._path = path
        self._leader = leader
        self._keys = new_keys()
        self._tasks = Tasks(f"ranks of {plan.model_id}")
        self._ranks_known: asyncio.Future[Ranks | None] = asyncio.get_running_loop().create_future()
        self.fate = RankGroup()
        self._endpoint = endpoint(path)
        self._reserved_bytes: dict[int, int] = {}
        self.reservation = RankReservation()
        self._asking = False
        self.members = [FollowingRank(rank, host) for rank, host in enumerate(plan.hosts) if rank]
        self._tasks.start(self._start(), "start")

    @property
    def size(self) -> int:
        """The number of ranks, rank 0 included."""
        return len(self._plan.hosts)

    @property
    def size_here(self) -> int:
        """The number of ranks on this machine, rank 0 included."""
        return 1 + sum(member.is_here for member in self.members)

    @property
    def running_here(self) -> bool:
        """Whether a follower runs on this machine."""
        return any(member.is_here and member.running is not None for member in self.members)

    async def until_started(self) -> Ranks | None:
        """Wait until the followers are started. Returns what rank 0 must know of all ranks for its
        load; None: a follower could not be started.
        """
        return await asyncio.shield(self._ranks_known)

    async def read_footprints(self) -> list[Footprint]:
        """Read the footprints of all followers, and return those of followers on this machine.

        Raises:
            FootprintError, OSError: the footprint of a follower on this machine can't be read.
        """
        members_here = [member for member in self.members if member.is_here]
        there = (rank.read_footprint() for rank in self.members if not rank.is_here)
        footprints = await asyncio.gather(
            *(following_rank.read_footprint() for following_rank in members_here)
        )
        # Each other host counts the memory of its ranks. This gateway only shows their footprints.
        await asyncio.gather(*there, return_exceptions=True)
        return [footprint for footprint in footprints if footprint is not None]

    async def apply(self, step: ShutdownStep) -> None:
        """Apply a shutdown step to all followers. A failure is only logged: the next step
        follows.
        """
        self.fate.record_step(step)
        await asyncio.gather(*(self._apply(member, step) for member in self.members))

    def leader_ended(self, status: ExitStatus) -> None:
        self._end_after(self.fate.leader_ended(RankEnd(status, str(status))))

    def to_rank_0(self, message: M) -> M:
        """Translate a message for rank 0: bytes of all ranks on this machine become bytes of one
        rank, and a limit becomes no more than other hosts keep for a rank.
        """
        rank_message = for_each_rank(message, sharing(self.size_here))
        return capped(rank_message, self.reservation.most_bytes, self.reservation.bound_bytes)

    def from_rank_0(self, message: WorkerMessage) -> WorkerMessage:
        """Take in a message of rank 0, and translate it: bytes of one rank become bytes of all
        ranks on this machine.
        """
        match message:
            case Need():
                self._need(message)
            case RankLost(rank=rank):
                lost = (member for member in self.members if member.rank == rank)
                for following_rank in lost:
                    self.fate.missed(rank, following_rank.host.name)
            case _:
                pass
        return for_all_ranks(message, sharing(self.size_here))

    def _need(self, need: Need) -> None:
        now = asyncio.get_running_loop().time()
        self.reservation.record_need(
            need.least_bytes, now, waits=need.held > 0 and not need.used_bytes
        )
        if self.reservation.wish_bytes is not None and not self._asking:
            self._asking = True
            self._tasks.start(self._ask_for_more(), "ask for memory")

    def close(self) -> None:
        """Remove the file of the socket, which a killed rank 0 leaves behind. To be called when no
        rank is left.
        """
        self._path.unlink(missing_ok=True)

    async def _start(self) -> None:
        ranks, failure = None, None
        try:
            ranks = await self._ranks()
            for member in self.members:
                if not self.fate.may_start:
                    break
                member.process = await asyncio.wait_for(
                    member.host.start(self._order(member), self._plan.log), _START_S
                )
                step = self.fate.started(member.rank)
                self._tasks.start(self._wait(member, member.process), f"rank {member.rank}")
                if step is not None:
                    await self._apply(member, step)
        except (OSError, TimeoutError) as error:
            ranks = None
            failure = f"its ranks can't be started: {str(error) or 'there is no answer'}"
        finally:
            self.fate.none_more()
            self._ranks_known.set_result(ranks)
        self._leader.followers_started(failure)

    async def _ranks(self) -> Ranks:
        """Find the addresses of all ranks, with ports that are free now. If another program takes
        such a port before its rank does, the load fails, and the next load gets other ports.
        """
        plan = self._plan
        places = await self._places()
        # One port more than interfaces: on this port rank 0 listens for followers on other hosts.
        ports = await asyncio.gather(
            *(
                asyncio.wait_for(host.free_ports(len(interfaces) + 1), _ANSWER_S)
                for host, interfaces in zip(plan.hosts, places, strict=True)
            )
        )
        if self.size_here < self.size:
            self._endpoint = f"tcp://{places[0][0]}:{ports[0][-1]}"
            await self._ask_for_memory()
        return Ranks(
            size=len(plan.hosts),
            backend=plan.backend,
            split=plan.split,
            addresses=tuple(
                tuple(map("{}:{}".format, interfaces, free))
                for interfaces, free in zip(places, ports, strict=True)
            ),
            endpoint=self._endpoint,
            keys=self._keys,
            silence_s=plan.silence_s,
            devices=devices(plan.interfaces) if plan.backend == "jaccl" else (),
        )

    async def _places(self) -> list[Sequence[str]]:
        """The interfaces of each rank. Raises: OSError: a host can't be reached."""
        plan = self._plan
        addresses = [
            await asyncio.wait_for(rank_host.address(), _ANSWER_S) for rank_host in plan.hosts
        ]
        if (
            elsewhere := next((member for member in self.members if not member.is_here), None)
        ) is not None:
            address_here = own_address(towards=addresses[elsewhere.rank])
            addresses = [
                address_here if isinstance(host, LocalHost) else address
                for host, address in zip(plan.hosts, addresses, strict=True)
            ]
        if plan.backend == "jaccl":
            # Interfaces of the plan are RDMA devices. JACCL uses only the address of rank 0.
            return [(address,) for address in addresses]
        return [
            given or (address,) for given, address in zip(plan.interfaces, addresses, strict=True)
        ]

    async def _ask_for_memory(self) -> None:
        """Choose the bytes that other hosts are to keep for each rank: as many of `wanted_bytes` as
        are free there, and at least `needed_bytes`.
        """
        free_bytes: dict[str, int] = {}
        for member in self.members:
            if member.is_here:
                continue
            name = member.host.name
            if name not in free_bytes:
                figures = await asyncio.wait_for(member.host.figures(), _ANSWER_S)
                sharers = sum(other.host.name == name for other in self.members)
                free_bytes[name] = figures.free_bytes // sharers
            wanted_bytes = min(self._plan.wanted_bytes, free_bytes[name])
            self._reserved_bytes[member.rank] = max(self._plan.needed_bytes, wanted_bytes)
            if self._plan.needed_bytes:
                self.reservation.record(member.rank, name, self._reserved_bytes[member.rank])

    async def _ask_for_more(self) -> None:
        """Ask other hosts to keep more bytes, until they keep enough or no sequence needs more, or
        until the sequences have waited for too long.
        """
        loop = asyncio.get_running_loop()
        try:
            while (wish_bytes := self.reservation.wish_bytes) is not None and self.fate.may_start:
                there = [member for member in self.members if not member.is_here]
                if all(
                    await asyncio.gather(*(self._ask_host(member, wish_bytes) for member in there))
                ):
                    self.reservation.record_wish(wish_bytes)
                failure = self.reservation.reason_to_end(loop.time())
                self._leader.reservation_changed(failure)
                if failure is not None:
                    return
                if self.reservation.wish_bytes is not None:
                    await asyncio.sleep(_ASK_AGAIN_S)
        finally:
            self._asking = False
            self.reservation.forget_wish()
        if self.fate.may_start:
            self._leader.reservation_changed(None)

    async def _ask_host(self, follower: FollowingRank, wish_bytes: int) -> bool:
        """Ask a follower's host to keep more bytes. Returns whether the host has answered."""
        if follower.running is None:
            return False
        try:
            reserved_bytes = await asyncio.wait_for(follower.running.reserve(wish_bytes), _ANSWER_S)
        except (OSError, TimeoutError) as error:
            # A host that stays out of reach loses its session, which ends its rank.
            logger.warning("%s: memory for rank %d: %s", self._plan.model_id, follower.rank, error)
            return False
        self.reservation.record(follower.rank, follower.host.name, reserved_bytes)
        return True

    def _order(self, follower: FollowingRank) -> RankOrder:
        plan, rank = self._plan, follower.rank
        environment = {}
        if plan.cards and follower.is_here:
            environment["CUDA_VISIBLE_DEVICES"] = plan.cards[rank % len(plan.cards)]
        return RankOrder(
            name=f"{plan.model_id}, rank {rank}",
            incarnation=plan.incarnation,
            rank=rank,
            arguments=(
                *("--follow", self._endpoint),
                *("--rank", str(rank)),
                *("--silence", str(plan.silence_s)),
            ),
            environment=environment,
            secret=self._keys.workers,
            python=plan.python,
            needed_bytes=self._reserved_bytes.get(rank, 0),
        )

    async def _wait(self, follower: FollowingRank, process: RankProcess) -> None:
        follower.end = await process.ended()
        logger.info(
            "%s: rank %d ended: %s",
            self._plan.model_id,
            follower.rank,
            follower.end.reason,
            extra=about(model=self._plan.model_id, pid=process.pid),
        )
        self._end_after(self.fate.follower_ended(follower.rank, follower.host.name, follower.end))
        self._leader.follower_ended()

    def _end_after(self, seconds: float | None) -> None:
        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, self._end_all)

    def _end_all(self) -> None:
        if self.fate.must_end():
            self.fate.end()
            self._leader.end_ranks()

    async def _apply(self, follower: FollowingRank, step: ShutdownStep) -> None:
        try:
            await asyncio.wait_for(follower.apply(step), _ANSWER_S)
        except (OSError, TimeoutError) as error:
            logger.warning("%s: rank %d: %s: %s", self._plan.model_id, follower.rank, step, error)


def devices(interfaces: Sequence[Sequence[str]]) -> tuple[tuple[str | None, ...], ...]:
    """For each rank its RDMA device towards each other rank, and None towards itself, as JACCL
    takes them.
    """
    return tuple((*given[:rank], None, *given[rank:]) for rank, given in enumerate(interfaces))
