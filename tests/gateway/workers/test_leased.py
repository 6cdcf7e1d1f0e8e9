"""A lease on ranks elsewhere: what is asked of its host, and when the gateway lets go of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from msgspec import Struct

from gateway.system.child import ExitStatus
from gateway.system.memory_reading import Footprint, FootprintError
from gateway.workers.agent_bodies import (
    LEASE_OVER,
    FootprintBody,
    LeaseTurn,
    MemoryWish,
    PrintedLine,
    Promised,
    RankEnded,
    RankNews,
)
from gateway.workers.host import RankEnd
from gateway.workers.leased import LeasedRank, Leasehold
from gateway.workers.pinned import PinnedClient, RefusedError
from gateway.workers.worker_log import WorkerLog

LEASE_S = 30.0
# Behind the time for which a lease without ranks is kept.
IDLE_S = 6.0
# Longer than the smallest process may take to end.
SMALLEST_S = 60.0
LARGE_BYTES = 1 << 40
DELETE = ("DELETE", "/v1/leases/lease")
KILLED = ExitStatus(None, "SIGKILL")


class Agent:
    """Answers a turn when the test says what. It takes orders, or fails them with `failure`."""

    def __init__(self) -> None:
        self.turns: list[LeaseTurn] = []
        self.turn_s = 0.0
        self.orders: list[tuple[str, str]] = []
        self.failure: OSError | None = None
        self.footprint = Footprint(1, 1)
        self.heard = asyncio.Event()
        self._answers: asyncio.Queue[RankNews | OSError] = asyncio.Queue()
        self._number = 0

    async def get(self, path: str, kind: type, deadline_s: float) -> FootprintBody:
        self.orders.append(("GET", path))
        if self.failure is not None:
            raise self.failure
        return FootprintBody(self.footprint)

    async def post(
        self, path: str, body: Struct, kind: type, deadline_s: float
    ) -> RankNews | Promised:
        if isinstance(body, MemoryWish):
            self.orders.append(("POST", path))
            return Promised(body.wanted_bytes)
        assert path == "/v1/leases/lease/turn"
        assert isinstance(body, LeaseTurn)
        self.turns.append(body)
        self.turn_s = deadline_s
        self.heard.set()
        answer = await self._answers.get()
        if isinstance(answer, OSError):
            raise answer
        return answer

    async def order(self, method: str, path: str, deadline_s: float) -> None:
        self.orders.append((method, path))
        self.heard.set()
        if self.failure is not None:
            raise self.failure

    async def answers(
        self,
        *ended: RankEnded,
        lines: tuple[PrintedLine, ...] = (),
        lost_lines: int = 0,
        failure: OSError | None = None,
    ) -> None:
        """Until something else is asked of it."""
        async with asyncio.timeout(30.0):
            await self.heard.wait()
            self.heard.clear()
            self._number += 1
            news = RankNews(self._number, lines, lost_lines, ended)
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

    def soon_ended_if_lost(self) -> list[str]:
        """The ranks that count as ended, if they are lost now, once the smallest one must have."""
        now = asyncio.get_running_loop().time()
        self.held.tenants.lose(now, "lost")
        return [rank_id for rank_id, _ in self.held.tenants.due(now + SMALLEST_S)]

    @property
    def let_go(self) -> bool:
        return self.held.over and self.agent.orders == [DELETE]


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
    lease.ahead_s += SMALLEST_S
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
    lease.ahead_s += SMALLEST_S
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


async def test_a_log_that_is_slow_keeps_a_bounded_number_of_news(lease: Lease) -> None:
    began, goes_on = threading.Event(), threading.Event()

    class Slow(WorkerLog):
        def add(self, line: str) -> None:
            began.set()
            goes_on.wait(30.0)
            super().add(line)

    lease.log = Slow(lease.log.path)
    rank = lease.rank()
    await lease.agent.answers(lines=(PrintedLine(rank.id, "first"),))
    assert await asyncio.to_thread(began.wait, 30.0)
    for _ in range(100):
        await lease.agent.answers(lines=(PrintedLine(rank.id, "more"),))
    goes_on.set()
    async with asyncio.timeout(30.0):
        while len(lease.log.tail(1000)) < 65:
            await lease.agent.answers()
    assert len(lease.log.tail(1000)) == 65
    await lease.agent.answers(lines=(PrintedLine(rank.id, "later"),))
    async with asyncio.timeout(30.0):
        while lease.log.tail(1) != ["[rank 1] later"]:
            await lease.agent.answers()


async def test_lines_that_the_host_dropped_are_told(
    lease: Lease, caplog: pytest.LogCaptureFixture
) -> None:
    await lease.agent.answers()
    assert caplog.messages == []
    await lease.agent.answers(lost_lines=3)
    assert caplog.messages == ["3 lines of ranks on there are lost"]


async def test_signals_are_ordered_of_the_host(lease: Lease) -> None:
    rank = lease.rank()
    await rank.dump()
    await rank.end()
    await rank.kill()
    path = f"/v1/ranks/{rank.id}"
    assert lease.agent.orders == [("POST", f"{path}/{name}") for name in ("dump", "end", "kill")]
    assert not lease.held.tenants.unwanted


async def test_a_signal_to_a_rank_that_has_ended_is_no_failure(lease: Lease) -> None:
    rank = lease.rank()
    lease.agent.failure = RefusedError("not_found", "there is no such rank")
    await rank.kill()
    lease.agent.failure = RefusedError("forbidden", "this key may not")
    with pytest.raises(RefusedError, match="this key may not"):
        await rank.kill()
    assert not lease.held.tenants.unwanted


@pytest.mark.parametrize("name", ["end", "kill"])
async def test_a_rank_whose_end_could_not_be_ordered_is_ended_by_the_next_turn(
    lease: Lease, name: str
) -> None:
    rank = lease.rank()
    lease.agent.failure = ConnectionError("there is no way")
    with pytest.raises(ConnectionError):
        await rank.dump()
    assert not lease.held.tenants.unwanted
    with pytest.raises(ConnectionError):
        await getattr(rank, name)()
    assert lease.held.tenants.unwanted == (rank.id,)


async def test_a_rank_that_was_promised_much_may_take_long_to_end(lease: Lease) -> None:
    rank, small = lease.rank(), lease.rank()
    assert await rank.keep(LARGE_BYTES) == LARGE_BYTES
    assert lease.agent.orders == [("POST", f"/v1/ranks/{rank.id}/promise")]
    assert lease.soon_ended_if_lost() == [small.id]


async def test_a_rank_that_was_measured_large_may_take_long_to_end(lease: Lease) -> None:
    rank, small = lease.rank(), lease.rank()
    lease.agent.footprint = Footprint(LARGE_BYTES, LARGE_BYTES)
    assert await rank.footprint() == lease.agent.footprint
    assert lease.agent.orders == [("GET", f"/v1/ranks/{rank.id}/footprint")]
    assert lease.soon_ended_if_lost() == [small.id]


async def test_a_refused_reading_names_the_rank_and_its_host(lease: Lease) -> None:
    rank = lease.rank()
    lease.agent.failure = RefusedError("no_reading", "it can't be read")
    with pytest.raises(FootprintError, match=r"^rank 0 on there: it can't be read$"):
        await rank.footprint()
    rank.pid = 77
    with pytest.raises(FootprintError, match=r"^rank 77 on there: it can't be read$"):
        await rank.footprint()


async def test_the_first_end_of_a_rank_counts(lease: Lease) -> None:
    rank = lease.rank()
    rank.has_ended(RankEnd(KILLED, "first"))
    rank.has_ended(RankEnd(None, "second"))
    assert await rank.ended() == RankEnd(KILLED, "first")


async def test_an_end_of_a_rank_whose_start_is_in_doubt_tells_the_doubt(lease: Lease) -> None:
    doubted, known = lease.rank(), lease.rank()
    lease.held.tenants.unanswered(doubted.id, "no answer came")
    ends = [RankEnded(rank.id, KILLED, "memory", by_host=True) for rank in (doubted, known)]
    await lease.agent.answers(*ends)
    assert await doubted.ended() == RankEnd(None, "no answer came")
    assert await known.ended() == RankEnd(KILLED, "memory", by_host=True)


async def test_a_rank_that_was_not_started_is_forgotten(lease: Lease) -> None:
    await lease.agent.answers()
    rank = lease.rank()
    lease.held.tenants.disown(rank.id)
    lease.held.forget(rank)
    assert not lease.held.tenants.unwanted
    lease.ahead_s += IDLE_S
    await lease.agent.answers()
    assert lease.let_go


async def test_a_rank_that_was_expected_keeps_the_lease_for_a_while(lease: Lease) -> None:
    await lease.agent.answers()
    lease.ahead_s += IDLE_S
    lease.held.forget(lease.rank())
    await lease.agent.answers()
    assert not lease.held.over


async def test_it_has_begun_once_a_turn_was_answered(lease: Lease) -> None:
    await lease.agent.answers(failure=ConnectionError("there is no way"))
    assert not lease.held.begun.is_set()
    await lease.agent.answers()
    assert lease.held.begun.is_set()


@pytest.mark.parametrize(("lease_s", "turn_s"), [(30.0, 10.0), (3.0, 1.6)])
async def test_a_turn_takes_a_part_of_the_lease(lease_s: float, turn_s: float) -> None:
    agent = Agent()
    held = Leasehold(cast(PinnedClient, agent), "there", "lease", lease_s)
    await agent.answers()
    assert agent.turn_s == pytest.approx(turn_s)
    await held.close()


@pytest.mark.parametrize("failure", [None, ConnectionError("no way"), RefusedError("x", "not now")])
async def test_a_host_out_of_reach_loses_its_ranks_for_a_reason(
    lease: Lease, caplog: pytest.LogCaptureFixture, failure: OSError | None
) -> None:
    rank = lease.rank()
    if failure is not None:
        await lease.agent.answers(failure=failure)
    for _ in range(5):
        assert not lease.held.over
        # A longer step would look as if this process had slept.
        lease.ahead_s += LEASE_S / 5
        await asyncio.sleep(0.01)
    assert lease.held.over
    assert not rank._end.done()
    lease.ahead_s += SMALLEST_S
    async with asyncio.timeout(30.0):
        end = await rank.ended()
    reason = (
        "there has been out of reach for 30 s, after which it ends its ranks by itself "
        f"({failure or 'no answer came'})"
    )
    assert end == RankEnd(None, reason)
    assert caplog.messages == [f"1 ranks are lost: {reason}"]


async def test_a_host_that_stays_in_reach_keeps_its_ranks(lease: Lease) -> None:
    rank = lease.rank()
    for _ in range(10):
        lease.ahead_s += LEASE_S / 5
        await lease.agent.answers()
    assert not lease.held.over
    assert not rank._end.done()


async def test_an_end_of_the_lease_is_asked_for_until_no_rank_is_left(lease: Lease) -> None:
    rank = lease.rank()
    lease.agent.failure = ConnectionError("there is no way")
    await lease.agent.answers(failure=RefusedError(LEASE_OVER, "the agent stops"))
    for failure in (RefusedError("busy", "not now"), RefusedError("not_found", "no such lease")):
        assert not rank._end.done()
        lease.agent.failure = failure
        lease.agent.heard.clear()
        async with asyncio.timeout(30.0):
            await lease.agent.heard.wait()
    async with asyncio.timeout(30.0):
        end = await rank.ended()
    assert end == RankEnd(None, "there ends it: the agent stops")
    assert lease.agent.orders == [DELETE] * 3
    assert len(lease.agent.turns) == 1


async def test_a_refusal_of_another_kind_ends_no_lease(lease: Lease) -> None:
    assert not lease.held.ended_by(RefusedError("busy", "not now"))
    assert not lease.held.over
    assert lease.held.ended_by(RefusedError(LEASE_OVER, "the agent stops"))


@pytest.mark.parametrize("failure", [None, ConnectionError("there is no way")])
async def test_a_gateway_that_closes_it_counts_its_ranks_as_ended(
    lease: Lease, failure: OSError | None
) -> None:
    rank = lease.rank()
    lease.agent.failure = failure
    await lease.held.close()
    assert lease.let_go
    assert await rank.ended() == RankEnd(None, "this gateway let go of its lease there")
