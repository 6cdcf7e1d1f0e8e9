"""Records the history of a fleet, and stores it in a file."""

from __future__ import annotations

import functools
import logging
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from msgspec import Struct

from gateway.history.history import History, HistoryState
from gateway.history.steps import MarkKind, ModelSample, Sample
from gateway.models.fleet import Fleet
from gateway.requests.use import ModelMeter
from gateway.system.events import Event
from gateway.system.lane import Lane
from gateway.system.state_file import read_state, write_state
from gateway.system.tasks import Tasks
from gateway.workers.worker import Worker

logger = logging.getLogger(__name__)

_SAMPLE_S: Final = 2.0
_WRITE_S: Final = 60.0
_DISK_S: Final = 5.0


class HistoryFile(Struct, frozen=True):
    """The content of the file: a packed `HistoryState`."""

    packed: bytes


class Recorder:
    """Samples what the gateway knows anyway; no worker is asked. The file is at most a minute old
    when the gateway is killed.
    """

    def __init__(self, path: Path, fleet: Fleet) -> None:
        self.history = History()
        self._path = path
        self._fleet = fleet
        # The tokens of each model's prompts and answers at the last sample.
        self._counted: WeakKeyDictionary[ModelMeter, tuple[int, int]] = WeakKeyDictionary()
        self._is_read = False
        self._lane = Lane("history")
        self._tasks = Tasks("history")

    def start(self) -> None:
        self._tasks.start(self._restore(), "read")

    async def write(self) -> None:
        """Write the file, for another gateway or a later start. A failure is logged."""
        if not self._is_read:
            return
        write = functools.partial(_write, self._path, self.history.state)
        try:
            await self._lane.run(write, _DISK_S, str(self._path))
        except OSError as error:
            logger.warning("The history can't be written: %s", error)

    async def stop(self) -> None:
        """End the recording, which another gateway continues."""
        await self._tasks.cancel_all()

    async def close(self) -> None:
        await self._tasks.cancel_all()
        await self.write()

    async def _restore(self) -> None:
        try:
            read = functools.partial(_read, self._path)
            self.history = await self._lane.run(read, _DISK_S, str(self._path))
        except OSError as error:
            logger.warning("The history can't be read: %s", error)
        self._is_read = True
        self._tasks.start(self._follow(), "events")
        self._tasks.repeat(self._sample, "sample", _SAMPLE_S)
        self._tasks.repeat(self.write, "write", _WRITE_S)

    async def _follow(self) -> None:
        with self._fleet.events.follow() as follower:
            while not follower.ended:
                for event in await follower.next_events():
                    if (kind := _mark(event)) is not None and event.model is not None:
                        self.history.mark(kind, event.model, time.time())

    async def _sample(self) -> None:
        self.history.add(self._sampled(), time.time())

    def _sampled(self) -> Sample:
        fleet = self._fleet
        ledger = fleet.scheduler.ledger
        waiting, prompt_tokens = 0, 0
        first_token_s: list[float] = []
        models: dict[str, ModelSample] = {}
        for supervisor in fleet.roster.everyone:
            meter, model_id = supervisor.traffic.meter, supervisor.model.id
            waiting += supervisor.traffic.queue.waiting
            first_token_s += meter.latest_s
            meter.latest_s.clear()
            before = self._counted.get(meter, (0, 0))
            self._counted[meter] = (meter.prompt_tokens, meter.generated_tokens)
            prompt_tokens += meter.prompt_tokens - before[0]
            allocation = ledger.allocation(model_id)
            models[model_id] = ModelSample(
                _bytes([] if supervisor.worker is None else [supervisor.worker]),
                0 if allocation is None else allocation.floor_bytes,
                0 if allocation is None else max(0, allocation.lent_bytes),
                meter.generated_tokens - before[1],
            )
        return Sample(
            ledger.budget_bytes, _bytes(fleet.spares), waiting, prompt_tokens, first_token_s, models
        )


def _bytes(workers: Iterable[Worker]) -> int:
    footprints = (worker.memory.footprint for worker in workers)
    return sum(footprint.current_bytes for footprint in footprints if footprint is not None)


def _mark(event: Event) -> MarkKind | None:
    match event.kind:
        case "evict":
            return "eviction"
        case "exit" if not event.fields["expected"]:
            return "death"
        case "refuse":
            return "refusal"
    return None


def _read(path: Path) -> History:
    """The history in the file, or a new one, with the reason in the log. Blocks."""
    try:
        file = read_state(path, HistoryFile)
        if file is not None:
            return History.restored(HistoryState.unpacked(file.packed))
    except (ValueError, zlib.error) as error:
        logger.warning("%s is ignored: %s", path, error)
    return History()


def _write(path: Path, state: HistoryState) -> None:
    write_state(path, HistoryFile(state.packed))
