"""A lease on ranks elsewhere: what is asked of its host, and when the gateway lets go of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from msgspec import Struct

from gateway.workers.agent_bodies import LEASE_OVER, LeaseTurn, PrintedLine, RankEnded, RankNews
from gateway.workers.host import RankEnd
from gateway.workers.leased import LeasedRank, Leasehold
from gateway.workers.pinned import PinnedClient, RefusedError
from gateway.workers.process import ExitStatus
from gateway.workers.worker_log import WorkerLog

LEASE_S = 30.0
# Behind the time for which a lease without ranks is kept.
IDLE_S = 6.0
KILLED = ExitStatus(None, "SIGKILL")


class Agent:
    """Answers a turn when the test says what."""

    def __init__(self) -> None:
        self.turns: list[LeaseTurn] = []
        self.orders: list[tuple[str, str]] = []
        self.heard = asyncio.Event()
        self._answers: asyncio.Queue[RankNews | OSError] = asyncio.Queue()
        self._number = 0

    async def post(self, path: str, body: Struct, kind: type, deadline_s: float) -> RankNews:
        assert path == "/v1/leases/lease/turn"
        assert isinstance(body, LeaseTurn)
        self.turns.append(body)
        self.heard.set()
        answer = await self._answers.get()
        if isinstance(answer, OSError):
            raise answer
        return answer

    async def order(self, method: str, path: str, deadline_s: float) -> None:
        self.orders.append((method, path))
        self.heard.set()

    async def answers(
        self, *ended: RankEnded, lines: tuple[PrintedLine, ...] = (), failure: OSError | None = None
    ) -> None:
        """Until something else is asked of it."""
        async with asyncio.timeout(30.0):
            await self.heard.wait()
            self.heard.clear()
            self._number += 1
            news = RankNews(number=self._number, lines=lines, ended=ended)
            self._answers.put_nowait(news if failure is None else failure)
            await self.heard.wait()


class Lease:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        real, self.ahead_s = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + self.ahead_s)
        self.agent = Agent()
        self.log = WorkerLog(folder / "log")
        self.held = Leasehold(cast(PinnedClient, self.agent), "there", "lease", LEASE_S)

    def rank(self, number: int = 1) -> LeasedRank:
        return self.held.expect(number, self.log, promised_bytes=1)

    @property
    def let_go(self) -> bool:
        return self.held.over and self.agent.orders == [("DELETE", "/v1/leases/lease")]


@pytest.fixture
async def lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lease]:
    lease = Lease(tmp_path, monkeypatch)
    yield lease
    await lease.held.close()


async def test_it_is_let_go_when_no_rank_was_there_for_a_while(lease: Lease) -> None:
    await lease.agent.answers()
    assert not lease.held.over
    lease.ahead_s += IDLE_S
    await lease.agent.answers()
    assert lease.let_go


async def test_it_is_kept_as_long_as_a_rank_runs(lease: Lease) -> None:
    rank = lease.rank()
    for _ in range(3):
        lease.ahead_s += IDLE_S
        await lease.agent.answers()
        assert not lease.held.over
    await lease.agent.answers(RankEnded(rank.id, KILLED, "signal SIGKILL"))
    assert await rank.ended() == RankEnd(KILLED, "signal SIGKILL")
    # The next one may come soon.
    await lease.agent.answers()
    assert not lease.held.over
    lease.ahead_s += IDLE_S
    await lease.agent.answers()
    assert lease.let_go


async def test_it_is_kept_until_an_unwanted_rank_must_have_ended(lease: Lease) -> None:
    await lease.agent.answers()
    rank = lease.rank()
    lease.held.tenants.unanswered(rank.id, "no answer came")
    lease.ahead_s += IDLE_S
    # This turn was asked for before; the next one says it.
    await lease.agent.answers()
    assert [each.unwanted for each in lease.agent.turns[-2:]] == [(), (rank.id,)]
    assert not lease.held.over
    await lease.agent.answers()
    assert lease.agent.turns[-1].unwanted == ()
    assert not lease.held.over
    assert not rank._end.done()
    # Longer than the smallest process may take to end.
    lease.ahead_s += 60.0
    async with asyncio.timeout(30.0):
        assert await rank.ended() == RankEnd(None, "no answer came")
    lease.ahead_s += IDLE_S
    await lease.agent.answers()
    assert lease.let_go


async def test_a_rank_that_was_disowned_is_told_until_the_host_has_heard(lease: Lease) -> None:
    rank = lease.rank()
    lease.held.tenants.disown(rank.id)
    await lease.agent.answers(failure=ConnectionError("there is no way"))
    await lease.agent.answers(failure=ConnectionError("there is no way"))
    await lease.agent.answers()
    await lease.agent.answers(RankEnded(rank.id, KILLED, "signal SIGKILL"))
    told = [each.unwanted for each in lease.agent.turns]
    assert told[1:4] == [(rank.id,), (rank.id,), ()]
    assert await rank.ended() == RankEnd(KILLED, "signal SIGKILL")


async def test_a_host_that_ends_it_tells_of_no_end(lease: Lease) -> None:
    rank = lease.rank()
    await lease.agent.answers(failure=RefusedError(LEASE_OVER, "the agent stops"))
    assert lease.held.over
    assert not rank._end.done()
    lease.ahead_s += 60.0
    async with asyncio.timeout(30.0):
        end = await rank.ended()
    assert end == RankEnd(None, "there ends it: the agent stops")


async def test_a_host_that_knows_no_such_lease_has_no_rank_left(lease: Lease) -> None:
    rank = lease.rank()
    lease.agent.heard.clear()
    lease.agent._answers.put_nowait(RefusedError("not_found", "no such lease"))
    async with asyncio.timeout(30.0):
        end = await rank.ended()
    assert end == RankEnd(None, "there has ended it: no such lease")
    assert lease.held.over


async def test_what_ranks_print_is_in_the_log_of_their_model(lease: Lease, tmp_path: Path) -> None:
    rank = lease.rank(3)
    await lease.agent.answers(lines=(PrintedLine(rank.id, "hello"), PrintedLine("other", "no")))
    async with asyncio.timeout(30.0):
        while not lease.log.tail(9):
            await lease.agent.answers()
    assert lease.log.tail(9) == ["[rank 3] hello"]
