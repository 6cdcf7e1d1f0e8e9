"""The gateway's library: the models on the disks, their last use, and the search on the hub."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import msgspec

from gateway.config.model import Model
from gateway.config.model_settings import ModelSettings
from gateway.library.catalogue import (
    ModelOnDisk,
    ServedModel,
    Used,
    catalogue,
    check_own_folder,
    look_up,
    objection,
    put_aside,
    remove,
    unknown,
    with_configured,
)
from gateway.library.finder import Finder
from gateway.library.findings import LONGEST_QUERY, Findings, Room, rank_candidates, well_known
from gateway.library.hub_process import SEARCH_S, HubError, SearchJob, search_hub
from gateway.library.pulls import Pulls
from gateway.library.reference import words_of
from gateway.models.check_reports import places_of
from gateway.models.fleet import Fleet
from gateway.models.model_supervisor import ModelSupervisor
from gateway.models.reload import Reloader
from gateway.system.lane import HangsError, Lane
from gateway.system.refusal import Refusal
from gateway.system.state_file import read_state, write_state
from gateway.system.tasks import Tasks

logger = logging.getLogger(__name__)

# Returns the models that exist at the call.
Everyone: TypeAlias = Callable[[], Iterable[ModelSupervisor]]

_EVERY_S: Final = 30.0
_DISK_S: Final = 5.0


class LastUsed:
    """The last use of each model, written to a file regularly and at the gateway's end. `at` maps
    the sources of models to Unix times in seconds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.at: dict[str, float] = {}
        self._written: dict[str, float] = {}
        self._lane = Lane("last used")
        self._tasks = Tasks("last used")

    def start(self, everyone: Everyone) -> None:
        self._tasks.start(self._read(everyone), "read")

    def collect(self, everyone: Everyone) -> None:
        for supervisor in everyone():
            source, used_at = supervisor.model.source, supervisor.traffic.use.last_at
            if used_at is not None and used_at > self.at.get(source, 0.0):
                self.at[source] = used_at

    async def close(self, everyone: Everyone) -> None:
        await self._tasks.cancel_all()
        await self._write(everyone)

    async def _read(self, everyone: Everyone) -> None:
        try:
            used = await self._lane.run(
                functools.partial(read_state, self._path, Used), _DISK_S, str(self._path)
            )
        except OSError as error:
            logger.warning("The last use of models can't be read: %s", error)
            used = None
        if used is not None:
            self.at = {**used.at, **self.at}
            self._written = dict(used.at)
        self._tasks.repeat(functools.partial(self._write, everyone), "write", _EVERY_S)

    async def _write(self, everyone: Everyone) -> None:
        self.collect(everyone)
        if self.at == self._written:
            return
        present = dict(self.at)
        try:
            await self._lane.run(
                functools.partial(write_state, self._path, Used(present)), _DISK_S, str(self._path)
            )
        except OSError as error:
            logger.warning("The last use of models can't be written: %s", error)
        else:
            self._written = present


T = TypeVar("T")

_LOOK_S: Final = 20.0
# The removal of very many files from a slow disk takes long.
_REMOVE_S: Final = 600.0
# Searches run one after the other, so a search may wait for one that gets no answer.
_ANSWER_S: Final = 2 * SEARCH_S + 10.0
_RETRY_AFTER_S: Final = 30


class Library:
    """Lists and removes the models on the disks, and searches the hub. All work on files, and each
    search, is beside the event loop.
    """

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
        self._searches = Lane("search")

    async def entries(self) -> list[ModelOnDisk]:
        """All models on the disks. Raises: Refusal: the disks don't answer."""
        configuration = self._reloader.present
        found_models = await self._beside(
            self._looks,
            lambda: with_configured(self._finder.find(configuration.settings), configuration),
            _LOOK_S,
        )
        self._last_used.collect(lambda: self._fleet.roster.everyone)
        entries = catalogue(found_models, configuration, self._served(), self._last_used.at)
        reports = self._fleet.check_reports
        return [
            msgspec.structs.replace(entry, check=reports.status(places_of(self.model(entry))))
            for entry in entries
        ]

    async def find(self, name: str) -> ModelOnDisk:
        """Raises: Refusal: no model on the disks has this name, or the disks don't answer."""
        entries = await self.entries()
        entry = look_up(entries, name) or look_up(entries, self._home(name))
        if entry is None:
            raise Refusal("model_not_found", unknown(entries, name))
        return entry

    def model(self, entry: ModelOnDisk) -> Model:
        """The model of an entry: the first of those that are served, or one with the defaults."""
        for model_id in entry.ids:
            if (supervisor := self._fleet.roster.configured.get(model_id)) is not None:
                return supervisor.model
        return Model(entry.source, entry.source, ModelSettings(entry.source))

    def _home(self, name: str) -> str:
        """Where the model is that has this name, even if the model isn't served."""
        return self._reloader.present.names.get(name, name)

    async def check_removable(self, entry: ModelOnDisk) -> None:
        """Raises: Refusal: the model can't be removed."""
        await self._beside(self._looks, lambda: check_own_folder(entry), _LOOK_S)
        pulled = next(
            (
                status.id
                for status in self._pulls.statuses
                if not status.over and entry.source in (status.repository, status.model)
            ),
            None,
        )
        reason = objection(entry, self._reloader.present, self._served(), pulled)
        if reason is not None:
            raise Refusal("invalid_request_error", reason)

    async def remove(self, entry: ModelOnDisk) -> None:
        """Remove the files of a model.

        Raises:
            Refusal: the model can't be removed.
            OSError: the disks didn't answer when models were looked for again.
        """
        await self.check_removable(entry)
        aside = await self._beside(self._removals, lambda: put_aside(entry), _LOOK_S)
        await self._reloader.rediscover()
        await self._beside(self._removals, lambda: remove(aside, entry), _REMOVE_S)
        await self._fleet.check_reports.forget(entry.source)
        self._fleet.events.emit(
            "removed", None, source=entry.source, reclaimed_bytes=entry.freed_bytes
        )

    async def search(self, text: str) -> Findings:
        """The repositories of the hub for a text, or the well-known models if it is empty.

        Raises:
            Refusal: the text is too long, or the hub can't be searched.
        """
        if len(text) > LONGEST_QUERY or not text.isprintable():
            raise Refusal(
                "invalid_request_error",
                f"q: expected at most {LONGEST_QUERY} characters of a model's name.",
                param="q",
            )
        words = words_of(text)
        if not words:
            return well_known(self._room(), await self._ids_by_source())
        hub = self._fleet.settings.hub
        call = functools.partial(search_hub, SearchJob(words, hub.endpoint, hub.folder_path))
        try:
            candidates = await self._searches.run(call, _ANSWER_S, "the hub")
        except HubError as error:
            retry_after_s = None if error.retry_after_s is None else math.ceil(error.retry_after_s)
            raise Refusal("hub_unavailable", error.message, retry_after_s=retry_after_s) from error
        except HangsError as error:
            raise Refusal(
                "hub_unavailable", f"{error}: try again later.", retry_after_s=_RETRY_AFTER_S
            ) from error
        except OSError as error:
            raise Refusal(
                "overloaded",
                f"No process can be started for the search: {error.strerror or error}.",
                retry_after_s=_RETRY_AFTER_S,
            ) from error
        return rank_candidates(
            words, candidates, self._room(), await self._ids_by_source(), time.time()
        )

    def _room(self) -> Room:
        ledger = self._fleet.scheduler.admission.ledger
        # Loans that nothing needs are called back for another model, so they count as free.
        unneeded_loan_bytes = sum(
            allocation.unneeded_loan_bytes for allocation in ledger.allocations
        )
        return Room(
            ledger.free_bytes + unneeded_loan_bytes,
            ledger.possible_bytes,
            self._fleet.process_bytes,
        )

    async def _ids_by_source(self) -> dict[str, str]:
        try:
            entries = await self.entries()
        except Refusal:
            # The disks are slow; the results are of use without the ids.
            return {}
        return {
            on_disk.source: on_disk.ids[0]
            for on_disk in entries
            if on_disk.ids and on_disk.problem is None
        }

    def _served(self) -> dict[str, ServedModel]:
        return {
            model.model.id: ServedModel(
                str(model.state), model.worker is not None, model.condition.trouble
            )
            for model in self._fleet.roster.configured.values()
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
