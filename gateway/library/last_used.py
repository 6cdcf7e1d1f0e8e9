"""When models were last used, beyond the life of a gateway."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct

from gateway.models.compartment import Compartment
from gateway.system.lane import Lane
from gateway.system.state.state_file import read_state, write_state
from gateway.system.tasks import Tasks

logger = logging.getLogger(__name__)

# Those that there are by then.
Everyone: TypeAlias = Callable[[], Iterable[Compartment]]

_EVERY_S: Final = 30.0
_DISK_S: Final = 5.0


class Used(Struct, frozen=True):
    """Unix times by sources."""

    at: dict[str, float]


class LastUsed:
    """Noted now and then, and at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.at: dict[str, float] = {}
        self._written: dict[str, float] = {}
        self._lane = Lane("last used")
        self._tasks = Tasks("last used")

    def start(self, everyone: Everyone) -> None:
        self._tasks.start(self._begin(everyone), "read")

    def note(self, everyone: Everyone) -> None:
        for each in everyone():
            used_at = each.traffic.use.last_at
            if used_at is not None and used_at > self.at.get(each.model.source, 0.0):
                self.at[each.model.source] = used_at

    async def close(self, everyone: Everyone) -> None:
        await self._tasks.cancel_all()
        await self._write(everyone)

    async def _begin(self, everyone: Everyone) -> None:
        try:
            found = await self._lane.run(
                functools.partial(read_state, self._path, Used), _DISK_S, str(self._path)
            )
        except OSError as error:
            logger.warning("It isn't known when models were used before: %s", error)
            found = None
        if found is not None:
            self.at = {**found.at, **self.at}
            self._written = dict(found.at)
        self._tasks.keep(functools.partial(self._write, everyone), "write", _EVERY_S)

    async def _write(self, everyone: Everyone) -> None:
        self.note(everyone)
        if self.at == self._written:
            return
        present = dict(self.at)
        try:
            await self._lane.run(
                functools.partial(write_state, self._path, Used(present)), _DISK_S, str(self._path)
            )
        except OSError as error:
            logger.warning("When models were used is not written down: %s", error)
        else:
            self._written = present
