from __future__ import annotations

import re
from pathlib import Path

from gateway.workers.worker_log import WorkerLog
from tests.support.gateway import eventually

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def _text(path: Path) -> list[str]:
    """The lines without their times, which each has."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    assert all(re.match(STAMP + " ", line) for line in lines)
    return [line.partition(" ")[2] for line in lines]


def test_the_file_has_all_workers_and_memory_the_present_one(tmp_path: Path) -> None:
    path = tmp_path / "demo.log"
    first = WorkerLog(path)
    first.mark_start(10, 1)
    first.add("one")
    first.add("")
    assert first.tail(10) == ["one", ""]
    first.mark_start(11, 2)
    assert first.tail(10) == []
    # It may not print anything: the mark doesn't wait for that.
    eventually(lambda: len(_text(path)) == 4)
    first.close()

    after_a_restart = WorkerLog(path)
    after_a_restart.mark_start(12, 1)
    after_a_restart.add("zwölf")
    assert after_a_restart.tail(1) == ["zwölf"]
    assert after_a_restart.tail(0) == []
    after_a_restart.close()
    assert _text(path) == [
        "-- worker started: pid 10, incarnation 1 --",
        "one",
        "",
        "-- worker started: pid 11, incarnation 2 --",
        "-- worker started: pid 12, incarnation 1 --",
        "zwölf",
    ]


def test_memory_goes_on_without_a_disk(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    log = WorkerLog(tmp_path / "logs" / "demo.log")
    log.mark_start(10, 1)
    for number in range(2000):
        log.add(str(number))
    assert log.tail(2) == ["1998", "1999"]
    assert len(log.tail(5000)) == 1000
    log.close()
