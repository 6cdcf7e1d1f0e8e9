"""The models on the disks, as the gateway knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from gateway.library.catalogue import (
    Entry,
    Holder,
    catalogue,
    look_up,
    objection,
    unknown,
    with_configured,
)
from gateway.library.finder import Finder
from gateway.library.hub.pulls import Pulls
from gateway.library.last_used import LastUsed
from gateway.library.removal import put_aside, remove
from gateway.models.fleet import Fleet
from gateway.models.reload import Reloader
from gateway.system.lane import Lane
from gateway.system.refusal import Refusal

T = TypeVar("T")

_LOOK_S: Final = 20.0
# For very many files on a slow disk.
_REMOVE_S: Final = 600.0


class Library:
    """Looks beside the event loop."""

    def __init__(
        self, finder: Finder, fleet: Fleet, reloader: Reloader, pulls: Pulls, last_used: LastUsed
    ) -> None:
        self._finder = finder
        self._fleet = fleet
        self._reloader = reloader
        self._pulls = pulls
        self._last_used = last_used
        self._looks = Lane("library")
        self._removals = Lane("removals")

    async def entries(self) -> list[Entry]:
        """Raises: Refusal, if the disks don't answer."""
        configuration = self._reloader.present
        found = await self._beside(
            self._looks,
            lambda: with_configured(self._finder.find(configuration.settings), configuration),
            _LOOK_S,
        )
        self._last_used.note(lambda: self._fleet.roster.everyone)
        return catalogue(found, configuration, self._holders(), self._last_used.at)

    async def find(self, name: str) -> Entry:
        """Raises: Refusal."""
        entries = await self.entries()
        if (entry := look_up(entries, name)) is None:
            raise Refusal("model_not_found", unknown(entries, name))
        return entry

    async def check_removable(self, entry: Entry) -> None:
        """Raises: Refusal."""
        pulled = next(
            (
                each.id
                for each in self._pulls.statuses
                if not each.over and entry.source in (each.repository, each.model)
            ),
            None,
        )
        reason = objection(entry, self._reloader.present, self._holders(), pulled)
        if reason is not None:
            raise Refusal("invalid_request_error", reason)

    async def remove(self, entry: Entry) -> None:
        """Raises: Refusal."""
        await self.check_removable(entry)
        aside = await self._beside(self._removals, lambda: put_aside(entry), _LOOK_S)
        await self._reloader.rediscover()
        await self._beside(self._removals, lambda: remove(aside, entry), _REMOVE_S)
        self._fleet.events.emit(
            "removed", None, source=entry.source, reclaimed_bytes=entry.size_bytes
        )

    def _holders(self) -> dict[str, Holder]:
        return {
            each.model.id: Holder(str(each.state), each.worker is not None, each.condition.trouble)
            for each in self._fleet.roster.configured.values()
        }

    async def _beside(self, lane: Lane, call: Callable[[], T], deadline_s: float) -> T:
        try:
            return await lane.run(call, deadline_s, "the disk of the models")
        except ValueError as error:
            raise Refusal("invalid_request_error", str(error)) from error
        except OSError as error:
            raise Refusal(
                "internal_error", f"{error.filename or 'The disk'}: {error.strerror or error}."
            ) from error
