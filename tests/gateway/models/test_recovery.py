"""What happens when a worker has ended: whether there is another one, and when."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import msgspec
import pytest

from gateway.config.settings import GatewaySettings, Settings, WorkersSettings
from gateway.models.lifecycle import ModelEvent, State
from gateway.system.child import ExitStatus
from gateway.system.clock import LOOK_S
from gateway.system.refusal import Refusal
from gateway.workers.rank_group import Loss
from tests.gateway.models.supervisor_world import CRASHED, STOPPED, ModelWorld

WINDOW_S = 60.0
LOAD_S = 30.0
DRAIN_S = 20.0
# Two deaths are answered at once; then come two pauses, of at most 10 s, and the breaker opens.
SETTINGS = Settings(
    gateway=GatewaySettings(drain_s=DRAIN_S),
    workers=WorkersSettings(
        load_timeout_s=LOAD_S,
        restart_limit=2,
        restart_window_s=WINDOW_S,
        backoff_limit=2,
        backoff_first_s=10.0,
        backoff_longest_s=10.0,
        breaker_retry_s=300.0,
    ),
)
KILLED = ExitStatus(code=None, signal="SIGKILL")


class Clock:
    """The event loop's, which only the test puts forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        # Sums of whole seconds are exact.
        began, self.ahead_s = math.ceil(loop.time()), 0.0
        monkeypatch.setattr(loop, "time", lambda: began + self.ahead_s)

    async def go_on(self, seconds: float) -> None:
        """Let the timers see the time pass. To them a longer step would be an absence."""
        until_s = self.ahead_s + seconds
        while self.ahead_s < until_s:
            self.ahead_s = min(self.ahead_s + LOOK_S, until_s)
            # A timer that is due is called after a task that is ready.
            for _ in range(2):
                await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
async def world(tmp_path: Path) -> ModelWorld:
    """A model that is to be kept loaded, and is."""
    world = ModelWorld(tmp_path, SETTINGS, preload=True)
    world.supervisor.preload()
    world.come_up()
    return world


def crash_at_once(world: ModelWorld) -> None:
    world.crash()
    assert world.state is State.WAITING
    world.come_up()


def crash_until_backoff(world: ModelWorld) -> None:
    crash_at_once(world)
    crash_at_once(world)
    world.crash()
    assert world.state is State.BACKOFF


def started_by(world: ModelWorld) -> dict[str, int]:
    """How many workers were started by which cause."""
    restarts_by = world.supervisor.recovery.restarts_by
    return {cause: times for cause, times in restarts_by.items() if times}


def failure(world: ModelWorld) -> Refusal:
    refusal = world.supervisor.condition.failure
    assert refusal is not None
    return refusal


async def test_a_worker_that_was_healthy_for_a_window_clears_the_record(
    world: ModelWorld, clock: Clock
) -> None:
    for _ in range(3):
        crash_at_once(world)
        crash_at_once(world)
        clock.ahead_s += WINDOW_S + 1.0
    crash_at_once(world)
    assert world.supervisor.recovery.restarts == 7


async def test_a_worker_that_was_healthy_for_less_does_not(world: ModelWorld, clock: Clock) -> None:
    crash_at_once(world)
    crash_at_once(world)
    clock.ahead_s += WINDOW_S / 2
    world.crash()
    assert world.state is State.BACKOFF


async def test_pauses_come_before_the_breaker_opens_and_an_order_closes_it(
    world: ModelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = world.supervisor.recovery
    crash_at_once(world)
    crash_at_once(world)
    for _ in range(2):
        world.crash()
        assert world.state is State.BACKOFF
        assert recovery.retry_after_s is not None
        assert 5 <= recovery.retry_after_s <= 10
        world.supervisor.condition.handle(ModelEvent.RETRY)
        assert recovery.retry_after_s is None
        world.come_up()
    world.crash()
    assert world.state is State.FAILED
    assert recovery.retry_after_s == 300
    assert [entry["verdict"] for entry in world.emitted("breaker")] == [
        *("back off", "back off", "give up")
    ]
    assert [entry["deaths"] for entry in world.emitted("breaker")] == [3, 4, 5]
    assert world.emitted("breaker")[-1]["next_attempt_s"] == pytest.approx(300.0)
    assert failure(world).retry_after_s == 300
    assert (
        "'m' can't be served: the worker was lost: ended unexpectedly while ready (exit code 1)"
        in failure(world).message
    )
    world.supervisor.load()
    assert recovery.retry_after_s is None
    world.come_up()
    crash_at_once(world)


async def test_the_next_attempt_comes_by_itself(world: ModelWorld, clock: Clock) -> None:
    crash_until_backoff(world)
    await clock.go_on(4.0)
    assert world.state is State.BACKOFF
    await clock.go_on(6.0)
    assert world.state is State.WAITING
    assert world.entries[-1][0] is ModelEvent.RETRY


async def test_retry_after_is_at_least_a_second(world: ModelWorld, clock: Clock) -> None:
    crash_until_backoff(world)
    while world.state is State.BACKOFF:
        left_s = world.supervisor.recovery.retry_after_s
        await clock.go_on(0.25)
    assert left_s == 1


async def test_an_order_replaces_the_next_attempt(world: ModelWorld, clock: Clock) -> None:
    crash_until_backoff(world)
    world.supervisor.load()
    world.come_up()
    await clock.go_on(10.0)
    assert world.entries[-1][0] is ModelEvent.LOADED


async def test_loads_that_die_late_are_not_tried_for_ever(world: ModelWorld, clock: Clock) -> None:
    world.crash()
    for state in (State.WAITING, State.BACKOFF):
        world.admit()
        world.say_hello()
        clock.ahead_s += WINDOW_S + 1.0
        world.crash()
        assert world.state is state


async def test_a_restart_policy_that_is_configured_anew_holds_from_the_next_death(
    world: ModelWorld,
) -> None:
    crash_at_once(world)
    crash_at_once(world)
    workers = msgspec.structs.replace(SETTINGS.workers, restart_limit=3)
    world.in_force.settings = msgspec.structs.replace(SETTINGS, workers=workers)
    crash_at_once(world)
    world.crash()
    assert world.state is State.BACKOFF


SEGFAULT = ExitStatus(code=None, signal="SIGSEGV")


def die_of(world: ModelWorld, status: ExitStatus) -> None:
    world.worker.ends(status)
    if world.state is State.BACKOFF:
        world.supervisor.condition.handle(ModelEvent.RETRY)
    world.come_up()


async def test_repeated_deaths_show_until_an_order(world: ModelWorld) -> None:
    deaths = world.supervisor.recovery.deaths
    now = asyncio.get_running_loop().time()
    die_of(world, SEGFAULT)
    die_of(world, SEGFAULT)
    assert world.emitted("caution") == []
    die_of(world, SEGFAULT)
    (emitted,) = world.emitted("caution")
    assert (emitted["error"], emitted["deaths"]) == ("SIGSEGV", 3)
    assert "`bulkhead logs m`" in str(emitted["reason"])
    assert [death.error for death in deaths.repeated(now)] == ["SIGSEGV"]
    world.supervisor.load()
    assert deaths.repeated(now) == []


async def test_repeated_deaths_show_until_other_files_are_loaded(
    world: ModelWorld,
) -> None:
    deaths = world.supervisor.recovery.deaths
    now = asyncio.get_running_loop().time()
    for _ in range(3):
        die_of(world, SEGFAULT)
    world.crash()
    world.supervisor.condition.handle(ModelEvent.RETRY)
    world.admit()
    world.say_hello()
    assert len(deaths.repeated(now)) == 1
    world.say_ready("g")
    assert deaths.repeated(now) == []


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSEGV"])
async def test_a_worker_that_others_end_dies_of_no_error(world: ModelWorld, signal: str) -> None:
    for _ in range(3):
        if signal != "SIGKILL":
            # The gateway ends it.
            world.supervisor.condition.handle(ModelEvent.HUNG, "it hangs")
        die_of(world, ExitStatus(code=None, signal=signal))
    assert world.emitted("caution") == []


async def test_an_end_that_was_ordered_is_no_death(world: ModelWorld) -> None:
    recovery = world.supervisor.recovery
    world.supervisor.restart(force=True)
    assert world.state is State.STOPPING
    world.worker.ends(STOPPED)
    assert recovery.last_exit is not None
    assert (recovery.last_exit.code, recovery.last_exit.signal) == (0, None)
    assert world.state is State.WAITING
    world.come_up()
    assert recovery.restarts == 0
    assert started_by(world) == {"operator": 1}
    assert [item["expected"] for item in world.emitted("exit")] == [True]
    assert world.memory.gone_pids == [1001]


@pytest.mark.parametrize(
    ("ordered", "status", "expected", "reason"),
    [
        (State.STOPPING, STOPPED, True, "stopped as asked"),
        # A shutdown sequence may need a signal.
        (State.STOPPING, KILLED, True, "stopped as asked"),
        (State.DRAINING, STOPPED, True, "stopped as asked"),
        (State.DRAINING, CRASHED, False, "ended unexpectedly while draining"),
        (None, STOPPED, False, "ended unexpectedly while ready"),
    ],
)
async def test_an_end_is_expected_if_the_worker_was_to_end(
    world: ModelWorld, ordered: State | None, status: ExitStatus, expected: bool, reason: str
) -> None:
    world.request("long")
    if ordered is not None:
        world.supervisor.unload(hold=True, force=ordered is State.STOPPING)
        assert world.state is ordered
    world.worker.ends(status)
    (emitted,) = world.emitted("exit")
    assert (emitted["expected"], emitted["reason"]) == (expected, reason)


@pytest.mark.parametrize(
    ("broke_protocol", "mark", "loss", "status", "emitted"),
    [
        (False, None, None, CRASHED, "ended unexpectedly while ready (exit code 1)"),
        (True, None, None, STOPPED, "it spoke nonsense"),
        (True, None, None, CRASHED, "it spoke nonsense (exit code 1)"),
        (True, None, None, KILLED, "it spoke nonsense (signal SIGKILL)"),
        # The last line of a command's guard tells the command's exit code.
        (False, "mark", None, CRASHED, "ended unexpectedly while ready"),
        (False, "mark", None, KILLED, "ended unexpectedly while ready (signal SIGKILL)"),
        (False, None, Loss("rank 1 on b has died", CRASHED), CRASHED, "rank 1 on b has died"),
    ],
)
async def test_exit_status_is_added_to_a_reason_that_lacks_it(
    world: ModelWorld,
    broke_protocol: bool,
    mark: str | None,
    loss: Loss | None,
    status: ExitStatus,
    emitted: str,
) -> None:
    crash_at_once(world)
    crash_at_once(world)
    world.worker.mark, world.worker.loss = mark, loss
    if broke_protocol:
        world.supervisor.condition.handle(ModelEvent.MISBEHAVED, "it spoke nonsense")
    world.worker.ends(status)
    assert f"the worker was lost: {emitted}. " in str(world.supervisor.condition.reason)


async def test_ends_are_counted_and_emitted_as_events(world: ModelWorld) -> None:
    recovery = world.supervisor.recovery
    world.worker.ends(ExitStatus(code=None, signal="SIGSEGV"))
    assert recovery.last_exit is not None
    assert (recovery.last_exit.code, recovery.last_exit.signal) == (None, "SIGSEGV")
    assert recovery.last_exit.reason == "ended unexpectedly while ready"
    assert recovery.restarts == 0
    world.come_up()
    assert recovery.restarts == 1
    assert started_by(world) == {"crashed": 1}
    (emitted,) = world.emitted("exit")
    assert (emitted["pid"], emitted["incarnation"], emitted["expected"]) == (1001, 1, False)
    assert (emitted["code"], emitted["signal"]) == (None, "SIGSEGV")
    assert world.memory.gone_pids == [1001]


async def test_misbehaviour_is_the_reason_of_the_end(world: ModelWorld) -> None:
    world.supervisor.condition.handle(ModelEvent.HUNG, "no heartbeat")
    world.crash()
    recovery = world.supervisor.recovery
    assert recovery.last_exit is not None
    assert recovery.last_exit.reason == "no heartbeat"
    world.come_up()
    assert started_by(world) == {"hung": 1}


async def test_memory_that_did_not_come_back_ends_the_restarts(world: ModelWorld) -> None:
    world.supervisor.model_memory.lost_memory(3_000_000_000)
    world.crash()
    assert world.state is State.FAILED
    assert "an earlier end has stranded 3.0 GB" in str(world.supervisor.condition.reason)
    assert world.supervisor.recovery.retry_after_s is None
    world.supervisor.load()
    world.come_up()
    crash_at_once(world)


@pytest.mark.parametrize("hangs", [False, True])
async def test_death_with_a_request_to_blame_does_not_count(world: ModelWorld, hangs: bool) -> None:
    # The first death of each counts: it might be the worker's own fault.
    for index in range(2):
        request = world.request(f"poison {index}")
        for _ in range(2):
            assert not request.over
            if hangs:
                world.supervisor.condition.handle(ModelEvent.HUNG, "no progress")
            crash_at_once(world)
        assert request.over
    world.crash()
    assert world.state is State.BACKOFF


async def test_lasting_start_failure_is_refused_at_once(world: ModelWorld) -> None:
    recovery = world.supervisor.recovery
    world.workers.failure = FileNotFoundError(2, "no such interpreter")
    world.crash()
    world.admit()
    assert world.state is State.FAILED
    assert failure(world).lasting
    assert "no such interpreter" in failure(world).message
    assert world.memory.gone_pids[-1] is None
    assert recovery.retry_after_s is None
    world.workers.failure = None
    world.supervisor.load()
    world.come_up()
    assert (recovery.restarts, started_by(world)) == (1, {"crashed": 1}), "an order is no restart"


async def test_passing_start_failure_is_tried_again(world: ModelWorld) -> None:
    recovery = world.supervisor.recovery
    world.workers.failure = OSError(24, "too many open files")
    world.crash()
    # Two deaths are answered at once, of which the crash was one.
    world.admit()
    assert world.state is State.WAITING
    world.admit()
    assert world.state is State.BACKOFF
    assert "too many open files" in str(world.supervisor.condition.reason)
    world.workers.failure = None
    world.supervisor.condition.handle(ModelEvent.RETRY)
    world.come_up()
    assert recovery.restarts == 3
    assert started_by(world) == {"crashed": 1, "not started": 2}


@pytest.mark.parametrize(
    ("error", "with_stack"), [(OSError(24, "too many open files"), False), (KeyError("x"), True)]
)
async def test_only_a_defect_at_a_start_is_logged_with_its_stack(
    world: ModelWorld, caplog: pytest.LogCaptureFixture, error: Exception, with_stack: bool
) -> None:
    world.workers.failure = error
    world.crash()
    world.admit()
    (record,) = (record for record in caplog.records if str(error) in record.getMessage())
    assert bool(record.exc_info) is with_stack


async def test_nothing_is_tried_after_a_hand_over(world: ModelWorld, clock: Clock) -> None:
    crash_until_backoff(world)
    assert world.supervisor.recovery.retry_after_s is not None
    entries = list(world.entries)
    world.supervisor.release()
    assert world.supervisor.recovery.retry_after_s is None
    await clock.go_on(10.0)
    assert world.entries == entries


def begin_again(world: ModelWorld) -> None:
    """Come to a load, after a crash."""
    world.crash()
    world.admit()
    world.say_hello()
    assert world.state is State.LOADING


async def load_too_slowly(world: ModelWorld, clock: Clock) -> None:
    """One more of the loads that are restarted."""
    await clock.go_on(LOAD_S)
    assert world.entries[-1] == (ModelEvent.DEADLINE, State.LOADING, State.STOPPING)
    world.worker.ends(STOPPED)


async def test_a_load_has_one_deadline_from_its_start(world: ModelWorld, clock: Clock) -> None:
    world.crash()
    world.admit()
    await clock.go_on(LOAD_S / 2)
    world.say_hello()
    await clock.go_on(LOAD_S / 2 - 1.0)
    assert world.state is State.LOADING
    await clock.go_on(1.0)
    assert world.state is State.STOPPING
    assert "30 s (workers.load_timeout_s)" in str(world.supervisor.condition.reason)


async def test_the_second_slow_load_in_a_row_is_a_lasting_failure(
    tmp_path: Path, clock: Clock
) -> None:
    world = ModelWorld(tmp_path, SETTINGS, preload=True)
    world.supervisor.preload()
    world.admit()
    world.say_hello()
    await load_too_slowly(world, clock)
    assert world.state is State.WAITING
    world.admit()
    await clock.go_on(LOAD_S)
    world.worker.ends(STOPPED)
    assert world.state is State.FAILED
    assert started_by(world) == {"load too slow": 1}
    assert (failure(world).code, failure(world).lasting) == ("load_timeout", True)
    assert failure(world).message.startswith("'m': ")
    assert str(world.supervisor.condition.reason).endswith(", twice")


async def test_a_load_that_succeeds_ends_the_row_of_slow_ones(
    world: ModelWorld, clock: Clock
) -> None:
    for _ in range(2):
        begin_again(world)
        await load_too_slowly(world, clock)
        world.come_up()
        world.supervisor.recovery.forget()


async def test_an_order_ends_the_row_of_slow_loads(world: ModelWorld, clock: Clock) -> None:
    begin_again(world)
    for _ in range(2):
        await load_too_slowly(world, clock)
        world.supervisor.load()
        world.admit()
        world.say_hello()


@pytest.mark.parametrize("dies", [False, True])
async def test_the_deadline_of_a_load_ends_with_it(
    world: ModelWorld, clock: Clock, dies: bool
) -> None:
    begin_again(world)
    if dies:
        world.crash()
    else:
        world.say_ready()
    entries = list(world.entries)
    await clock.go_on(LOAD_S)
    assert world.entries == entries


async def test_a_drain_is_cut_at_its_deadline(world: ModelWorld, clock: Clock) -> None:
    request = world.request("long")
    world.supervisor.unload(hold=False, force=False)
    await clock.go_on(DRAIN_S - 1.0)
    assert world.state is State.DRAINING
    await clock.go_on(1.0)
    assert world.entries[-1] == (ModelEvent.DEADLINE, State.DRAINING, State.STOPPING)
    assert not request.over, "the next worker goes on with it"


async def test_force_cuts_a_drain_and_nothing_else(world: ModelWorld) -> None:
    world.request("long")
    world.supervisor.unload(hold=False, force=True)
    assert world.state is State.STOPPING
    world.supervisor.unload(hold=False, force=True)
    assert [event for event, *_ in world.entries].count(ModelEvent.DEADLINE) == 1
