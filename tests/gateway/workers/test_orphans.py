"""Leftovers, found and ended: with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gateway.system.processes import (
    ProcessGoneError,
    ProcessIdentity,
    alive,
    descendants,
    identify,
    send,
)
from gateway.workers.orphans import WorkerRecord, WorkerRecords, end_orphans
from tests.support.gateway import eventually

pytestmark = pytest.mark.processes

SLEEP = "import time; time.sleep(60)"
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({path!r}, 'w').close()"
)


def _parent_of(code: str) -> str:
    start = f"subprocess.Popen([sys.executable, '-c', {code!r}])"
    return f"import subprocess, sys, time; {start}; time.sleep(60)"


PARENT = _parent_of(SLEEP)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        for child in psutil.Process(process.pid).children() if process.poll() is None else ():
            child.kill()
        process.kill()
        process.wait()


def _start(processes: list[subprocess.Popen[bytes]], code: str) -> ProcessIdentity:
    processes.append(subprocess.Popen([sys.executable, "-c", code]))
    return identify(processes[-1].pid)


@pytest.fixture
def records(tmp_path: Path) -> WorkerRecords:
    return WorkerRecords(tmp_path)


def _eventually_has_child(identity: ProcessIdentity) -> ProcessIdentity:
    children = eventually(psutil.Process(identity.pid).children)
    return identify(children[0].pid)


class TestIdentity:
    def test_a_process_is_itself(self, processes: list[subprocess.Popen[bytes]]) -> None:
        identity = _start(processes, SLEEP)
        assert identity == identify(identity.pid)
        assert alive(identity)

    def test_a_later_process_with_the_same_pid_is_another(self) -> None:
        another = ProcessIdentity(os.getpid(), identify(os.getpid()).started + "1")
        assert not alive(another)
        send(another, signal.SIGKILL)  # We would not survive it.

    def test_a_zombie_is_not_alive(self, processes: list[subprocess.Popen[bytes]]) -> None:
        identity = _start(processes, "")
        eventually(lambda: not alive(identity))
        assert psutil.Process(identity.pid).status() == psutil.STATUS_ZOMBIE
        assert not alive(identity)

    def test_nobody(self) -> None:
        with pytest.raises(ProcessGoneError):
            identify(2**22 + 1)
        assert not alive(ProcessIdentity(2**22 + 1, "1"))

    def test_descendants(self, processes: list[subprocess.Popen[bytes]]) -> None:
        top, alone = _start(processes, _parent_of(PARENT)), _start(processes, SLEEP)
        child = _eventually_has_child(top)
        grandchild = _eventually_has_child(child)
        found = descendants([top.pid, alone.pid])
        assert found == {top.pid: {child, grandchild}, alone.pid: set()}
        send(grandchild, signal.SIGKILL)
        send(child, signal.SIGKILL)


class TestSweep:
    def test_ends_what_is_recorded_and_nothing_else(
        self, processes: list[subprocess.Popen[bytes]], records: WorkerRecords
    ) -> None:
        recorded = [_start(processes, SLEEP) for _ in range(3)]
        stranger = _start(processes, SLEEP)
        for identity in recorded:
            records.add(WorkerRecord(identity, "demo"))
        orphans = end_orphans(records)
        assert {orphan.pid for orphan in orphans} == {
            process_identity.pid for process_identity in recorded
        }
        assert all(orphan.ended and orphan.name == "demo" for orphan in orphans)
        assert not any(alive(identity) for identity in recorded)
        assert alive(stranger)
        assert list(records.records()) == []
        assert end_orphans(records) == []

    def test_ends_one_that_is_stopped(
        self, processes: list[subprocess.Popen[bytes]], records: WorkerRecords
    ) -> None:
        identity = _start(processes, SLEEP)
        os.kill(identity.pid, signal.SIGSTOP)
        records.add(WorkerRecord(identity, "demo"))
        assert [end_orphan.ended for end_orphan in end_orphans(records)] == [True]
        assert not alive(identity)

    def test_ends_one_that_ignores_sigterm(
        self,
        processes: list[subprocess.Popen[bytes]],
        records: WorkerRecords,
        tmp_path: Path,
    ) -> None:
        ignores = tmp_path / "ignores"
        identity = _start(processes, f"{STUBBORN.format(path=str(ignores))}; {SLEEP}")
        eventually(ignores.exists)
        records.add(WorkerRecord(identity, "demo"))
        assert [end_orphan.ended for end_orphan in end_orphans(records)] == [True]
        assert processes[0].wait(60) == -signal.SIGKILL

    def test_ends_what_it_has_started(
        self, processes: list[subprocess.Popen[bytes]], records: WorkerRecords
    ) -> None:
        identity = _start(processes, PARENT)
        child = _eventually_has_child(identity)
        records.add(WorkerRecord(identity, "demo"))
        end_orphans(records)
        eventually(lambda: not alive(child))

    def test_spares_a_pid_that_was_given_away(
        self, processes: list[subprocess.Popen[bytes]], records: WorkerRecords, tmp_path: Path
    ) -> None:
        stranger = _start(processes, SLEEP)
        records.add(WorkerRecord(ProcessIdentity(stranger.pid, "an earlier boot:1"), "demo"))
        assert end_orphans(records) == []
        assert alive(stranger)
        assert not list(tmp_path.iterdir())

    def test_damaged_records_are_removed(self, records: WorkerRecords, tmp_path: Path) -> None:
        (tmp_path / "1.json").write_bytes(b"{")
        (tmp_path / "2.json").write_bytes(b"\xff\x00")
        (tmp_path / "3.new").write_bytes(b"")
        assert end_orphans(records) == []
        assert not list(tmp_path.iterdir())

    def test_a_record_that_cannot_be_written_is_no_disaster(self, tmp_path: Path) -> None:
        nowhere = WorkerRecords(tmp_path / "nowhere")
        nowhere.add(WorkerRecord(identify(os.getpid()), "demo"))
        nowhere.remove(os.getpid())
