"""Regular readings: the memory of the machine, of the gateway and of each worker, the processes
that workers have started, and the disks that models are on.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from gateway.config.model import Model
from gateway.config.model_folders import expand_home, hugging_face_cache
from gateway.config.settings import HUGGING_FACE
from gateway.memory.leak_check import LoadedWorker
from gateway.memory.scheduler import MemoryScheduler
from gateway.models.compartment import Compartment
from gateway.models.lifecycle import State
from gateway.models.roster import Roster
from gateway.system.events import EventLog
from gateway.system.lane import HangsError, Lane
from gateway.system.machine import AwayError, is_mounted, volume_of
from gateway.system.memory import FootprintGauge, card_memory, host_memory
from gateway.system.memory_reading import CardMemory, Footprint, FootprintError
from gateway.system.processes import descendants
from gateway.system.tasks import Tasks
from gateway.workers.worker import Worker

logger = logging.getLogger(__name__)

_READING_S: Final = 1.0
_DESCENDANTS_S: Final = 5.0
# A reading that takes longer is given up until its next turn.
_ANSWER_S: Final = 5.0


class Readings:
    """The last readings: `host` is the memory of the machine, `card` the memory of the cards that
    workers compute on, `footprint` the footprint of the gateway itself.
    """

    def __init__(
        self, roster: Roster, workers: Callable[[], list[Worker]], scheduler: MemoryScheduler
    ) -> None:
        """`workers` returns all workers, spares among them."""
        self.host = host_memory()
        self.card: CardMemory | None = None
        self.footprint: Footprint | None = None
        self._own = FootprintGauge(os.getpid())
        self._roster = roster
        self._workers = workers
        self._scheduler = scheduler
        self._tasks = Tasks("readings")
        self._machine = Lane("machine")
        self._processes = Lane("processes")

    def start(self) -> None:
        self._tasks.repeat(self._read_machine, "machine", _READING_S)
        self._tasks.repeat(self._read_workers, "footprints", _READING_S)
        self._tasks.repeat(self._look_at_processes, "descendants", _DESCENDANTS_S)

    async def close(self) -> None:
        await self._tasks.cancel_all()

    async def _read_machine(self) -> None:
        self.host = await self._machine.run(host_memory, _ANSWER_S, "the machine's memory")
        self.footprint = await self._machine.run(self._read_own, _ANSWER_S, "the own footprint")
        pids = {pid for each in self._workers() for pid in each.pids}
        self.card = await self._machine.run(
            functools.partial(_card_memory, pids), _ANSWER_S, "the card's memory"
        )

    def _read_own(self) -> Footprint | None:
        try:
            return self._own.read()
        except FootprintError as error:
            logger.debug("No footprint of the gateway: %s", error)
            return None

    async def _read_workers(self) -> None:
        workers = self._workers()
        await asyncio.gather(*(self._read_footprint(each) for each in workers))
        for compartment in self._roster.everyone:
            if compartment.worker is not None:
                self._tasks.attempt(
                    functools.partial(compartment.model_memory.measured, compartment.worker),
                    "measured",
                )
        self._compare()

    async def _look_at_processes(self) -> None:
        workers = self._workers()
        found = await self._processes.run(
            functools.partial(descendants, [each.pid for each in workers]),
            _ANSWER_S,
            "the list of processes",
        )
        for worker in workers:
            worker.descendants.remember(found[worker.pid])

    def _compare(self) -> None:
        """Look for stranded memory among the machine's wired memory."""
        if self.host.wired_bytes is None:
            return
        workers = {
            each.worker.pid: LoadedWorker(each.model.id, each.worker.memory.host_bytes or 0)
            for each in self._roster.everyone
            if each.worker is not None
        }
        self._scheduler.check_leaks(self.host.wired_bytes, workers)

    async def _read_footprint(self, worker: Worker) -> None:
        worker.report.count_tokens()
        try:
            await worker.measure()
        except (FootprintError, OSError) as error:
            # The worker may just have ended. A reading that hangs doesn't hold up other workers'.
            logger.debug("No footprint of process %d: %s", worker.pid, error)


def _card_memory(pids: set[int]) -> CardMemory | None:
    try:
        return card_memory(pids)
    except FootprintError as error:
        logger.debug("No memory of the card: %s", error)
        return None


_LOOK_S: Final = 5.0
# A disk that sleeps takes seconds to wake up.
_DISK_S: Final = 10.0


class Disks:
    """Notices when disks of models are unmounted and mounted. Each disk is asked in a lane of its
    own, so a disk that hangs costs one thread.
    """

    def __init__(self, roster: Roster, events: EventLog) -> None:
        self._roster = roster
        self._events = events
        self._tasks = Tasks("disks")
        self._lanes: dict[Path, Lane] = {}
        self._there: dict[Path, bool] = {}

    def start(
        self, discovered: Callable[[], Iterable[str]], rediscover: Callable[[], Awaitable[None]]
    ) -> None:
        """`discovered` returns the places in which models are looked for. `rediscover` looks there
        again.
        """
        look = functools.partial(self._look, discovered, rediscover)
        self._tasks.repeat(look, "mounted", _LOOK_S)

    async def close(self) -> None:
        await self._tasks.cancel_all()

    def remark(self, compartment: Compartment) -> str | None:
        """A remark on a model whose disk isn't mounted. None: all its disks are mounted, or the
        state of the model says enough.
        """
        gone = [each for each in _volumes(compartment.model) if self._there.get(each) is False]
        if not gone:
            return None
        if compartment.state is State.READY:
            return f"the disk {gone[0]} isn't mounted any more: it serves on until it is unloaded"
        return str(AwayError(gone[0])) if compartment.state is State.UNLOADED else None

    async def _look(
        self, discovered: Callable[[], Iterable[str]], rediscover: Callable[[], Awaitable[None]]
    ) -> None:
        searched = {each for place in discovered() for each in _volumes_of([_folder(place)])}
        models = {each: set(_volumes(each.model)) for each in self._roster.configured.values()}
        volumes = searched.union(*models.values())
        self._there = {each: there for each, there in self._there.items() if each in volumes}
        for volume in sorted(volumes):
            there = await self._ask(volume)
            if there is None:
                continue
            # A disk that is mounted at the first look is no news.
            before = self._there.get(volume, True)
            self._there[volume] = there
            if there is before:
                continue
            concerned = [each for each, own in models.items() if volume in own]
            self._tell(volume, concerned, there=there)
            if there:
                for compartment in concerned:
                    compartment.look_again()
                if volume in searched:
                    await rediscover()

    async def _ask(self, volume: Path) -> bool | None:
        """Whether the disk is mounted; None: the disk doesn't answer."""
        lane = self._lanes.setdefault(volume, Lane(f"disk {volume}"))
        try:
            return await lane.run(functools.partial(is_mounted, volume), _DISK_S, str(volume))
        except HangsError as error:
            logger.debug("%s", error)
            return None

    def _tell(self, volume: Path, concerned: Iterable[Compartment], *, there: bool) -> None:
        names = [each.model.id for each in concerned]
        self._events.emit("disk", None, path=str(volume), mounted=there, models=names)
        of = f" (models: {', '.join(names)})" if names else ""
        if there:
            logger.info("The disk %s is there again%s", volume, of)
        else:
            logger.warning(
                "The disk %s isn't mounted%s: what is loaded serves on, and nothing is loaded from "
                "it until it is there",
                volume,
                of,
            )


def _folder(place: str) -> Path:
    return hugging_face_cache() if place == HUGGING_FACE else expand_home(place)


def _volumes(model: Model) -> Iterator[Path]:
    source = Path(model.source)
    folders = [source if source.is_absolute() else hugging_face_cache()]
    folders += [Path(each) for each in (model.adapter, model.draft) if each is not None]
    return _volumes_of(folders)


def _volumes_of(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        # `folder` may be the disk's own root, so ask for the disk of a path in it.
        if (volume := volume_of(folder / "model")) is not None:
            yield volume
