"""The gateway's pulls. Each pull has a process of its own, which ends with the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from gateway.library.checks import Checks, ModelCheck
from gateway.library.description import Outlook, outlook
from gateway.library.hub_process import (
    Code,
    HubFailure,
    HubMessage,
    HubProcess,
    Planned,
    Progressed,
    PullDeaths,
    PullFinished,
    PullJob,
)
from gateway.library.reference import Reference, parse_reference
from gateway.models.check_reports import CheckStatus
from gateway.models.fleet import Fleet
from gateway.models.reload import Reloader
from gateway.system.lane import Lane
from gateway.system.refusal import Refusal
from gateway.system.state_file import read_state, write_state
from gateway.system.tasks import Tasks

logger = logging.getLogger(__name__)

# All pulls share disks and networks.
_AT_ONCE: Final = 3
_RETRY_AFTER_S: Final = 60
_REMEMBERED: Final = 50
_END_S: Final = 10.0

PullState: TypeAlias = Literal["preparing", "pulling", "checking", "done", "failed", "cancelled"]


class PullStatus(Struct, frozen=True, kw_only=True):
    """The status of a pull; null means not known yet. `model` is the name in the request,
    `repository` the one that was found for it, and `offered_as` the id that requests can use once
    it is done. `reason` says why it failed, why no bytes arrive now, or why the model that was
    pulled isn't checked. `check` is the result of its check, if pulls are checked.
    """

    id: str
    model: str
    repository: str | None = None
    state: PullState = "preparing"
    reason: str | None = None
    code: Code | None = None
    done_bytes: int | None = None
    total_bytes: int | None = None
    bytes_per_s: float | None = None
    seconds_left: float | None = None
    outlook: Outlook | None = None
    offered_as: str | None = None
    check: CheckStatus | None = None
    started_at: float
    ended_at: float | None = None

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed", "cancelled")


class _UnfinishedPull(Struct, frozen=True):
    model: str
    force: bool


class _UnfinishedPulls(Struct, frozen=True):
    """The pulls that the next gateway resumes."""

    pulls: tuple[_UnfinishedPull, ...]


class Pull:
    """One pull, with its status and its process. `resumed`: an earlier gateway started it.
    `accepted`: its plan was accepted. `finished`: all its files have arrived.
    """

    def __init__(self, pull_id: str, reference: Reference, *, force: bool, resumed: bool) -> None:
        self.reference = reference
        self.force = force
        self.resumed = resumed
        self.status = PullStatus(id=pull_id, model=str(reference), started_at=time.time())
        self.process: HubProcess | None = None
        self.deaths = PullDeaths()
        self.accepted = False
        # The check of the model that was pulled.
        self.check: ModelCheck | None = None
        self.finished = False
        self.ended = asyncio.Event()
        self._changed = asyncio.Event()

    def update(self, **fields: object) -> None:
        self.status = msgspec.structs.replace(self.status, **fields)
        self._changed.set()
        self._changed = asyncio.Event()

    async def next_change(self) -> None:
        await self._changed.wait()


class Pulls:
    """All pulls of the gateway. All methods run on the event loop, except `_call`, which the
    threads of the processes call.
    """

    def __init__(self, fleet: Fleet, reloader: Reloader, checks: Checks, state_path: Path) -> None:
        self._fleet = fleet
        self._reloader = reloader
        self._checks = checks
        self._state_path = state_path
        self._events = fleet.events
        self._ids = itertools.count(1)
        # Ids must differ from those of an earlier gateway's pulls.
        self._prefix = f"{int(time.time()):x}"
        self._pulls: dict[str, Pull] = {}
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks("pulls")
        self._lane = Lane("pulls")
        self._closing = False

    @property
    def statuses(self) -> list[PullStatus]:
        """The status of each pull, the newest pull last."""
        return [pull.status for pull in self._pulls.values()]

    def find(self, pull_id: str) -> Pull:
        """Raises: Refusal: there is no pull with this id."""
        if (pull := self._pulls.get(pull_id)) is None:
            raise Refusal("not_found", f"There is no pull {pull_id!r}, or not any more.")
        return pull

    def start(self, model: str, *, force: bool, resumed: bool = False) -> Pull:
        """Start a pull, or return the running pull of the same model. `force`: also pull a
        model that won't fit into memory. `resumed`: an earlier gateway started the pull.

        Raises:
            Refusal: `model` is no name of a model, there are too many pulls, or no process can be
                started.
        """
        try:
            reference = parse_reference(model)
        except ValueError as error:
            raise Refusal("invalid_request_error", str(error), param="model") from error
        running = [pull for pull in self._pulls.values() if not pull.status.over]
        for pull in running:
            if str(pull.reference).lower() == str(reference).lower():
                return pull
        if len(running) >= _AT_ONCE:
            names = ", ".join(pull.status.model for pull in running)
            raise Refusal(
                "queue_full",
                f"There are {len(running)} pulls already: {names}. Wait for one, or cancel it.",
                retry_after_s=_RETRY_AFTER_S,
            )
        pull = Pull(f"{self._prefix}-{next(self._ids)}", reference, force=force, resumed=resumed)
        self._start_process(pull)
        self._pulls[pull.status.id] = pull
        self._drop_oldest()
        self._write_unfinished()
        self._events.emit("pull", None, pull=pull.status.id, name=str(reference), change="began")
        return pull

    async def resume(self) -> None:
        """Start the unfinished pulls of an earlier gateway again."""
        try:
            unfinished = await self._lane.run(
                functools.partial(read_state, self._state_path, _UnfinishedPulls), _END_S, "pulls"
            )
        except OSError as error:
            logger.warning("Pulls of an earlier gateway can't be resumed: %s", error)
            return
        for pull in () if unfinished is None else unfinished.pulls:
            try:
                self.start(pull.model, force=pull.force, resumed=True)
            except Refusal as refusal:
                logger.warning("The pull of %s can't be resumed: %s", pull.model, refusal.message)

    async def cancel(self, pull: Pull) -> None:
        """Cancel a pull. Return when its process has ended. Bytes that have arrived stay. After the
        last byte only the check of the model is cancelled.
        """
        if pull.status.over:
            return
        if pull.check is not None:
            await self._checks.cancel(pull.check.model)
            return
        self._finish(pull, "cancelled")
        if pull.process is not None:
            pull.process.kill()
            await self._wait_for_end(pull)

    async def close(self) -> None:
        """End the processes of all pulls. The next gateway resumes these pulls."""
        self._closing = True
        running = [pull for pull in self._pulls.values() if not pull.ended.is_set()]
        for pull in running:
            if pull.process is not None:
                pull.process.kill()
        await asyncio.gather(*map(self._wait_for_end, running))
        await self._tasks.cancel_all()

    async def _wait_for_end(self, pull: Pull) -> None:
        try:
            async with asyncio.timeout(_END_S):
                await pull.ended.wait()
        except TimeoutError:
            logger.error("The process of the pull of %s does not end", pull.status.model)

    def _start_process(self, pull: Pull) -> None:
        """Start the process of a pull. Raises: Refusal: no process can be started."""
        settings = self._fleet.settings.hub
        known = pull.status.repository
        job = PullJob(
            known or str(pull.reference),
            settings.endpoint,
            settings.folder_path,
            goes_on=pull.resumed or known is not None,
        )
        try:
            pull.process = HubProcess(
                job,
                functools.partial(self._call, self._receive, pull),
                functools.partial(self._call, self._restart_or_fail, pull),
            )
        except OSError as error:
            raise Refusal(
                "overloaded",
                f"No process can be started for the pull: {error.strerror or error}.",
                retry_after_s=_RETRY_AFTER_S,
            ) from error

    def _call(self, method: Callable[..., None], pull: Pull, message: object) -> None:
        """Have the event loop call `method`. To be called from a thread."""
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(method, pull, message)

    def _receive(self, pull: Pull, message: HubMessage) -> None:
        if pull.status.over:
            return
        match message:
            case Planned():
                self._receive_plan(pull, message)
            case Progressed():
                known = message.total_bytes > 0
                pull.update(
                    done_bytes=message.done_bytes if known else pull.status.done_bytes,
                    total_bytes=message.total_bytes if known else pull.status.total_bytes,
                    bytes_per_s=message.bytes_per_s,
                    seconds_left=message.seconds_left,
                    reason=message.trouble,
                )
            case HubFailure():
                self._finish(pull, "failed", message.message, message.code)
            case PullFinished():
                pull.finished = True
                self._tasks.start(
                    self._offer(pull, message.repository), f"offer {message.repository}"
                )

    def _receive_plan(self, pull: Pull, plan: Planned) -> None:
        fleet = self._fleet
        expected = outlook(
            plan,
            fleet.scheduler.ledger.possible_bytes,
            fleet.process_bytes,
            fleet.settings.memory.ordinary_tokens,
        )
        pull.update(
            repository=plan.repository,
            outlook=expected,
            total_bytes=plan.total_bytes,
            done_bytes=plan.total_bytes - plan.missing_bytes,
        )
        if expected is not None and not expected.fits and not (pull.force or pull.accepted):
            self._finish(
                pull,
                "failed",
                f"{expected.sentence} Nothing was pulled. With force it is pulled anyway.",
                "insufficient_memory",
            )
            if pull.process is not None:
                pull.process.kill()
            return
        pull.accepted = True
        pull.update(state="pulling")
        if pull.process is not None:
            pull.process.accept()

    async def _offer(self, pull: Pull, repository: str) -> None:
        try:
            await self._reloader.rediscover()
            offered_as = self._id_of(repository)
        except (Refusal, OSError) as error:
            logger.warning("%s was pulled, but can't be offered: %s", repository, error)
            offered_as = None
        if pull.status.over:
            return
        reason = None
        if offered_as is not None and self._fleet.settings.hub.check_pulls:
            reason = await self._check(pull, offered_as)
        self._finish(pull, "done", reason, offered_as=offered_as)

    async def _check(self, pull: Pull, model_id: str) -> str | None:
        """Check the model that was pulled. Return a sentence if there is no verdict."""
        pull.update(state="checking", bytes_per_s=None, seconds_left=None)
        try:
            pull.check = self._checks.start(self._fleet.roster.configured[model_id].model)
            pull.update(check=(await pull.check.result()).status)
        except Refusal as refusal:
            return f"It is there, but wasn't checked: {refusal.message}"
        return None

    def _id_of(self, repository: str) -> str | None:
        """The id of the model that is this repository; None: requests can't use the repository."""
        for model_id, located in self._reloader.present.located.items():
            if located.path == repository:
                return model_id
        return None

    def _restart_or_fail(self, pull: Pull, how: str) -> None:
        if pull.status.over or self._closing or pull.finished:
            pull.ended.set()
            return
        logger.warning("The process of the pull of %s ended by %s", pull.status.model, how)
        if pull.deaths.may_restart(pull.status.done_bytes or 0):
            try:
                self._start_process(pull)
                return
            except Refusal as refusal:
                how = refusal.message
        pull.ended.set()
        self._finish(
            pull,
            "failed",
            f"Its process ended again and again ({how}). The bytes that have come stay: pull "
            "again to go on.",
            "broken",
        )

    def _finish(
        self,
        pull: Pull,
        state: PullState,
        reason: str | None = None,
        code: Code | None = None,
        offered_as: str | None = None,
    ) -> None:
        pull.update(
            state=state,
            reason=reason,
            code=code,
            offered_as=offered_as,
            bytes_per_s=None,
            seconds_left=None,
            ended_at=time.time(),
        )
        self._write_unfinished()
        status = pull.status
        self._events.emit(
            "pull", offered_as, pull=status.id, name=status.model, change=state, reason=reason
        )

    def _write_unfinished(self) -> None:
        unfinished = tuple(
            _UnfinishedPull(str(pull.reference), pull.force)
            for pull in self._pulls.values()
            if not pull.status.over
        )
        self._lane.soon(
            functools.partial(write_state, self._state_path, _UnfinishedPulls(unfinished))
        )

    def _drop_oldest(self) -> None:
        over = [pull.status.id for pull in self._pulls.values() if pull.status.over]
        for pull_id in over[: max(0, len(self._pulls) - _REMEMBERED)]:
            del self._pulls[pull_id]
