"""The memory of a command: of its guard, and of all processes that it has started."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gateway.system.memory import FootprintGauge, mapped_bytes
from gateway.system.memory_reading import Footprint, FootprintError
from protocol.process_tree import CommandProcesses

# How often all processes are looked through for those that have lost their parents, and for what
# they have mapped.
_LOOK_S: Final = 10.0


class TreeGauge:
    """Reads the footprint of a guard and of the processes of its `command`. Of the command's
    `files` it counts what they have mapped once the command is `ready`: a server that
    reads through a mapping into memory of its own needs no mapped page again.
    """

    def __init__(
        self,
        guard_pid: int,
        command: CommandProcesses,
        files: tuple[str, ...],
        ready: Callable[[], bool],
    ) -> None:
        self._guard_pid = guard_pid
        self._named = files
        self._ready = ready
        self._mapped_bytes = 0
        self._mapped_at = -math.inf
        self._command = command
        self._gauges = {guard_pid: FootprintGauge(guard_pid)}
        self._strays: set[int] = set()
        self._looked_at = -math.inf

    def read(self) -> Footprint:
        """The sum of all processes, without a peak: their peaks were at different times.

        Raises:
            FootprintError: the guard's footprint can't be read.
        """
        guard = self._gauges[self._guard_pid].read()
        footprints = [guard]
        others = self._others()
        for pid in others:
            # Processes end while they are looked at.
            with contextlib.suppress(FootprintError):
                footprints.append(self._gauges.setdefault(pid, FootprintGauge(pid)).read())
        return Footprint(
            host_bytes=sum(footprint.host_bytes for footprint in footprints) + self._mapped(others),
            host_peak_bytes=None,
            card_bytes=sum(footprint.card_bytes for footprint in footprints),
        )

    def _mapped(self, pids: set[int]) -> int:
        now = time.monotonic()
        if self._named and self._ready() and now - self._mapped_at >= _LOOK_S:
            self._mapped_at = now
            files = set(_real_files(self._named))
            self._mapped_bytes = sum(mapped_bytes(pid, files) for pid in pids)
        return self._mapped_bytes

    def _others(self) -> set[int]:
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._strays = {process.pid for process in self._command.all()}
        others = self._strays | {process.pid for process in self._command.below()}
        self._gauges = {
            pid: gauge
            for pid, gauge in self._gauges.items()
            if pid == self._guard_pid or pid in others
        }
        return others


def _real_files(named: tuple[str, ...]) -> Iterator[str]:
    """The files, and those in the folders, without links: as the system names what is mapped."""
    for place in named:
        yield os.path.realpath(place)
        for folder, _, names in os.walk(place):
            yield from (os.path.realpath(Path(folder) / name) for name in names)
