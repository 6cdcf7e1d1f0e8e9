"""What an ended worker leaves wired is found, and nothing else is, on a simulated Mac."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.memory import leak_check
from gateway.memory import scheduler as scheduler
from gateway.memory.fitting import Learned
from gateway.memory.leak_check import (
    FRESH_S,
    Leak,
    LeakCheck,
    LoadedWorker,
    StrandedRecord,
    WiredClaim,
    WiredReading,
    leak_check_at_start,
    read_stranded,
    write_stranded,
)
from gateway.system.boot import present_boot
from gateway.system.events import EventLog
from gateway.system.memory import HostMemory
from gateway.workers.ssh_host import Hosts

GB = 1_000_000_000
TOTAL = 64 * GB
LEAST = TOTAL // 32
SYSTEM = 4 * GB
NOISE = 300_000_000
CLAIM = WiredClaim("demo", 30 * GB)
RECORD = StrandedRecord(7 * GB, 100.0, 4 * GB, 41 * GB, (CLAIM,))


class Mac:
    """Second by second: `wired` by worker, what others have wired, and what belongs to nobody."""

    def __init__(self, check: LeakCheck | None = None) -> None:
        self.check = LeakCheck(TOTAL, StrandedRecord()) if check is None else check
        self.now = 0.0
        self.others = SYSTEM
        self.lost = 0
        self.returning = 0
        self.returns_at = math.inf
        self.held: dict[int, int] = {}
        self.wired: dict[int, int] = {}
        self.found: list[Leak] = []
        self._pid = 100

    @property
    def level(self) -> int:
        return self.others + self.lost + self.returning + sum(self.wired.values())

    def pass_by(self, seconds: int = 1) -> list[Leak]:
        begun = len(self.found)
        for _ in range(seconds):
            self.now += 1.0
            if self.now >= self.returns_at:
                self.returning, self.returns_at = 0, math.inf
            workers = {pid: LoadedWorker(f"model-{pid}", held) for pid, held in self.held.items()}
            self.found += self.check.observe(WiredReading(self.now, self.level, workers))
        return self.found[begun:]

    def load(self, size: int, wired: int | None = None) -> int:
        self._pid += 1
        self.held[self._pid] = size
        self.wired[self._pid] = size if wired is None else wired
        self.pass_by()
        return self._pid

    def end(self, pid: int, *, lost: int = 0, returning: int = 0) -> None:
        del self.held[pid]
        assert lost + returning <= self.wired.pop(pid)
        self.lost += lost
        self.returning += returning
        self.check.ended(pid, self.now)


def test_pages_wired_a_minute_after_a_kill_are_stranded() -> None:
    mac = Mac()
    mac.pass_by(5)
    pid = mac.load(20 * GB)
    mac.pass_by(30)
    mac.end(pid, lost=19 * GB)
    assert mac.pass_by(59) == []
    assert (mac.check.bytes, mac.check.undecided_bytes) == (0, 19 * GB), "nobody counts on it"
    assert mac.pass_by(1) == [Leak(f"model-{pid}", 20 * GB, 19 * GB)]
    assert (mac.check.bytes, mac.check.undecided_bytes) == (19 * GB, 0)
    assert mac.pass_by(3600) == []
    assert mac.check.bytes == 19 * GB


def test_pages_that_return_within_a_minute_are_not_stranded() -> None:
    mac = Mac()
    mac.pass_by()
    mac.end(mac.load(20 * GB), returning=20 * GB)
    mac.pass_by(50)
    assert mac.check.undecided_bytes == 20 * GB
    mac.returning = 0
    assert mac.pass_by(60) == []
    assert (mac.check.bytes, mac.check.undecided_bytes) == (0, 0)


def test_it_comes_back_before_the_end_is_known() -> None:
    mac = Mac()
    mac.pass_by()
    pid = mac.load(20 * GB)
    mac.others += 15 * GB
    mac.pass_by(20)
    mac.wired[pid] = 0
    mac.pass_by(10)
    mac.end(pid)
    assert mac.check.undecided_bytes == 0
    assert mac.pass_by(120) == []


def test_an_end_that_gives_everything_back_holds_nothing_from_others() -> None:
    mac = Mac()
    mac.pass_by()
    mac.end(mac.load(20 * GB))
    assert mac.check.undecided_bytes == 0
    assert mac.pass_by(120) == []
    assert mac.check.undecided_bytes == 0


def test_an_unload_of_102_gb_that_gave_11_back() -> None:
    """As it was seen on an M3 Ultra of 512 GB."""
    mac = Mac(LeakCheck(512 * GB, StrandedRecord()))
    mac.pass_by()
    mac.end(mac.load(102 * GB), lost=91 * GB)
    (found,) = mac.pass_by(60)
    assert found.missing_bytes == mac.check.bytes == 91 * GB


def test_pages_that_other_programs_wire_are_theirs() -> None:
    mac = Mac()
    mac.pass_by()
    pid = mac.load(20 * GB)
    mac.others += 25 * GB
    mac.pass_by(600)
    mac.end(pid)
    assert mac.pass_by(120) == []
    assert mac.check.undecided_bytes == 0


def test_pages_that_a_worker_had_not_wired_are_not_stranded() -> None:
    mac = Mac()
    mac.pass_by()
    pid = mac.load(20 * GB, wired=0)
    mac.pass_by(30)
    mac.end(pid)
    mac.others += 18 * GB
    assert mac.pass_by(120) == []


@pytest.mark.parametrize(
    ("size", "lost", "found"),
    [
        (LEAST, LEAST, LEAST),
        (LEAST - 1, LEAST - 1, 0),
        (20 * GB, 10 * GB, 10 * GB),
        (20 * GB, 10 * GB - 1, 0),
    ],
)
def test_less_than_half_of_it_or_a_thirty_second_of_the_machine_is_not_looked_for(
    size: int, lost: int, found: int
) -> None:
    mac = Mac()
    mac.pass_by()
    mac.end(mac.load(size), lost=lost)
    mac.pass_by(120)
    assert mac.check.bytes == found


def test_living_workers_count_with_all_they_hold() -> None:
    mac = Mac()
    mac.pass_by()
    other = mac.load(10 * GB, wired=10 * GB)
    mac.end(mac.load(20 * GB), lost=20 * GB)
    mac.pass_by(10)
    successor = mac.load(10 * GB, wired=0)
    assert mac.check.undecided_bytes == 10 * GB
    (finding,) = mac.pass_by(60)
    assert finding.missing_bytes == 10 * GB
    for pid in (other, successor):
        mac.wired[pid] = 0
        mac.end(pid)
    mac.pass_by(120)
    assert mac.check.bytes == 10 * GB


def test_a_successor_that_wires_as_much_hides_nothing_that_came_back() -> None:
    mac = Mac()
    mac.pass_by()
    mac.end(mac.load(20 * GB))
    mac.load(20 * GB)
    assert mac.pass_by(120) == []
    assert mac.check.bytes == 0


def test_two_that_die_at_once_are_not_counted_twice() -> None:
    mac = Mac()
    mac.pass_by()
    first, second = mac.load(20 * GB), mac.load(10 * GB)
    mac.pass_by()
    mac.end(first, lost=20 * GB)
    mac.end(second, lost=10 * GB)
    mac.pass_by(5)
    assert mac.check.undecided_bytes == 30 * GB
    mac.pass_by(60)
    assert mac.check.bytes == 30 * GB


def test_a_return_of_one_counts_for_all_that_died_with_it() -> None:
    mac = Mac()
    mac.pass_by()
    first, second = mac.load(20 * GB), mac.load(20 * GB)
    mac.pass_by()
    mac.end(first, lost=20 * GB)
    mac.end(second)
    assert mac.pass_by(61) == []


def test_it_shrinks_when_it_turns_up() -> None:
    mac = Mac()
    mac.pass_by()
    mac.end(mac.load(20 * GB), lost=20 * GB)
    mac.pass_by(61)
    mac.others += 5 * GB
    mac.pass_by()
    assert mac.check.bytes == 20 * GB
    mac.others -= 5 * GB
    mac.lost = 12 * GB
    mac.pass_by()
    assert mac.check.bytes == 12 * GB
    mac.lost, mac.others = 0, 3 * GB
    mac.pass_by()
    assert mac.check.bytes == 0


def test_nothing_is_judged_before_a_moment_without_models_was_seen() -> None:
    mac = Mac()
    mac.end(mac.load(20 * GB), lost=20 * GB)
    assert mac.pass_by(120) == []
    assert mac.check.undecided_bytes == 0


def test_a_worker_that_nobody_has_measured_is_not_judged() -> None:
    mac = Mac()
    mac.check.ended(7, 0.0)
    mac.pass_by()
    mac.check.ended(7, 1.0)
    assert mac.check.undecided_bytes == 0


def test_wired_bytes_of_a_moment_ago_count() -> None:
    """Its memory may be gone from its footprint before its end is known, or have come just then."""
    mac = Mac()
    mac.pass_by()
    pid = mac.load(20 * GB)
    mac.pass_by(30)
    mac.held[pid] = GB
    mac.pass_by()
    mac.end(pid, lost=20 * GB)
    assert mac.pass_by(60) == [Leak(f"model-{pid}", 20 * GB, 20 * GB)]

    mac = Mac()
    mac.pass_by()
    pid = mac.load(20 * GB, wired=0)
    mac.wired[pid] = 20 * GB
    mac.pass_by()
    mac.end(pid, lost=20 * GB)
    assert mac.pass_by(60) == [Leak(f"model-{pid}", 20 * GB, 20 * GB)]


def test_pages_of_workers_killed_with_a_gateway_are_stranded_once() -> None:
    level = RECORD.wired_bytes
    mac = Mac(LeakCheck(TOTAL, msgspec.structs.replace(RECORD, bytes=0)))
    mac.others = level
    found = mac.pass_by(200)
    assert [leak.model_id for leak in found] == ["demo"]


class Machine(RuleBasedStateMachine):
    """Whatever workers do: what is found was lost, and what is lost where nothing hides it is
    found.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mac = Mac()
        self.mac.pass_by()

    @precondition(lambda self: sum(self.mac.held.values()) + self.mac.lost < TOTAL // 2)
    @rule(size=st.integers(1, 16), part=st.integers(0, 4))
    def load(self, size: int, part: int) -> None:
        self.mac.load(size * GB, wired=size * GB * part // 4)

    @precondition(lambda self: self.mac.held)
    @rule(data=st.data(), part=st.integers(0, 4))
    def compute_or_rest(self, data: st.DataObject, part: int) -> None:
        pid = data.draw(st.sampled_from(sorted(self.mac.held)))
        self.mac.wired[pid] = self.mac.held[pid] * part // 4
        self.mac.pass_by()

    @precondition(lambda self: self.mac.held)
    @rule(data=st.data(), lost=st.integers(0, 4))
    def end(self, data: st.DataObject, lost: int) -> None:
        mac = self.mac
        pid = data.draw(st.sampled_from(sorted(mac.held)))
        lost_bytes = mac.wired[pid] * lost // 4
        mac.end(pid, lost=lost_bytes, returning=mac.wired[pid] - lost_bytes)
        mac.returns_at = min(mac.returns_at, mac.now + 10)

    @precondition(lambda self: self.mac.held)
    @rule(data=st.data())
    def die_alone(self, data: st.DataObject) -> None:
        """All that it had wired is lost, and nothing else happens."""
        mac = self.mac
        self.come_back()
        mac.pass_by(61)
        pid = data.draw(st.sampled_from(sorted(mac.held)))
        hidden = sum(mac.held.values()) - sum(mac.wired.values())
        unknown = mac.lost - mac.check.bytes
        had, before = mac.wired[pid], mac.check.bytes
        mac.end(pid, lost=had)
        mac.pass_by(61)
        if not hidden and unknown <= NOISE and had >= LEAST + 2 * NOISE:
            assert mac.check.bytes >= before + had - 2 * NOISE

    @rule(seconds=st.integers(1, 70))
    def wait(self, seconds: int) -> None:
        self.mac.pass_by(seconds)

    @precondition(lambda self: self.mac.returning)
    @rule()
    def come_back(self) -> None:
        self.mac.returning = 0
        self.mac.pass_by()

    @rule(change=st.integers(-3, 3))
    def other_programs_move(self, change: int) -> None:
        """By less than what is looked for."""
        self.mac.others = SYSTEM + change * NOISE // 3
        self.mac.pass_by()

    @precondition(lambda self: self.mac.lost and not self.mac.held)
    @rule()
    def turn_up(self) -> None:
        self.mac.lost = self.mac.returning = 0
        self.mac.pass_by()

    @invariant()
    def what_is_found_was_lost(self) -> None:
        check = self.mac.check
        assert check.bytes >= 0
        assert check.undecided_bytes >= 0
        assert check.bytes <= self.mac.lost + self.mac.returning + 2 * NOISE

    @invariant()
    def what_is_withheld_is_wired(self) -> None:
        withheld = self.mac.check.bytes + self.mac.check.undecided_bytes
        assert withheld <= max(0, self.mac.level)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_the_record_survives_a_gateway_and_not_a_boot(tmp_path: Path) -> None:
    path = tmp_path / "stranded.json"
    assert read_stranded(path) == StrandedRecord()
    write_stranded(path, RECORD)
    assert read_stranded(path) == RECORD
    path.write_bytes(path.read_bytes().replace(present_boot().encode(), b"another boot"))
    assert read_stranded(path) == StrandedRecord()
    path.write_bytes(b"{")
    assert read_stranded(path) == StrandedRecord()


class TestAtStart:
    @pytest.fixture(autouse=True)
    def _host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        host = HostMemory(TOTAL, TOTAL // 2, 5 * GB, "normal")
        monkeypatch.setattr(leak_check, "host_memory", lambda: host)

    def _start(
        self,
        path: Path,
        record: StrandedRecord | None,
        *,
        follows_crash: bool = False,
        takes_over: bool = False,
    ) -> Mac:
        if record is not None:
            write_stranded(path / "stranded.json", record)
        check = leak_check_at_start(
            path / "stranded.json",
            follows_crash=follows_crash,
            takes_over=takes_over,
            platform="darwin",
        )
        assert check is not None
        return Mac(check)

    def _crashed(self, path: Path, age_s: float, *, lost: int, follows_crash: bool = True) -> Mac:
        record = msgspec.structs.replace(RECORD, at=time.time() - age_s)
        mac = self._start(path, record, follows_crash=follows_crash)
        mac.lost = lost
        return mac

    def test_only_macos_has_wired_pages_of_that_kind(self, tmp_path: Path) -> None:
        path = tmp_path / "stranded.json"
        for platform, there in (("linux", False), ("darwin", True)):
            check = leak_check_at_start(
                path, follows_crash=True, takes_over=False, platform=platform
            )
            assert (check is not None) is there

    def test_workers_that_died_with_their_gateway_are_judged(self, tmp_path: Path) -> None:
        mac = self._crashed(tmp_path, 1.0, lost=37 * GB)
        mac.pass_by()
        assert (mac.check.bytes, mac.check.undecided_bytes) == (7 * GB, 30 * GB)
        assert mac.pass_by(60) == [Leak("demo", 30 * GB, 30 * GB)]
        assert mac.check.bytes == 37 * GB

    def test_they_may_have_given_it_back(self, tmp_path: Path) -> None:
        mac = self._crashed(tmp_path, 1.0, lost=7 * GB)
        assert mac.pass_by(120) == []
        assert mac.check.bytes == 7 * GB

    @pytest.mark.parametrize(
        ("age_s", "follows_crash"), [(1.0, False), (FRESH_S + 5.0, True), (-60.0, True)]
    )
    def test_claims_are_dropped_after_an_orderly_end_or_a_long_time(
        self, tmp_path: Path, age_s: float, follows_crash: bool
    ) -> None:
        mac = self._crashed(tmp_path, age_s, lost=37 * GB, follows_crash=follows_crash)
        assert mac.pass_by(120) == []
        assert mac.check.bytes == 7 * GB

    def test_wired_bytes_before_a_load_are_known_at_once(self, tmp_path: Path) -> None:
        mac = self._start(tmp_path, None)
        mac.others = 5 * GB
        mac.end(mac.load(20 * GB), lost=20 * GB)
        mac.pass_by(61)
        assert mac.check.bytes == 20 * GB

    def test_models_that_are_taken_over_have_wired_something(self, tmp_path: Path) -> None:
        record = StrandedRecord(0, time.time(), SYSTEM, 24 * GB, (WiredClaim("demo", 20 * GB),))
        mac = self._start(tmp_path, record, takes_over=True)
        pid = mac.load(20 * GB)
        assert mac.pass_by(120) == []
        mac.end(pid, lost=20 * GB)
        mac.pass_by(61)
        assert mac.check.bytes == 20 * GB

    def test_a_record_can_not_owe_memory(self, tmp_path: Path) -> None:
        assert self._start(tmp_path, StrandedRecord(bytes=-GB)).check.bytes == 0


def test_it_is_written_when_it_has_changed_and_often_enough_for_a_crash() -> None:
    mac = Mac()
    assert mac.check.due(1000.0) is None, "nothing was read yet"
    mac.pass_by()
    assert mac.check.due(1000.0) == StrandedRecord(0, 1000.0, SYSTEM, SYSTEM)
    assert mac.check.due(9000.0) is None, "there is nothing to lose"
    pid = mac.load(20 * GB)
    claim = WiredClaim(f"model-{pid}", 20 * GB)
    assert mac.check.due(9001.0) == StrandedRecord(0, 9001.0, SYSTEM, 24 * GB, (claim,))
    assert mac.check.due(9060.0) is None
    assert mac.check.due(9061.0) is not None
    assert mac.check.due(8000.0) is not None, "the clock was set back"
    mac.end(pid, lost=20 * GB)
    mac.pass_by()
    assert mac.check.due(8001.0) is not None, "it has ended"
    mac.pass_by(60)
    assert mac.check.due(8002.0) == StrandedRecord(20 * GB, 8002.0, SYSTEM, 24 * GB)
    assert mac.check.due(9000.0) is None


class _Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at


async def test_stranded_bytes_are_emitted_written_and_withheld(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _Clock()
    monkeypatch.setattr(scheduler, "present_clock", lambda: clock)
    events = EventLog()
    written: asyncio.Queue[StrandedRecord] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    room = scheduler.MemoryScheduler(
        scheduler.MemoryLimits(40 * GB, 1.0, 0, 4096),
        Learned(tmp_path / "learned.json"),
        LeakCheck(TOTAL, StrandedRecord()),
        functools.partial(loop.call_soon_threadsafe, written.put_nowait),
        events,
        Hosts({}),
    )
    ledger = room.admission.ledger

    def pass_by(seconds: int, wired_bytes: int, workers: dict[int, LoadedWorker]) -> None:
        for _ in range(seconds):
            clock.at += 1.0
            room.check_leaks(wired_bytes, workers)

    pass_by(2, SYSTEM, {})
    for pid, wired in ((7, SYSTEM), (8, 24 * GB)):
        pass_by(2, 24 * GB, {pid: LoadedWorker("demo", 20 * GB)})
        room.gone("demo", pid)
        pass_by(1, wired, {})
        undecided = wired - SYSTEM
        assert (ledger.usable_bytes, ledger.undecided_bytes) == (40 * GB - undecided, undecided)
    pass_by(60, 24 * GB, {})
    assert (ledger.usable_bytes, ledger.undecided_bytes) == (20 * GB, 0)
    emitted = [(event.kind, event.model, event.fields) for event in events.recent(2)]
    assert emitted == [
        (
            "return",
            "demo",
            {"held_bytes": 20 * GB, "missing_bytes": 20 * GB, "wired_bytes": 24 * GB},
        ),
        ("stranded", None, {"stranded_bytes": 20 * GB}),
    ]
    async with asyncio.timeout(60):
        while (await written.get()).bytes != 20 * GB:
            pass
    await room.close()
