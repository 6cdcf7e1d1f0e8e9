"""The pull by `bulkhead pull` itself, for a machine on which no gateway runs yet."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator

from msgspec.structs import replace

from gateway.cli.failure import CommandError
from gateway.cli.pull import OutlookReading, PullReading
from gateway.config.layers import ConfigError
from gateway.config.model_settings import ModelSettings
from gateway.config.read import read_settings
from gateway.config.settings import Flags, Settings
from gateway.library.description import Outlook, outlook
from gateway.library.findings import Room
from gateway.library.hub_process import (
    HubFailure,
    HubMessage,
    HubProcess,
    Planned,
    Progressed,
    PullDeaths,
    PullFinished,
    PullJob,
)
from gateway.memory.fitting import Learned, budget_bytes
from gateway.memory.forecast import possible_beside
from gateway.memory.leak_check import read_stranded
from gateway.system.state_dir import StateDir


def room_here(settings: Settings) -> Room:
    """The memory for another model on this machine, where no gateway runs: nothing is loaded."""
    state_dir = StateDir.of(settings.gateway.state_dir)
    learned = Learned(state_dir.learned_path)
    usable_bytes = budget_bytes(settings.memory) - read_stranded(state_dir.stranded_path).bytes
    without_group = ModelSettings(path="")
    possible = possible_beside(without_group, settings, usable_bytes, learned)
    return Room(possible.bytes, possible.bytes, learned.process_bytes)


class PullHere:
    """Pulls a model without a gateway, and yields the readings that a gateway would send. The pull
    ends when the iteration over `readings` ends.
    """

    def __init__(self, model: str, *, force: bool) -> None:
        try:
            self._settings = read_settings(Flags(), os.environ)
        except ConfigError as error:
            raise CommandError(str(error)) from error
        self._model = model
        self._force = force
        self._process: HubProcess | None = None
        self._messages: queue.SimpleQueue[HubMessage | str] = queue.SimpleQueue()

    def readings(self) -> Iterator[PullReading]:
        """The readings of the pull until its end.

        Raises:
            CommandError: the process of the pull can't be started, or ended again and again.
        """
        reading = PullReading(id="", model=self._model, state="preparing")
        deaths = PullDeaths()
        try:
            self._start()
            yield reading
            while reading.state not in ("done", "failed"):
                message = self._messages.get()
                if isinstance(message, str):
                    if not deaths.may_restart(reading.done_bytes or 0):
                        raise CommandError(f"The pull's process ended again and again ({message}).")
                    self._start(goes_on=reading.total_bytes is not None)
                    continue
                reading = self._next(reading, message)
                yield reading
        finally:
            self.cancel()

    def cancel(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _start(self, *, goes_on: bool = False) -> None:
        hub = self._settings.hub
        order = PullJob(self._model, hub.endpoint, hub.at, goes_on=goes_on)
        try:
            self._process = HubProcess(order, self._messages.put, self._messages.put)
        except OSError as error:
            raise CommandError(f"No process can be started: {error.strerror}.") from error

    def _next(self, reading: PullReading, message: HubMessage) -> PullReading:
        match message:
            case Planned():
                return self._planned(reading, message)
            case Progressed():
                return replace(
                    reading,
                    done_bytes=message.done_bytes,
                    total_bytes=message.total_bytes or None,
                    bytes_per_s=message.bytes_per_s,
                    seconds_left=message.seconds_left,
                    reason=message.trouble,
                )
            case HubFailure():
                return replace(
                    _in_state(reading, "failed"), reason=message.message, code=message.code
                )
            case PullFinished():
                return replace(_in_state(reading, "done"), repository=message.repository)
            case _:
                return reading

    def _planned(self, reading: PullReading, plan: Planned) -> PullReading:
        found = self._outlook(plan)
        shown = None if found is None else OutlookReading(found.fits, found.sentence)
        reading = replace(reading, repository=plan.repository, outlook=shown)
        if found is not None and not found.fits and not self._force:
            return replace(
                _in_state(reading, "failed"),
                reason=f"{found.sentence} Nothing was pulled. --force pulls it anyway.",
                code="insufficient_memory",
            )
        if self._process is not None:
            self._process.accept()
        return replace(
            _in_state(reading, "pulling"),
            done_bytes=plan.total_bytes - plan.missing_bytes,
            total_bytes=plan.total_bytes,
        )

    def _outlook(self, plan: Planned) -> Outlook | None:
        room = room_here(self._settings)
        return outlook(
            plan, room.possible_bytes, room.process_bytes, self._settings.memory.ordinary_tokens
        )


def _in_state(reading: PullReading, state: str) -> PullReading:
    """The reading with the next state, and without the pace and the reason of the state before."""
    return replace(reading, state=state, bytes_per_s=None, seconds_left=None, reason=None)
