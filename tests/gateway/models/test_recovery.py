"""What happens when a worker has ended: whether there is another one, and when."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.config.settings import Settings, WorkersSettings
from gateway.models.lifecycle import ModelEvent, State
from gateway.workers.process import ExitStatus
from tests.gateway.models.compartment_world import STOPPED, ModelWorld

WINDOW_S = 60.0
# Two deaths are answered at once; then come two pauses, of at most 10 s, and the breaker opens.
SETTINGS = Settings(
    workers=WorkersSettings(
        restart_limit=2,
        restart_window_s=WINDOW_S,
        backoff_limit=2,
        backoff_first_s=10.0,
        backoff_longest_s=10.0,
        breaker_retry_s=300.0,
    )
)


class Clock:
    """The event loop's, put forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        real, self.ahead_s = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + self.ahead_s)


@pytest.fixture
async def world(tmp_path: Path) -> ModelWorld:
    """A model that is to be kept loaded, and is."""
    world = ModelWorld(tmp_path, SETTINGS, preload=True)
    world.compartment.preload()
    world.come_up()
    return world


def crash_at_once(world: ModelWorld) -> None:
    world.crash()
    assert world.state is State.WAITING
    world.come_up()


async def test_a_worker_that_was_healthy_for_a_window_clears_the_record(
    world: ModelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    for _ in range(3):
        crash_at_once(world)
        crash_at_once(world)
        clock.ahead_s += WINDOW_S + 1.0
    crash_at_once(world)
    assert world.compartment.recovery.restarts == 7


async def test_a_worker_that_was_healthy_for_less_does_not(
    world: ModelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    crash_at_once(world)
    crash_at_once(world)
    clock.ahead_s += WINDOW_S / 2
    world.crash()
    assert world.state is State.BACKOFF


async def test_pauses_come_before_the_breaker_opens_and_an_order_closes_it(
    world: ModelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = world.compartment.recovery
    crash_at_once(world)
    crash_at_once(world)
    for _ in range(2):
        world.crash()
        assert world.state is State.BACKOFF
        assert recovery.retry_after_s is not None
        assert 5 <= recovery.retry_after_s <= 10
        world.compartment.condition.handle(ModelEvent.RETRY)
        assert recovery.retry_after_s is None
        world.come_up()
    world.crash()
    assert world.state is State.FAILED
    assert recovery.retry_after_s == 300
    assert [each["verdict"] for each in world.told("breaker")] == [
        *("back off", "back off", "give up")
    ]
    assert [each["deaths"] for each in world.told("breaker")] == [3, 4, 5]
    failure = world.compartment.condition.failure
    assert failure is not None
    assert failure.retry_after_s == 300
    assert "'m' can't be served: the worker was lost: ended unexpectedly while ready" in str(
        failure.message
    )
    assert "(exit code 1)" in failure.message
    world.compartment.load()
    assert recovery.retry_after_s is None
    world.come_up()
    crash_at_once(world)


async def test_the_next_attempt_comes_by_itself(
    world: ModelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    crash_at_once(world)
    crash_at_once(world)
    world.crash()
    # A sleep of the machine would put it off, so the clock goes in steps.
    for _ in range(200):
        if world.state is State.WAITING:
            break
        clock.ahead_s += 0.2
        await asyncio.sleep(0)
    assert world.state is State.WAITING
    assert world.entries[-1][0] is ModelEvent.RETRY


async def test_an_end_that_was_ordered_is_no_death(world: ModelWorld) -> None:
    recovery = world.compartment.recovery
    world.compartment.restart(force=True)
    world.worker.ends(STOPPED)
    assert recovery.last_exit is not None
    assert (recovery.last_exit.code, recovery.last_exit.signal) == (0, None)
    assert world.state is State.WAITING
    world.come_up()
    assert recovery.restarts == 0
    assert {k: v for k, v in recovery.restarts_by.items() if v} == {"operator": 1}
    assert [each["expected"] for each in world.told("exit")] == [True]
    assert world.memory.gone_pids == [(1001, True)]


async def test_each_end_is_told_and_counted(world: ModelWorld) -> None:
    recovery = world.compartment.recovery
    world.worker.ends(ExitStatus(code=None, signal="SIGSEGV"))
    assert recovery.last_exit is not None
    assert (recovery.last_exit.code, recovery.last_exit.signal) == (None, "SIGSEGV")
    assert recovery.last_exit.reason == "ended unexpectedly while ready"
    assert recovery.restarts == 0
    world.come_up()
    assert recovery.restarts == 1
    assert {k: v for k, v in recovery.restarts_by.items() if v} == {"crashed": 1}
    (told,) = world.told("exit")
    assert (told["pid"], told["incarnation"], told["expected"]) == (1001, 1, False)
    assert (told["code"], told["signal"]) == (None, "SIGSEGV")
    assert world.memory.gone_pids == [(1001, False)]


async def test_what_a_worker_did_wrong_is_the_reason_of_its_end(world: ModelWorld) -> None:
    world.compartment.condition.handle(ModelEvent.HUNG, "no heartbeat")
    world.crash()
    recovery = world.compartment.recovery
    assert recovery.last_exit is not None
    assert recovery.last_exit.reason == "no heartbeat"
    world.come_up()
    assert {k: v for k, v in recovery.restarts_by.items() if v} == {"hung": 1}


async def test_memory_that_did_not_come_back_ends_the_restarts(world: ModelWorld) -> None:
    world.compartment.model_memory.lost_memory(3_000_000_000)
    world.crash()
    assert world.state is State.FAILED
    assert "an earlier end has stranded 3.0 GB" in str(world.compartment.condition.reason)
    assert world.compartment.recovery.retry_after_s is None
    world.compartment.load()
    world.come_up()
    crash_at_once(world)


async def test_a_death_that_a_request_is_guilty_of_does_not_count(world: ModelWorld) -> None:
    # The first death of each counts: it might be the worker's own fault.
    for each in range(2):
        request = world.request(f"poison {each}")
        for _ in range(2):
            assert not request.over
            crash_at_once(world)
        assert request.over
    world.crash()
    assert world.state is State.BACKOFF


async def test_what_can_never_be_started_is_told_at_once(world: ModelWorld) -> None:
    world.workers.failure = FileNotFoundError(2, "no such interpreter")
    world.crash()
    world.admit()
    assert world.state is State.FAILED
    failure = world.compartment.condition.failure
    assert failure is not None
    assert failure.lasting
    assert "no such interpreter" in failure.message
    assert world.memory.gone_pids[-1] == (None, True)
    assert world.compartment.recovery.retry_after_s is None


async def test_what_could_not_be_started_now_is_tried_again(world: ModelWorld) -> None:
    recovery = world.compartment.recovery
    world.workers.failure = OSError(24, "too many open files")
    world.crash()
    # Two deaths are answered at once, of which the crash was one.
    world.admit()
    assert world.state is State.WAITING
    world.admit()
    assert world.state is State.BACKOFF
    assert "too many open files" in str(world.compartment.condition.reason)
    world.workers.failure = None
    world.compartment.condition.handle(ModelEvent.RETRY)
    world.come_up()
    assert recovery.restarts == 3
    assert {k: v for k, v in recovery.restarts_by.items() if v} == {"crashed": 1, "not started": 2}


async def test_nothing_is_tried_after_a_hand_over(world: ModelWorld) -> None:
    crash_at_once(world)
    crash_at_once(world)
    world.crash()
    assert world.compartment.recovery.retry_after_s is not None
    world.compartment.leave()
    assert world.compartment.recovery.retry_after_s is None
