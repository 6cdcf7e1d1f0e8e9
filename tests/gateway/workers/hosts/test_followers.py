"""The other ranks, on hosts that do as a test says: starts, messages, and what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.system.child import ExitStatus
from gateway.system.clock import until_set
from gateway.system.memory_reading import Footprint
from gateway.workers.followers import Followers, Plan, devices
from gateway.workers.host import LocalHost, RankEnd, RankOrder
from gateway.workers.shutdown_steps import ShutdownStep
from gateway.workers.worker_log import WorkerLog
from protocol.life import Ranks


class ScriptedRank:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.taken: list[str] = []
        self.end_: asyncio.Future[RankEnd] = asyncio.get_running_loop().create_future()

    async def footprint(self) -> Footprint:
        return Footprint(host_bytes=100 + self.pid, host_peak_bytes=None)

    async def reserve(self, wanted_bytes: int) -> int:
        return wanted_bytes

    async def dump(self) -> None:
        self.taken.append("dump")

    async def end(self) -> None:
        self.taken.append("end")
        raise OSError("the host is out of reach")

    async def kill(self) -> None:
        self.taken.append("kill")
        self.end_.set_result(RankEnd(ExitStatus(None, "SIGKILL"), "signal SIGKILL"))

    async def ended(self) -> RankEnd:
        return await asyncio.shield(self.end_)


class ScriptedHost(LocalHost):
    """This machine, but for what it starts."""

    def __init__(self, most: int = 9) -> None:
        self.most = most
        self.orders: list[RankOrder] = []
        self.ranks: list[ScriptedRank] = []

    async def free_ports(self, count: int) -> tuple[int, ...]:
        return tuple(range(5000, 5000 + count))

    async def start(self, order: RankOrder, log: WorkerLog) -> ScriptedRank:
        if len(self.ranks) >= self.most:
            raise OSError("no room for another one")
        self.orders.append(order)
        self.ranks.append(ScriptedRank(len(self.ranks)))
        return self.ranks[-1]


class SlowHost(ScriptedHost):
    """Takes its time to start one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()

    async def start(self, order: RankOrder, log: WorkerLog) -> ScriptedRank:
        self.asked.set()
        await self.answers.wait()
        return await super().start(order, log)


class RecordingRankZero:
    def __init__(self) -> None:
        self.starts: list[str | None] = []
        self.ended = asyncio.Event()
        self.to_be_ended = asyncio.Event()

    def followers_started(self, failure: str | None) -> None:
        self.starts.append(failure)

    def reservation_changed(self, failure: str | None) -> None:
        raise AssertionError(failure)

    def follower_ended(self) -> None:
        self.ended.set()

    def end_ranks(self) -> None:
        assert not self.to_be_ended.is_set()
        self.to_be_ended.set()


@pytest.fixture
def rank_zero() -> RecordingRankZero:
    return RecordingRankZero()


@pytest.fixture
def followers(
    short_path: Path, rank_zero: RecordingRankZero
) -> Callable[[ScriptedHost, int], Followers]:
    def make(host: ScriptedHost, size: int) -> Followers:
        plan = Plan(
            model_id="big",
            incarnation=7,
            backend="ring",
            split="tensor",
            hosts=[host] * size,
            interfaces=[("10.0.0.1",)] * size,
            silence_s=5.0,
            log=WorkerLog(short_path / "big.log"),
            cards=["4", "6"],
        )
        return Followers(plan, short_path / "7.rank", rank_zero)

    return make


Make = Callable[[ScriptedHost, int], Followers]


async def test_followers_learn_the_address_of_rank_0_and_their_cards(followers: Make) -> None:
    host = ScriptedHost()
    made = followers(host, 3)
    ranks = await made.until_started()
    assert isinstance(ranks, Ranks)
    assert (ranks.size, ranks.addresses) == (3, (("10.0.0.1:5000",),) * 3)
    assert [order.rank for order in host.orders] == [1, 2]
    assert [rank_order.environment["CUDA_VISIBLE_DEVICES"] for rank_order in host.orders] == [
        "6",
        "4",
    ]
    for order in host.orders:
        # The key that proves a follower, and not the one that proves rank 0.
        assert order.secret == ranks.keys[0] != ranks.keys[1]
        assert ranks.endpoint in order.arguments
        assert not any(order.secret.decode() in text for text in order.arguments)
    assert await made.read_footprints() == [await rank.footprint() for rank in host.ranks]


async def test_followers_are_gone_when_all_have_ended(
    followers: Make, rank_zero: RecordingRankZero
) -> None:
    host = ScriptedHost()
    made = followers(host, 3)
    assert not made.fate.followers_gone
    await made.until_started()
    await host.ranks[0].kill()
    await rank_zero.ended.wait()
    rank_zero.ended.clear()
    assert (made.fate.followers_gone, made.running_here) == (False, True)
    assert await until_set(rank_zero.to_be_ended, 30.0)
    # What fails is up to the next step, and what has ended is left alone.
    await made.apply(ShutdownStep.TERMINATE)
    await made.apply(ShutdownStep.KILL)
    await rank_zero.ended.wait()
    assert made.fate.followers_gone
    assert not made.running_here
    assert [rank.taken for rank in host.ranks] == [["kill"], ["end", "kill"]]
    assert made.fate.loss is not None
    assert made.fate.loss.reason == "rank 1 on this machine was lost (signal SIGKILL)"


async def test_follower_that_cannot_be_started_is_reported(
    followers: Make, rank_zero: RecordingRankZero
) -> None:
    host = ScriptedHost(most=1)
    made = followers(host, 3)
    assert await made.until_started() is None
    assert not made.fate.followers_gone
    await made.apply(ShutdownStep.KILL)
    await rank_zero.ended.wait()
    assert made.fate.followers_gone
    assert rank_zero.starts == ["its ranks can't be started: no room for another one"]


async def test_late_follower_ends_as_the_others(
    followers: Make, rank_zero: RecordingRankZero
) -> None:
    host = SlowHost()
    made = followers(host, 3)
    await host.asked.wait()
    await made.apply(ShutdownStep.KILL)
    host.answers.set()
    await rank_zero.ended.wait()
    assert [rank.taken for rank in host.ranks] == [["kill"]]
    assert made.fate.followers_gone


async def test_no_follower_is_started_once_all_are_ended(
    followers: Make, rank_zero: RecordingRankZero
) -> None:
    host = ScriptedHost()
    made = followers(host, 4)
    await made.apply(ShutdownStep.KILL)
    await made.until_started()
    await asyncio.sleep(0)
    assert made.fate.followers_gone
    assert (host.orders, rank_zero.starts) == ([], [None])


def test_devices_of_jaccl_have_a_gap_for_oneself() -> None:
    assert devices([("a1", "a2"), ("b0", "b2"), ("c0", "c1")]) == (
        (None, "a1", "a2"),
        ("b0", None, "b2"),
        ("c0", "c1", None),
    )
