"""Ranks on another host, under a lease that this gateway renews."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import uuid
from collections.abc import Iterable
from typing import Final

from gateway.agent.bodies import Ended, Line, News, Turn
from gateway.hosts.host import RankEnd
from gateway.hosts.lease import Contact
from gateway.hosts.pinned import PinnedClient, RefusedError
from gateway.hosts.rank_log import RankLog
from gateway.process import ladder
from gateway.process.ladder import Step
from gateway.process.worker_log import WorkerLog
from gateway.system.lane import Lane
from gateway.system.tasks import Tasks

logger = logging.getLogger(__name__)

_TICK_S: Final = 0.2
# An agent answers a turn within a second or this part of the lease, and a busy one later.
_TURN_SHARE: Final = 1 / 3
_TURN_SLACK_S: Final = 1.0
_RETRY_S: Final = 0.2
_CLOSE_S: Final = 2.0
# Without ranks: the next ones may come soon.
_IDLE_S: Final = 5.0
# After the last signal of a host that is out of reach.
_KILLED_S: Final = 1.0
_MOST_WRITES: Final = 64
_MOST_DISOWNED: Final = 1024


class LeasedRank:
    """One of them. Its `pid` is 0 until it is known."""

    def __init__(self, rank: int, log: WorkerLog) -> None:
        self.id = uuid.uuid4().hex
        self.pid = 0
        self.footprint_bytes = 0
        self.log = RankLog(log, rank)
        self.end: asyncio.Future[RankEnd] = asyncio.get_running_loop().create_future()

    def ended(self, end: RankEnd) -> None:
        if not self.end.done():
            self.end.set_result(end)

    @property
    def dies_within_s(self) -> float:
        """What its host's agent takes to end it by itself."""
        rungs = ladder.orphaned(self.footprint_bytes)
        return sum(each.deadline_s for each in rungs if each.step is Step.TERMINATE) + _KILLED_S


class Leasehold:
    """Asks for news of the ranks until there are none, or the host is out of reach for too long."""

    def __init__(self, client: PinnedClient, host: str, lease: str, lease_s: float) -> None:
        self.lease = lease
        # Nothing can be started under it any more.
        self.over = False
        # The first turn was answered: from then on the host notices at once if this process dies.
        self.begun = asyncio.Event()
        self._client = client
        self._host = host
        self._lease_s = lease_s
        self._loop = asyncio.get_running_loop()
        self._contact = Contact(self._loop.time(), lease_s)
        self._ranks: dict[str, LeasedRank] = {}
        self._unwanted: dict[str, None] = {}
        self._used_at = self._loop.time()
        self._turn_s = max(_TURN_SLACK_S + lease_s * 0.2, lease_s * _TURN_SHARE)
        self._failure = "no answer came"
        self._writer = Lane(f"log of {host}")
        self._writes = 0
        self._tasks = Tasks(f"ranks on {host}")
        self._tasks.start(self._follow(), "turns")
        self._tasks.start(self._watch(), "lease")

    def expect(self, rank: int, log: WorkerLog) -> LeasedRank:
        """One that is about to be started."""
        expected = LeasedRank(rank, log)
        self._ranks[expected.id] = expected
        self._used_at = self._loop.time()
        return expected

    def forget(self, rank: LeasedRank) -> None:
        """It was not started, or nobody knows."""
        self._ranks.pop(rank.id, None)

    def disown(self, rank: LeasedRank) -> None:
        """Have it ended as soon as the host can be told."""
        if len(self._unwanted) < _MOST_DISOWNED:
            self._unwanted[rank.id] = None

    async def close(self) -> None:
        self.over = True
        await self._tasks.cancel_all()
        with contextlib.suppress(OSError):
            await self._client.order("DELETE", f"/v1/leases/{self.lease}", _CLOSE_S)
        self._all_ended("this gateway let go of its lease there", 0.0)

    async def _follow(self) -> None:
        while not self.over:
            unwanted = tuple(self._unwanted)
            turn = Turn(self._contact.number, unwanted)
            try:
                news = await self._client.post(
                    f"/v1/leases/{self.lease}/turn", turn, News, self._turn_s
                )
            except RefusedError as error:
                self._failure = str(error)
                if error.code == "not_found":
                    # It has ended them, or is another agent than before, which does so at once.
                    self._all_ended(f"{self._host} has ended it: {error}", 0.0)
                    return
                await asyncio.sleep(_RETRY_S)
            except OSError as error:
                self._failure = str(error)
                await asyncio.sleep(_RETRY_S)
            else:
                self._contact.heard(self._loop.time(), news.number)
                self.begun.set()
                for each in unwanted:
                    self._unwanted.pop(each, None)
                self._take(news)
                await self._let_go_if_idle()

    def _take(self, news: News) -> None:
        if news.lost_lines:
            logger.warning("%d lines of ranks on %s are lost", news.lost_lines, self._host)
        if news.lines and self._writes < _MOST_WRITES:
            self._writes += 1
            self._writer.soon(functools.partial(self._write, dict(self._ranks), news.lines))
        for each in news.ended:
            self._ended(each)

    def _ended(self, ended: Ended) -> None:
        rank = self._ranks.pop(ended.rank, None)
        if rank is not None:
            rank.ended(RankEnd(ended.status, ended.reason, ended.by_host))
        self._used_at = self._loop.time()

    def _write(self, ranks: dict[str, LeasedRank], lines: Iterable[Line]) -> None:
        """Runs in the lane: a disk may be slow."""
        self._writes -= 1
        for each in lines:
            if (rank := ranks.get(each.rank)) is not None:
                rank.log.add(each.text)

    async def _let_go_if_idle(self) -> None:
        if self._ranks or self._unwanted or self._loop.time() - self._used_at < _IDLE_S:
            return
        self.over = True
        with contextlib.suppress(OSError):
            await self._client.order("DELETE", f"/v1/leases/{self.lease}", _CLOSE_S)

    async def _watch(self) -> None:
        while not self.over:
            await asyncio.sleep(_TICK_S)
            if self._contact.judge(self._loop.time()) and not self.over:
                longest_s = max((each.dies_within_s for each in self._ranks.values()), default=0.0)
                self._all_ended(
                    f"{self._host} has been out of reach for {self._lease_s:g} s, after which it "
                    f"ends its ranks by itself ({self._failure})",
                    longest_s,
                )

    def _all_ended(self, reason: str, after_s: float) -> None:
        """Nobody here could see it."""
        self.over = True
        ranks, self._ranks = list(self._ranks.values()), {}
        if ranks:
            logger.error("%d ranks are lost: %s", len(ranks), reason)

        def tell() -> None:
            for each in ranks:
                each.ended(RankEnd(None, reason))

        self._loop.call_later(after_s, tell)
