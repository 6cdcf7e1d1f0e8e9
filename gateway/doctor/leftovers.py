"""Workers of gateways that are gone. They are looked at, not ended."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

import psutil
from msgspec import Struct

from gateway.doctor.finding import Finding, ok, warning
from gateway.doctor.installation import Installation
from gateway.doctor.running import is_stopped
from gateway.system.memory import footprint
from gateway.system.memory_reading import FootprintError
from gateway.system.notation import format_size
from gateway.system.processes import alive
from gateway.system.state_dir import StateDir
from gateway.workers.leftovers import WorkerRecords


class Leftover(Struct, frozen=True):
    """A worker that lives without its gateway; bytes are None if they can't be read."""

    pid: int
    name: str
    footprint_bytes: int | None
    stopped: bool = False


def look_at_leftovers(installation: Installation) -> Iterator[Finding]:
    holder = installation.running().holder
    leftovers = _leftovers(installation.state_dir, None if holder is None else holder.pid)
    yield from judge_leftovers(leftovers, gateway_runs=holder is not None)


def _leftovers(state_dir: StateDir, gateway_pid: int | None) -> list[Leftover]:
    """Recorded workers that live, and aren't those of the gateway that runs."""
    found = []
    for record in WorkerRecords(state_dir.workers).recorded():
        pid = record.process.pid
        with contextlib.suppress(psutil.Error):
            if alive(record.process) and psutil.Process(pid).ppid() != gateway_pid:
                found.append(Leftover(pid, record.name, _footprint_bytes(pid), is_stopped(pid)))
    return found


def _footprint_bytes(pid: int) -> int | None:
    try:
        return footprint(pid).current_bytes
    except FootprintError:
        return None


def judge_leftovers(leftovers: Collection[Leftover], *, gateway_runs: bool) -> Iterator[Finding]:
    for each in leftovers:
        size = each.footprint_bytes
        held = "" if size is None else f" and holds {format_size(size)}"
        state = "was stopped" if each.stopped else "still runs"
        yield warning(
            "leftovers",
            f"Worker {each.pid} ({each.name}) of a gateway that is gone {state}{held}.",
            _remedy(each, gateway_runs=gateway_runs),
        )
    if not leftovers:
        yield ok("leftovers", "No worker of an earlier gateway is left.")


def _remedy(leftover: Leftover, *, gateway_runs: bool) -> str:
    if leftover.stopped:
        return f"Let it go on, so that it ends by itself: `kill -CONT {leftover.pid}`."
    if gateway_runs:
        return f"End it: `kill {leftover.pid}`. If it stays, a restart of the machine ends it."
    return (
        f"The next start of a gateway on this state folder ends it, as does `kill {leftover.pid}`."
    )
