"""The ranks of one gateway on this host: their lease, their news, and each process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.system.clock import until_set
from gateway.system.memory_reading import Footprint
from gateway.system.refusal import Refusal
from gateway.system.tasks import Tasks
from gateway.workers import shutdown_steps
from gateway.workers.agent_bodies import LeaseTurn, OrderBody, PrintedLine, RankEnded, RankNews
from gateway.workers.host import LocalRank, RankOrder
from gateway.workers.lease import Lease
from gateway.workers.orphans import WorkerRecords
from gateway.workers.shutdown_steps import ShutdownStep
from gateway.workers.worker_log import RankLog, WorkerLog

_MOST_LINES: Final = 500


class NewsQueue:
    """Lines and ends of ranks, kept until the gateway confirms them. Threads add the lines."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called, from any thread, when the queue is no longer empty."""
        self._wake = wake
        self._lock = threading.Lock()
        self._lines: deque[PrintedLine] = deque(maxlen=_MOST_LINES)
        self._lost_lines = 0
        self._ended: list[RankEnded] = []
        # The last answer. It has all news that were not confirmed when it was made.
        self._told = RankNews(0)

    def add_line(self, rank: str, text: str) -> None:
        with self._lock:
            was_empty = not self._lines
            self._lost_lines += len(self._lines) == _MOST_LINES
            self._lines.append(PrintedLine(rank, text))
        if was_empty:
            self._wake()

    def add_end(self, ended: RankEnded) -> None:
        with self._lock:
            self._ended.append(ended)
        self._wake()

    def has_some(self) -> bool:
        with self._lock:
            return bool(self._lines or self._ended)

    def confirm(self, number: int) -> None:
        """The answer with this number has arrived: drop its news, but not those of a later one."""
        with self._lock:
            if number == self._told.number:
                self._told = RankNews(number)

    def tell(self, number: int) -> RankNews:
        """Make the answer with this number. It has all news that are not confirmed."""
        with self._lock:
            told = self._told
            lines = [*told.lines, *self._lines]
            lost_lines = told.lost_lines + self._lost_lines + max(0, len(lines) - _MOST_LINES)
            self._told = RankNews(
                number, tuple(lines[-_MOST_LINES:]), lost_lines, (*told.ended, *self._ended)
            )
            self._lines.clear()
            self._lost_lines = 0
            self._ended.clear()
            return self._told


logger = logging.getLogger(__name__)


class _Lines:
    """Puts the lines of a rank into the agent's log and into the gateway's news."""

    def __init__(self, rank_id: str, log: RankLog, news: NewsQueue) -> None:
        self._rank_id = rank_id
        self._log = log
        self._news = news

    def mark_start(self, pid: int, incarnation: int) -> None:
        self._log.add(f"-- started: pid {pid}, incarnation {incarnation} --")

    def add(self, line: str) -> None:
        self._news.add_line(self._rank_id, line)
        self._log.add(line)


class HostedRank(LocalRank):
    """A rank on this host, which belongs to a gateway on another host. `ended_by` is the reason why
    the agent itself ends the rank; None: the agent doesn't end the rank.
    """

    def __init__(
        self, order: OrderBody, log: WorkerLog, records: WorkerRecords, news: NewsQueue
    ) -> None:
        """Raises: OSError: the process can't be started."""
        super().__init__(
            RankOrder(
                name=order.name,
                incarnation=order.incarnation,
                rank=order.rank,
                arguments=order.arguments,
                environment=order.environment,
                secret=order.secret,
            ),
            _Lines(order.id, RankLog(log, order.rank), news),
            records,
        )
        self.id = order.id
        self.ended_by: str | None = None
        self.footprint_bytes = 0

    async def footprint(self) -> Footprint:
        """Raises: FootprintError; OSError if no answer comes in time."""
        found = await super().footprint()
        self.footprint_bytes = found.current_bytes
        return found

    async def climb(self) -> None:
        """End the process by the ladder for workers whose gateway is gone."""
        ended = asyncio.Event()
        end = asyncio.ensure_future(self.ended())
        end.add_done_callback(lambda _: ended.set())
        try:
            for rung in shutdown_steps.orphaned(self.footprint_bytes):
                if rung.step is ShutdownStep.TERMINATE:
                    await self.end()
                else:
                    await self.kill()
                if await until_set(ended, rung.deadline_s):
                    return
            logger.error("Rank %d survived SIGKILL; its memory stays taken", self.pid)
        finally:
            end.cancel()


# Seconds after which an answer goes without news, or this part of the lease if that is shorter.
_HOLD_S: Final = 1.0
_HOLD_SHARE: Final = 0.2
# Seconds to gather the lines of a burst, so that they go with one answer.
_GATHER_S: Final = 0.05
_REMEMBERED: Final = 1024


class RankSession:
    """The ranks of one gateway on this host. `id` is the id of the gateway's lease. Everything but
    the reading of lines runs on the event loop.
    """

    def __init__(
        self, session_id: str, gateway: str, lease_s: float, log: WorkerLog, records: WorkerRecords
    ) -> None:
        """`gateway` is the gateway's name, for people."""
        self.id = session_id
        self.gateway = gateway
        self.ranks: dict[str, HostedRank] = {}
        self._loop = asyncio.get_running_loop()
        self.lease = Lease(self._loop.time(), lease_s)
        # Why the session is over, so that no rank can be started; None: it is not over.
        self.over: str | None = None
        self._hold_s = min(_HOLD_S, lease_s * _HOLD_SHARE)
        self._log = log
        self._records = records
        self._has_news = asyncio.Event()
        self._news = NewsQueue(self._wake)
        # The number of the newest turn.
        self._turns = 0
        self._unwanted: deque[str] = deque(maxlen=_REMEMBERED)
        self._tasks = Tasks(f"gateway {session_id}")

    def start(self, order: OrderBody) -> HostedRank:
        """Raises: Refusal, OSError: no process was started."""
        if self.over is not None or order.id in self._unwanted or order.id in self.ranks:
            raise Refusal(
                "invalid_request_error", f"The rank {order.id} runs already, or has ended."
            )
        rank = HostedRank(order, self._log, self._records, self._news)
        self.ranks[order.id] = rank
        self._tasks.start(self._follow(rank), f"rank {rank.pid}")
        return rank

    async def turn(self, turn: LeaseTurn, left: Awaitable[object]) -> RankNews:
        """Answer a turn: with the news as soon as there are some, or without news after a short
        while. `left` ends when the connection is closed.

        Raises:
            Refusal: a newer turn has arrived.
        """
        self._turns += 1
        number = self._turns
        # Wake the turn before this one, which then raises.
        self._has_news.set()
        lacks = self.lease.turn(turn.confirmed)
        self._news.confirm(turn.confirmed)
        for rank_id in turn.unwanted:
            self._unwanted.append(rank_id)
            if rank_id in self.ranks:
                self.end_rank(self.ranks[rank_id], "its gateway doesn't wait for it")
        # The first turn is a greeting, and is answered at once.
        if not lacks and number > 1:
            await self._until_news(number, left)
        if number != self._turns:
            raise Refusal("invalid_request_error", "A newer connection has taken over this lease.")
        return self._news.tell(self.lease.answer(self._loop.time()))

    def end_rank(self, rank: HostedRank, reason: str) -> None:
        """Begin to end a rank by a ladder, whose last step is SIGKILL."""
        if rank.ended_by is None:
            rank.ended_by = reason
            logger.warning("Rank %d of %s is ended: %s", rank.pid, self.gateway, reason)
            self._tasks.start(rank.climb(), f"end rank {rank.pid}")

    def end(self, reason: str) -> None:
        """Begin to end all ranks, and start no more ranks."""
        if self.over is None:
            self.over = reason
            for rank in self.ranks.values():
                self.end_rank(rank, reason)

    async def until_over(self) -> None:
        await asyncio.gather(*(each.ended() for each in self.ranks.values()))

    async def close(self) -> None:
        await self._tasks.cancel_all()

    async def _until_news(self, number: int, left: Awaitable[object]) -> None:
        """Wait for news, for the next turn, or for the end of the connection."""
        gone = asyncio.ensure_future(left)
        try:
            self._has_news.clear()
            news = asyncio.ensure_future(self._has_news.wait())
            if not self._news.has_some():
                await asyncio.wait(
                    {gone, news}, timeout=self._hold_s, return_when=asyncio.FIRST_COMPLETED
                )
            news.cancel()
            if self._news.has_some():
                await asyncio.sleep(_GATHER_S)
            if gone.done() and number == self._turns:
                self.lease.closed(self._loop.time())
        finally:
            gone.cancel()

    async def _follow(self, rank: HostedRank) -> None:
        end = await rank.ended()
        del self.ranks[rank.id]
        if end.status is None:
            raise AssertionError("a rank of this host ended without a status")
        by_host = rank.ended_by is not None
        by = f"its host's agent has ended it, as {rank.ended_by}: " if by_host else ""
        self._news.add_end(RankEnded(rank.id, end.status, f"{by}{end.status}", by_host))

    def _wake(self) -> None:
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._has_news.set)
