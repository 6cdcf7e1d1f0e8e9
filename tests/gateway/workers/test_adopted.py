"""A worker that another gateway has started: its end is noticed, and only its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.system.child import ExitStatus
from gateway.system.processes import ProcessGoneError, ProcessIdentity, identify
from gateway.workers.orphans import WorkerRecord, WorkerRecords
from gateway.workers.process import AdoptedProcess
from gateway.workers.worker_log import WorkerLog
from tests.support.gateway import eventually

pytestmark = pytest.mark.processes

# Its parent is gone by the time, as a gateway is that was replaced.
_ORPHAN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; print('here'); sys.stdin.read()"])
print(child.pid, flush=True)
"""


@pytest.fixture
def orphan() -> Iterator[tuple[ProcessIdentity, subprocess.Popen[bytes]]]:
    parent = subprocess.Popen(
        [sys.executable, "-u", "-c", _ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    identity = identify(pid)
    parent.wait(60)
    yield identity, parent
    assert parent.stdin is not None
    parent.stdin.close()
    parent.stdout.close()


class _Exits:
    def __init__(self) -> None:
        self.statuses: list[ExitStatus] = []
        self.came = threading.Event()

    def __call__(self, status: ExitStatus) -> None:
        self.statuses.append(status)
        self.came.set()


@pytest.fixture
def records(tmp_path: Path) -> WorkerRecords:
    (tmp_path / "workers").mkdir()
    return WorkerRecords(tmp_path / "workers")


def test_adopted_process_reports_last_lines_and_end(
    orphan: tuple[ProcessIdentity, subprocess.Popen[bytes]], records: WorkerRecords, tmp_path: Path
) -> None:
    identity, parent = orphan
    assert parent.stdout is not None
    records.add(WorkerRecord(identity, "m"))
    log, exits = WorkerLog(tmp_path / "m.log"), _Exits()
    adopted = AdoptedProcess(identity, os.dup(parent.stdout.fileno()), log, records, exits)
    adopted.read_output(b"I am ")
    eventually(lambda: log.tail(1) == ["I am here"])
    adopted.send_signal(signal.SIGKILL)
    assert exits.came.wait(60)
    # Only its parent could learn more.
    assert str(exits.statuses[0]) == "an unknown status"
    assert not list(records.records())
    adopted.send_signal(signal.SIGKILL)
    log.close()


def test_handed_over_process_is_not_reported(
    orphan: tuple[ProcessIdentity, subprocess.Popen[bytes]], records: WorkerRecords, tmp_path: Path
) -> None:
    identity, parent = orphan
    assert parent.stdout is not None
    records.add(WorkerRecord(identity, "m"))
    left, exits = _Exits(), _Exits()
    log = WorkerLog(tmp_path / "m.log")
    outputs = [os.dup(parent.stdout.fileno()) for _ in range(2)]
    first = AdoptedProcess(identity, outputs[0], log, records, left)
    first.read_output(b"")
    eventually(lambda: log.tail(1) == ["here"])
    rest = first.hand_over()
    second = AdoptedProcess(identity, outputs[1], log, records, exits)
    second.read_output(rest)
    second.send_signal(signal.SIGKILL)
    assert exits.came.wait(60)
    assert not left.statuses
    log.close()


def test_ended_process_cannot_be_adopted(
    orphan: tuple[ProcessIdentity, subprocess.Popen[bytes]], records: WorkerRecords, tmp_path: Path
) -> None:
    identity, _ = orphan
    other = ProcessIdentity(identity.pid, "another start")
    with pytest.raises(ProcessGoneError):
        AdoptedProcess(other, -1, WorkerLog(tmp_path / "m.log"), records, _Exits())
