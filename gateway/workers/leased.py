"""Ranks on another host, under a lease that this gateway renews."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import uuid
from collections.abc import Iterable
from typing import Final

from gateway.system.lane import Lane
from gateway.system.memory_reading import Footprint, FootprintError
from gateway.system.tasks import Tasks
from gateway.workers.agent_bodies import (
    LEASE_OVER,
    FootprintBody,
    LeaseTurn,
    MemoryWish,
    PrintedLine,
    Promised,
    RankNews,
)
from gateway.workers.host import RankEnd
from gateway.workers.lease import Contact, Tenants
from gateway.workers.pinned import PinnedClient, RefusedError
from gateway.workers.worker_log import RankLog, WorkerLog

logger = logging.getLogger(__name__)

_TICK_S: Final = 0.2
# A turn may take this part of the lease, and with a short lease `_TURN_SLACK_S` longer than an
# agent waits for news. A busy agent answers late.
_TURN_SHARE: Final = 1 / 3
_TURN_SLACK_S: Final = 1.0
_RETRY_S: Final = 0.2
_CLOSE_S: Final = 2.0
# A lease without ranks is kept for this time, as the next ranks may come soon.
_IDLE_S: Final = 5.0
_MOST_WRITES: Final = 64
_ANSWER_S: Final = 5.0
# Longer than the agent itself waits for a reading.
_READING_S: Final = 8.0
_SIGNAL_S: Final = 3.0


class LeasedRank:
    """A rank that an agent has started, or may have started. `pid` is 0 until the agent has told
    the pid.
    """

    def __init__(self, client: PinnedClient, tenants: Tenants, host: str, log: RankLog) -> None:
        self.id = uuid.uuid4().hex
        self.pid = 0
        self.log = log
        self._client = client
        self._tenants = tenants
        self._host = host
        self._end: asyncio.Future[RankEnd] = asyncio.get_running_loop().create_future()

    async def footprint(self) -> Footprint:
        """Raises: FootprintError, OSError."""
        path = f"/v1/ranks/{self.id}/footprint"
        try:
            body = await self._client.get(path, FootprintBody, _READING_S)
        except RefusedError as error:
            raise FootprintError(f"rank {self.pid} on {self._host}: {error}") from error
        self._tenants.measured(self.id, body.footprint.current_bytes)
        return body.footprint

    async def keep(self, wanted_bytes: int) -> int:
        path = f"/v1/ranks/{self.id}/promise"
        promised = await self._client.post(path, MemoryWish(wanted_bytes), Promised, _ANSWER_S)
        self._tenants.measured(self.id, promised.promised_bytes)
        return promised.promised_bytes

    async def dump(self) -> None:
        await self._signal("dump")

    async def end(self) -> None:
        await self._signal("end")

    async def kill(self) -> None:
        await self._signal("kill")

    async def ended(self) -> RankEnd:
        return await asyncio.shield(self._end)

    def has_ended(self, end: RankEnd) -> None:
        """Note the end of the rank: the agent has reported the end, or the rank must have ended by
        now.
        """
        if not self._end.done():
            self._end.set_result(end)

    async def _signal(self, signal: str) -> None:
        try:
            await self._client.order("POST", f"/v1/ranks/{self.id}/{signal}", _SIGNAL_S)
        except RefusedError as error:
            # The agent finds no rank that has ended. The news of the end are on their way.
            if error.code != "not_found":
                raise
        except OSError:
            if signal != "dump":
                # The next turn that reaches the agent ends the rank, if the lease lasts so long.
                self._tenants.disown(self.id)
            raise


class Leasehold:
    """The gateway's part in a lease: asks the agent for news, until the lease was without ranks for
    a while, or the host is out of reach for too long.
    """

    def __init__(self, client: PinnedClient, host: str, lease: str, lease_s: float) -> None:
        self.lease = lease
        # Whether the lease is over for this gateway. Then no rank can be started under it.
        self.over = False
        # Set when the first turn was answered. From then on the agent notices at once if this
        # process dies.
        self.begun = asyncio.Event()
        self._client = client
        self._host = host
        self._lease_s = lease_s
        self._loop = asyncio.get_running_loop()
        self._contact = Contact(self._loop.time(), lease_s)
        self._ranks: dict[str, LeasedRank] = {}
        self.tenants = Tenants()
        self._used_at = self._loop.time()
        self._turn_s = max(_TURN_SLACK_S + lease_s * 0.2, lease_s * _TURN_SHARE)
        self._failure = "no answer came"
        self._loss: str | None = None
        self._writer = Lane(f"log of {host}")
        self._writes = 0
        self._tasks = Tasks(f"ranks on {host}")
        self._tasks.start(self._follow(), "turns")
        self._tasks.start(self._watch(), "lease")

    def expect(self, rank: int, log: WorkerLog, promised_bytes: int) -> LeasedRank:
        """Add a rank that is about to be started."""
        expected = LeasedRank(self._client, self.tenants, self._host, RankLog(log, rank))
        self._ranks[expected.id] = expected
        self.tenants.expect(expected.id, promised_bytes)
        self._used_at = self._loop.time()
        return expected

    def forget(self, rank: LeasedRank) -> None:
        """Remove a rank that was not started."""
        self._ranks.pop(rank.id, None)
        self.tenants.ended(rank.id)

    def ended_by(self, error: RefusedError) -> bool:
        """Take in an agent's refusal. Returns whether the lease is over."""
        if error.code == "not_found":
            self._none_left(f"{self._host} has ended it: {error}")
        elif error.code == LEASE_OVER:
            self._lose(f"{self._host} ends it: {error}")
        return self.over

    async def close(self) -> None:
        self.over = True
        await self._tasks.cancel_all()
        with contextlib.suppress(OSError):
            await self._client.order("DELETE", f"/v1/leases/{self.lease}", _CLOSE_S)
        self._none_left("this gateway let go of its lease there")

    async def _follow(self) -> None:
        while not self.over:
            unwanted = self.tenants.unwanted
            turn = LeaseTurn(self._contact.number, unwanted)
            try:
                news = await self._client.post(
                    f"/v1/leases/{self.lease}/turn", turn, RankNews, self._turn_s
                )
            except RefusedError as error:
                self._failure = str(error)
                self.ended_by(error)
                await asyncio.sleep(_RETRY_S)
            except OSError as error:
                self._failure = str(error)
                await asyncio.sleep(_RETRY_S)
            else:
                self._contact.heard(self._loop.time(), news.number)
                self.begun.set()
                self._take(news)
                self.tenants.told(unwanted, self._loop.time())
                await self._let_go_if_idle()
        await self._see_out()

    async def _see_out(self) -> None:
        """Ask the agent again and again to end the lease, until no rank is left. A turn instead
        would renew the lease on the agent's side.
        """
        while self._ranks:
            try:
                await self._client.order("DELETE", f"/v1/leases/{self.lease}", self._turn_s)
            except RefusedError as error:
                if error.code == "not_found":
                    self._none_left(str(error))
            except OSError as error:
                self._failure = str(error)
            await asyncio.sleep(_RETRY_S)

    def _take(self, news: RankNews) -> None:
        if news.lost_lines:
            logger.warning("%d lines of ranks on %s are lost", news.lost_lines, self._host)
        if news.lines and self._writes < _MOST_WRITES:
            self._writes += 1
            self._writer.soon(functools.partial(self._write, dict(self._ranks), news.lines))
        for each in news.ended:
            doubt = self.tenants.doubt(each.rank)
            told = RankEnd(each.status, each.reason, each.by_host)
            self._ended(each.rank, told if doubt is None else RankEnd(None, doubt))

    def _ended(self, rank_id: str, end: RankEnd) -> None:
        self._used_at = self._loop.time()
        self.tenants.ended(rank_id)
        rank = self._ranks.pop(rank_id, None)
        if rank is not None:
            rank.has_ended(end)

    def _write(self, ranks: dict[str, LeasedRank], lines: Iterable[PrintedLine]) -> None:
        """Write printed lines to the logs of ranks. Runs in the lane, as a disk may be slow."""
        self._writes -= 1
        for each in lines:
            if (rank := ranks.get(each.rank)) is not None:
                rank.log.add(each.text)

    async def _let_go_if_idle(self) -> None:
        if self._ranks or self._loop.time() - self._used_at < _IDLE_S:
            return
        self.over = True
        with contextlib.suppress(OSError):
            await self._client.order("DELETE", f"/v1/leases/{self.lease}", _CLOSE_S)

    async def _watch(self) -> None:
        while not self.over or self._ranks:
            await asyncio.sleep(_TICK_S)
            now = self._loop.time()
            if not self.over and self._contact.judge(now):
                self._lose(
                    f"{self._host} has been out of reach for {self._lease_s:g} s, after which it "
                    f"ends its ranks by itself ({self._failure})"
                )
            for rank_id, reason in self.tenants.due(now):
                self._ended(rank_id, RankEnd(None, reason))

    def _lose(self, reason: str) -> None:
        """Note that the lease is over, and that this gateway can't see how the ranks end."""
        self.over = True
        self.tenants.lose(self._loop.time(), reason)
        if self._loss is None:
            self._loss = reason
            logger.error("%d ranks are lost: %s", len(self._ranks), reason)

    def _none_left(self, reason: str) -> None:
        """Note that all ranks have ended, as the agent doesn't know the lease any more. An agent
        that starts ends the ranks of the agent before it.
        """
        self.over = True
        for each in list(self._ranks):
            self._ended(each, RankEnd(None, self._loss or reason))
