"""The reports of the last checks of models, and their file in the state folder."""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from gateway.config.model import Model
from gateway.config.model_folders import find_folder
from gateway.system.lane import Lane
from gateway.system.refusal import Code
from gateway.system.state_file import make_folder, read_state, write_state
from gateway.system.tasks import Tasks
from protocol.check import CheckFinding, SectionDone, Verdict
from protocol.errands import Environment

logger = logging.getLogger(__name__)

CheckState: TypeAlias = Literal["waiting", "running", "done", "failed", "cancelled"]
# The source of a model, its adapter and its draft model, as `Model` has them.
Places: TypeAlias = tuple[str, ...]

_MOST_REPORTS: Final = 500
_MOST_FILES: Final = 10_000
_LOOK_EVERY_S: Final = 10.0
_DISK_S: Final = 10.0


class CheckStatus(Struct, frozen=True):
    """The result of a model's last check, which ended at the Unix time `at`. `stale`: the model's
    files have changed since.
    """

    verdict: Verdict
    at: float
    faults: int
    warnings: int
    stale: bool = False


class CheckReport(Struct, frozen=True, kw_only=True):
    """A check of a model, which runs or has ended. `reason` says why it waits, or why it has failed
    or was cancelled; `code` is the error code of that. `environment` has the versions that the
    model was computed with. `stale`: the model's files have changed since. Times are Unix times.
    """

    model: str
    source: str
    state: CheckState = "waiting"
    reason: str | None = None
    code: Code | None = None
    verdict: Verdict | None = None
    faults: int = 0
    warnings: int = 0
    sections: tuple[SectionDone, ...] = ()
    findings: tuple[CheckFinding, ...] = ()
    environment: Environment | None = None
    stale: bool = False
    started_at: float
    ended_at: float | None = None

    @property
    def over(self) -> bool:
        return self.state not in ("waiting", "running")

    @property
    def status(self) -> CheckStatus | None:
        """None: the check has no verdict."""
        if self.verdict is None or self.ended_at is None:
            return None
        return CheckStatus(self.verdict, self.ended_at, self.faults, self.warnings, self.stale)


class _StoredReport(Struct, frozen=True):
    """A report with the places of its model's files, and their fingerprint when it began."""

    places: Places
    fingerprint: str
    report: CheckReport


class _StoredReports(Struct, frozen=True):
    reports: tuple[_StoredReport, ...]


def places_of(model: Model) -> Places:
    return tuple(place for place in (model.source, model.adapter, model.draft) if place is not None)


def fingerprint(places: Places) -> str:
    """A digest that changes with the names, sizes and times of the files. Blocks.

    Raises: OSError: the files can't be read.
    """
    digest = hashlib.sha256()
    for place in places:
        folder = find_folder(place)
        for line in sorted(itertools.islice(_lines(folder), _MOST_FILES)):
            digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _lines(folder: Path) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(parent, name) for name in names if not name.startswith(".")):
            status = path.stat()
            yield f"{path.relative_to(folder)} {status.st_size} {status.st_mtime_ns}\n"


def read_reports(path: Path) -> list[CheckReport]:
    """The reports in the file, for a program other than the gateway. Blocks."""
    stored = read_state(path, _StoredReports)
    if stored is None:
        return []
    changed = _stale(stored.reports)
    return [
        msgspec.structs.replace(kept.report, stale=kept.places in changed)
        for kept in stored.reports
    ]


class CheckReports:
    """The last report of each model that was checked to the end. Files are read and written beside
    the event loop.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reports: dict[Places, _StoredReport] = {}
        self._stale: set[Places] = set()
        self._lane = Lane("check reports")
        self._tasks = Tasks("check reports")

    def start(self) -> None:
        self._tasks.start(self._start(), "read")

    async def close(self) -> None:
        await self._tasks.cancel_all()

    def report(self, places: Places) -> CheckReport | None:
        stored = self._reports.get(places)
        if stored is None:
            return None
        return msgspec.structs.replace(stored.report, stale=places in self._stale)

    def status(self, places: Places) -> CheckStatus | None:
        report = self.report(places)
        return None if report is None else report.status

    async def look(self) -> None:
        """Look which models' files have changed since their checks."""
        stored = tuple(self._reports.values())
        if not stored:
            return
        try:
            self._stale = await self._lane.run(
                functools.partial(_stale, stored), _DISK_S, "the models' files"
            )
        except OSError as error:
            logger.debug("%s", error)

    async def fingerprint(self, places: Places) -> str:
        """Raises: OSError: the files can't be read."""
        call = functools.partial(fingerprint, places)
        return await self._lane.run(call, _DISK_S, places[0])

    async def add(self, places: Places, found: str, report: CheckReport) -> None:
        """Keep a report; the files had the fingerprint `found` when the check began. An incomplete
        check doesn't replace a complete one of the same files by the same versions.
        """
        last = self._reports.get(places)
        if (
            last is not None
            and report.verdict == "incomplete" != last.report.verdict
            and (last.fingerprint, last.report.environment) == (found, report.environment)
        ):
            return
        self._reports.pop(places, None)
        self._reports[places] = _StoredReport(places, found, report)
        while len(self._reports) > _MOST_REPORTS:
            del self._reports[next(iter(self._reports))]
        await self._write()
        await self.look()

    async def forget(self, source: str) -> None:
        """Forget the reports of a model that was removed from the disk."""
        of_source = [places for places in self._reports if places[0] == source]
        for places in of_source:
            del self._reports[places]
        if of_source:
            await self._write()

    async def _start(self) -> None:
        try:
            stored = await self._lane.run(
                functools.partial(read_state, self._path, _StoredReports), _DISK_S, str(self._path)
            )
        except OSError as error:
            logger.warning("The reports of checks can't be read: %s", error)
            stored = None
        if stored is not None:
            self._reports = {kept.places: kept for kept in stored.reports} | self._reports
        self._tasks.repeat(self.look, "look", _LOOK_EVERY_S)

    async def _write(self) -> None:
        stored = _StoredReports(tuple(self._reports.values()))

        def write() -> None:
            make_folder(self._path.parent)
            write_state(self._path, stored)

        try:
            await self._lane.run(write, _DISK_S, str(self._path))
        except OSError as error:
            logger.warning("The reports of checks can't be written: %s", error)


def _stale(reports: tuple[_StoredReport, ...]) -> set[Places]:
    return {stored.places for stored in reports if _has_changed(stored)}


def _has_changed(stored: _StoredReport) -> bool:
    try:
        return fingerprint(stored.places) != stored.fingerprint
    except FileNotFoundError:
        return True
    except OSError:
        # The disk is away; the files are as they were.
        return False
