"""Ending what an earlier gateway on this state folder has left behind."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor  # noqa: TID251 - all of it ends below
from typing import Final

from msgspec import Struct

from gateway.system.memory import footprint
from gateway.system.memory_reading import FootprintError
from gateway.system.processes import ProcessIdentity, alive, descendants, send
from gateway.workers import ladder
from gateway.workers.records import WorkerRecord, WorkerRecords

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.05
_AT_ONCE: Final = 8


class Swept(Struct, frozen=True):
    """A leftover that was found, and whether it is gone."""

    pid: int
    name: str
    ended: bool
    seconds: float


def sweep(records: WorkerRecords) -> list[Swept]:
    """End recorded workers that still run, side by side. Blocks for as long as their memory takes.

    A worker without its gateway ends by itself. One that can't was stopped, so it is continued;
    what doesn't go then is killed.
    """
    leftovers = []
    for record in records.leftovers():
        if alive(record.process):
            leftovers.append(record)
        else:
            records.remove(record.process.pid)
    if not leftovers:
        return []
    below = descendants(each.process.pid for each in leftovers)
    with ThreadPoolExecutor(_AT_ONCE, "sweep") as pool:
        swept = list(pool.map(lambda record: _end(record, below[record.process.pid]), leftovers))
    for each in swept:
        if each.ended:
            records.remove(each.pid)
    return swept


def _end(record: WorkerRecord, children: Iterable[ProcessIdentity]) -> Swept:
    process = record.process
    logger.warning("Ending worker %d of an earlier gateway (%s)", process.pid, record.name)
    began = time.monotonic()
    for rung in ladder.orphaned(_footprint_bytes(process.pid)):
        if rung.step is ladder.Step.TERMINATE:
            send(process, signal.SIGTERM, signal.SIGCONT)
        else:
            send(process, signal.SIGKILL)
        if _gone_within(process, rung.deadline_s):
            break
    for child in children:
        send(child, signal.SIGKILL)
    seconds = time.monotonic() - began
    ended = not alive(process)
    if ended:
        logger.warning("Worker %d ended after %.2f s", process.pid, seconds)
    else:
        logger.error("Worker %d survived SIGKILL; its memory stays taken", process.pid)
    return Swept(process.pid, record.name, ended, seconds)


def _gone_within(process: ProcessIdentity, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _footprint_bytes(pid: int) -> int | None:
    try:
        return footprint(pid).current_bytes
    except FootprintError:
        return None
