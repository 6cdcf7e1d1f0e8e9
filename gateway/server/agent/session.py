"""One gateway's ranks on this host, and its lease on them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable
from typing import Final

from gateway.server.agent.news import NewsDesk
from gateway.server.agent.rank import HostedRank
from gateway.system.refusal import Refusal
from gateway.system.tasks import Tasks
from gateway.workers.agent_bodies import LeaseTurn, OrderBody, RankEnded, RankNews
from gateway.workers.lease import Lease
from gateway.workers.leftovers import WorkerRecords
from gateway.workers.worker_log import WorkerLog

logger = logging.getLogger(__name__)

# Without news an answer waits so long, or this part of a shorter lease.
_HOLD_S: Final = 1.0
_HOLD_SHARE: Final = 0.2
# What a rank prints in a burst goes with one answer.
_GATHER_S: Final = 0.05
_REMEMBERED: Final = 1024


class Session:
    """`id` is its lease's. Everything runs on the event loop but what ranks print."""

    def __init__(
        self, session_id: str, gateway: str, lease_s: float, log: WorkerLog, records: WorkerRecords
    ) -> None:
        """`gateway` says to people whose it is."""
        self.id = session_id
        self.gateway = gateway
        self.ranks: dict[str, HostedRank] = {}
        self._loop = asyncio.get_running_loop()
        self.lease = Lease(self._loop.time(), lease_s)
        # Why nothing is started any more.
        self.over: str | None = None
        self._hold_s = min(_HOLD_S, lease_s * _HOLD_SHARE)
        self._log = log
        self._records = records
        self._has_news = asyncio.Event()
        self._desk = NewsDesk(self._wake)
        # Which of the turns is the last one.
        self._turns = 0
        self._unwanted: deque[str] = deque(maxlen=_REMEMBERED)
        self._tasks = Tasks(f"gateway {session_id}")

    def start(self, order: OrderBody) -> HostedRank:
        """Raises: Refusal, OSError: then there is no process."""
        if self.over is not None or order.id in self._unwanted or order.id in self.ranks:
            raise Refusal(
                "invalid_request_error", f"The rank {order.id} runs already, or has ended."
            )
        rank = HostedRank(order, self._log, self._records, self._desk)
        self.ranks[order.id] = rank
        self._tasks.start(self._follow(rank), f"rank {rank.pid}")
        return rank

    async def turn(self, turn: LeaseTurn, left: Awaitable[object]) -> RankNews:
        """What is new, as soon as there is something, or after a short while. `left` ends when the
        connection does.

        Raises:
            Refusal: another turn has come.
        """
        self._turns += 1
        number = self._turns
        # The one before has had its time.
        self._has_news.set()
        lacks = self.lease.turn(turn.confirmed)
        self._desk.confirm(turn.confirmed)
        for rank_id in turn.unwanted:
            self._unwanted.append(rank_id)
            if rank_id in self.ranks:
                self.end_rank(self.ranks[rank_id], "nobody waits for it")
        # The first one is a greeting.
        if not lacks and number > 1:
            await self._until_news(number, left)
        if number != self._turns:
            raise Refusal("invalid_request_error", "A newer connection has taken over this lease.")
        return self._desk.tell(self.lease.answer(self._loop.time()))

    def end_rank(self, rank: HostedRank, reason: str) -> None:
        """By signals, the last of which nothing survives."""
        if rank.ended_by is None:
            rank.ended_by = reason
            logger.warning("Rank %d of %s is ended: %s", rank.pid, self.gateway, reason)
            self._tasks.start(rank.climb(), f"end rank {rank.pid}")

    def end(self, reason: str) -> None:
        """All of it."""
        if self.over is None:
            self.over = reason
            for rank in self.ranks.values():
                self.end_rank(rank, reason)

    async def until_over(self) -> None:
        await asyncio.gather(*(each.ended() for each in self.ranks.values()))

    async def close(self) -> None:
        await self._tasks.cancel_all()

    async def _until_news(self, number: int, left: Awaitable[object]) -> None:
        """Or until the next turn, which takes the place of this one."""
        gone = asyncio.ensure_future(left)
        try:
            self._has_news.clear()
            news = asyncio.ensure_future(self._has_news.wait())
            if not self._desk.has_some():
                await asyncio.wait(
                    {gone, news}, timeout=self._hold_s, return_when=asyncio.FIRST_COMPLETED
                )
            news.cancel()
            if self._desk.has_some():
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
        self._desk.add_end(RankEnded(rank.id, end.status, f"{by}{end.status}", by_host))

    def _wake(self) -> None:
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._has_news.set)
