"""Workers of the gateway that runs which somebody has stopped (SIGSTOP)."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

import psutil
from msgspec import Struct

from gateway.doctor.finding import Finding, ok, warning
from gateway.doctor.installation import Installation
from gateway.doctor.running import is_stopped
from gateway.system.processes import alive
from gateway.workers.leftovers import WorkerRecords


class StoppedWorker(Struct, frozen=True):
    """`model` is None for one that has none, such as a spare."""

    pid: int
    model: str | None


def look_at_workers(installation: Installation) -> Iterator[Finding]:
    running = installation.running()
    if running.holder is None:
        yield ok("workers", "There are none, as no gateway runs.")
        return
    stopped = []
    for record in WorkerRecords(installation.state_dir.workers).recorded():
        pid = record.process.pid
        with contextlib.suppress(psutil.Error):
            if not alive(record.process) or psutil.Process(pid).ppid() != running.holder.pid:
                continue
            if is_stopped(pid):
                stopped.append(StoppedWorker(pid, running.models.get(pid)))
    yield from judge_workers(stopped)


def judge_workers(stopped: Collection[StoppedWorker]) -> Iterator[Finding]:
    for each in stopped:
        name = "of no model" if each.model is None else each.model
        other = "" if each.model is None else f", `bulkhead restart {each.model}` replaces it"
        yield warning(
            "workers",
            f"Worker {each.pid} ({name}) was stopped, so it does nothing.",
            f"`kill -CONT {each.pid}` lets it go on{other}.",
        )
    if not stopped:
        yield ok("workers", "None was stopped.")
