"""Notices when the disks that models are on are unmounted and mounted."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from gateway.config.model import Model
from gateway.config.model_folders import expand_home, hugging_face_cache
from gateway.config.settings import HUGGING_FACE
from gateway.models.lifecycle import State
from gateway.models.model_supervisor import ModelSupervisor
from gateway.models.roster import Roster
from gateway.system.events import EventLog
from gateway.system.file_access import AwayError, is_mounted, volume_of
from gateway.system.lane import HangsError, Lane
from gateway.system.tasks import Tasks

logger = logging.getLogger(__name__)

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

    def remark(self, supervisor: ModelSupervisor) -> str | None:
        """A remark on a model whose disk isn't mounted. None: all its disks are mounted, or the
        state of the model says enough.
        """
        gone = [volume for volume in _volumes(supervisor.model) if self._there.get(volume) is False]
        if not gone:
            return None
        if supervisor.state is State.READY:
            return f"the disk {gone[0]} isn't mounted any more: it serves on until it is unloaded"
        return str(AwayError(gone[0])) if supervisor.state is State.UNLOADED else None

    async def _look(
        self, discovered: Callable[[], Iterable[str]], rediscover: Callable[[], Awaitable[None]]
    ) -> None:
        searched = {path for place in discovered() for path in _volumes_of([_folder(place)])}
        models = {model: set(_volumes(model.model)) for model in self._roster.configured.values()}
        volumes = searched.union(*models.values())
        self._there = {path: there for path, there in self._there.items() if path in volumes}
        for volume in sorted(volumes):
            there = await self._ask(volume)
            if there is None:
                continue
            # A disk that is mounted at the first look is no news.
            before = self._there.get(volume, True)
            self._there[volume] = there
            if there is before:
                continue
            concerned = [
                model for model, volumes_of_model in models.items() if volume in volumes_of_model
            ]
            self._tell(volume, concerned, there=there)
            if there:
                for supervisor in concerned:
                    supervisor.look_again()
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

    def _tell(self, volume: Path, concerned: Iterable[ModelSupervisor], *, there: bool) -> None:
        names = [model.model.id for model in concerned]
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
    folders += [Path(folder) for folder in (model.adapter, model.draft) if folder is not None]
    return _volumes_of(folders)


def _volumes_of(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        # `folder` may be the disk's own root, so ask for the disk of a path in it.
        if (volume := volume_of(folder / "model")) is not None:
            yield volume
