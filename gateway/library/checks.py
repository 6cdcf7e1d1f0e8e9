"""Checks of models, one at a time, each in a process of its own beside those that serve."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sys
import time
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from gateway.config.model import Model
from gateway.library.check_process import CheckMessage, CheckProcess
from gateway.memory.check_room import CheckRoom
from gateway.memory.estimator import UnreadableFilesError
from gateway.models.check_reports import CheckReport, Places, places_of
from gateway.models.fleet import Fleet
from gateway.system.notation import format_size
from gateway.system.refusal import Refusal
from gateway.system.tasks import Tasks
from protocol.check import CHECK_S, Checked, CheckFinding, CheckModel, Section, SectionDone
from protocol.errands import Environment

logger = logging.getLogger(__name__)

_MOST_WAITING: Final = 16
_RETRY_AFTER_S: Final = 60
# Loans that are called back come within this time.
_ROOM_S: Final = 30.0
_END_S: Final = 10.0
_SECTIONS: Final[tuple[Section, ...]] = get_args(Section)
_CANCELLED: Final = Refusal("model_unavailable", "The check was cancelled.", lasting=True)
_SHUTTING_DOWN: Final = Refusal("shutting_down", "The gateway ends, and the check with it.")


class _ProcessEnd(NamedTuple):
    """How the process ended: by a failure, or as it should (None)."""

    failure: str | None


class ModelCheck:
    """One check, with its report so far. The process keeps to `seconds` by itself; its imports and
    its load of the model come on top.
    """

    def __init__(self, model: Model, seconds: float) -> None:
        self.model = model
        self.seconds = seconds
        self.report = CheckReport(model=model.id, source=model.source, started_at=time.time())
        self.ended = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def update(self, **fields: object) -> None:
        self.report = msgspec.structs.replace(self.report, **fields)
        self._changed.set()
        self._changed = asyncio.Event()

    async def next_change(self) -> None:
        await self._changed.wait()

    async def result(self) -> CheckReport:
        """The report, once the check has ended. Raises: Refusal: the check has no verdict."""
        await self.ended.wait()
        if self.report.code is not None:
            raise Refusal(self.report.code, self.report.reason or "", lasting=True)
        return self.report

    def add(self, answer: CheckMessage) -> None:
        report = self.report
        match answer:
            case Environment():
                self.update(environment=answer)
            case CheckFinding(severity=severity):
                self.update(
                    findings=(*report.findings, answer),
                    faults=report.faults + (severity == "fault"),
                    warnings=report.warnings + (severity == "warning"),
                )
            case SectionDone():
                self.update(sections=(*report.sections, answer))
            case Checked(verdict=verdict):
                self.update(verdict=verdict)

    def add_failure(self, what: str, evidence: str) -> None:
        """Add the fault that the process has failed, in the section after the last one."""
        done = len(self.report.sections)
        section = _SECTIONS[min(done, len(_SECTIONS) - 1)]
        remedy = (
            "A worker with this model may fail in the same way: see `bulkhead logs`, and report it."
        )
        self.add(CheckFinding(section, "fault", what, evidence, remedy, "bulkhead"))
        self.update(verdict="faults")


class Checks:
    """All checks of the gateway. All methods run on the event loop."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._running: dict[Places, ModelCheck] = {}
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks("checks")
        self._closing = False

    def start(self, model: Model, seconds: float = CHECK_S) -> ModelCheck:
        """Start a check, or return the one of this model that runs or waits for its turn.

        Raises:
            Refusal: the model can't be checked, or too many checks wait.
        """
        if model.is_command:
            raise Refusal(
                "invalid_request_error",
                f"{model.id!r} is a command: its program loads the model, and has to check it.",
                param="model",
            )
        if (running := self._running.get(places_of(model))) is not None:
            return running
        if len(self._running) >= _MOST_WAITING:
            raise Refusal(
                "queue_full",
                f"{len(self._running)} checks run or wait already: try again later.",
                retry_after_s=_RETRY_AFTER_S,
            )
        check = ModelCheck(model, seconds)
        self._running[places_of(model)] = check
        check.task = self._tasks.start(self._check(check), f"check {model.id}")
        return check

    def report(self, model: Model) -> CheckReport:
        """The report of the model's check that runs, or else of the last one.

        Raises: Refusal: the model was never checked.
        """
        places = places_of(model)
        if (running := self._running.get(places)) is not None:
            return running.report
        report = self._fleet.check_reports.report(places)
        if report is None:
            raise Refusal(
                "not_found", f"{model.id!r} was never checked: `bulkhead check {model.id}` does it."
            )
        # An earlier check may have known the same files by another name.
        return msgspec.structs.replace(report, model=model.id)

    async def cancel(self, model: Model) -> CheckReport:
        """Cancel the model's check, and return when its process has ended.

        Raises: Refusal: no check of this model runs.
        """
        check = self._running.get(places_of(model))
        if check is None or check.task is None:
            raise Refusal("not_found", f"No check of {model.id!r} runs.")
        check.task.cancel()
        await check.ended.wait()
        return check.report

    async def close(self) -> None:
        """End all checks, and their processes."""
        self._closing = True
        await self._tasks.cancel_all()

    async def _check(self, check: ModelCheck) -> None:
        places = places_of(check.model)
        try:
            if self._turn.locked():
                check.update(reason="another model is being checked")
            async with self._turn:
                fingerprint = await self._run(check)
            self._finish(check, "done")
            await self._fleet.check_reports.add(places, fingerprint, check.report)
        except Refusal as refusal:
            self._finish(check, "failed", refusal)
        except asyncio.CancelledError:
            self._finish(check, "cancelled", _SHUTTING_DOWN if self._closing else _CANCELLED)
        finally:
            del self._running[places]
            check.ended.set()

    async def _run(self, check: ModelCheck) -> str:
        """Run the check, and return the fingerprint of the files that it has read.

        Raises: Refusal: the check has no verdict.
        """
        model, scheduler = check.model, self._fleet.scheduler
        check.update(reason="it waits for memory")
        try:
            fingerprint = await self._fleet.check_reports.fingerprint(places_of(model))
            room = await scheduler.check_room(model)
        except (UnreadableFilesError, OSError) as error:
            raise Refusal(
                "model_unavailable", f"The files of {model.id!r} can't be read: {error}"
            ) from error
        self._refuse_full_machine(room)
        await scheduler.reserve_for_check(room, _ROOM_S)
        try:
            await self._compute(check, room)
        finally:
            scheduler.free_from_check()
        return fingerprint

    def _refuse_full_machine(self, room: CheckRoom) -> None:
        """Raises: Refusal: other programs hold the memory that the budget would leave."""
        readings = self._fleet.readings
        memory = readings.host if readings.card is None else readings.card
        if room.least_bytes > memory.available_bytes:
            raise Refusal(
                "insufficient_memory",
                f"A check of {room.model_id!r} loads it into a process of its own, which needs "
                f"{format_size(room.least_bytes)}, and the machine has "
                f"{format_size(memory.available_bytes)} available: end other programs first.",
                lasting=True,
            )

    async def _compute(self, check: ModelCheck, room: CheckRoom) -> None:
        model = check.model
        answers: asyncio.Queue[CheckMessage | _ProcessEnd] = asyncio.Queue()
        ended = asyncio.Event()

        def on_end(failure: str | None) -> None:
            answers.put_nowait(_ProcessEnd(failure))
            ended.set()

        try:
            process = CheckProcess(
                self._order(check, room),
                model.settings.interpreter,
                functools.partial(self._call, answers.put_nowait),
                functools.partial(self._call, on_end),
            )
        except OSError as error:
            raise Refusal(
                "overloaded",
                f"No process can be started for the check: {error.strerror or error}.",
                retry_after_s=_RETRY_AFTER_S,
            ) from error
        check.update(state="running", reason=None)
        reading = self._loop.create_task(_read(check, answers))
        needed = self._loop.create_task(self._fleet.scheduler.until_needed(room))
        limit_s = self._fleet.settings.workers.load_timeout_s + check.seconds
        try:
            await asyncio.wait(
                {reading, needed}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in (reading, needed):
                task.cancel()
            process.kill()
            await _wait_for_end(ended, model.id)
        if reading.done() and not reading.cancelled():
            _judge_end(check, reading.result())
        elif needed.done() and not needed.cancelled():
            raise Refusal(
                "model_unavailable",
                f"The check of {model.id!r} was ended, as a model that serves needs its memory: "
                "try again later.",
                retry_after_s=_RETRY_AFTER_S,
            )
        else:
            check.add_failure("The check did not end.", f"It took longer than {limit_s:g} s.")

    def _order(self, check: ModelCheck, room: CheckRoom) -> CheckModel:
        model = check.model
        estimated = self._fleet.scheduler.estimate_of(model.id)
        configured = model.settings.context_tokens
        return CheckModel(
            model.source,
            model.adapter,
            model.draft,
            seconds=check.seconds,
            context_tokens=configured if estimated is None else estimated.context_tokens,
            kv_bits=model.settings.kv_bits,
            limit_bytes=room.granted_bytes,
        )

    def _call(self, call: Callable[..., None], answer: object) -> None:
        """Have the event loop call `call`. To be called from a thread."""
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, answer)

    def _finish(
        self,
        check: ModelCheck,
        state: Literal["done", "failed", "cancelled"],
        refusal: Refusal | None = None,
    ) -> None:
        check.update(
            state=state,
            reason=None if refusal is None else refusal.message,
            code=None if refusal is None else refusal.code,
            verdict=check.report.verdict if refusal is None else None,
            ended_at=time.time(),
        )
        report = check.report
        self._fleet.events.emit(
            "checked",
            report.model,
            state=state,
            verdict=report.verdict,
            faults=report.faults,
            warnings=report.warnings,
            reason=report.reason,
        )


async def _read(
    check: ModelCheck, answers: asyncio.Queue[CheckMessage | _ProcessEnd]
) -> _ProcessEnd:
    """Add the answers to the report, up to the end of the process."""
    while not isinstance(answer := await answers.get(), _ProcessEnd):
        check.add(answer)
    return answer


async def _wait_for_end(ended: asyncio.Event, model_id: str) -> None:
    try:
        async with asyncio.timeout(_END_S):
            await ended.wait()
    except TimeoutError:
        logger.error("The process of the check of %s does not end", model_id)


def _judge_end(check: ModelCheck, end: _ProcessEnd) -> None:
    """Note how the process has ended. Raises: Refusal: no worker can run in the environment."""
    if check.report.verdict is not None:
        return
    failure = end.failure or "it ended too early"
    if check.report.environment is None:
        python = check.model.settings.interpreter or sys.executable
        raise Refusal(
            "model_unavailable",
            f"No process of {python} can check {check.model.id!r}: {failure}.",
            lasting=True,
        )
    check.add_failure("The process of the check died.", f"It ended by {failure}.")
