"""The cached prompts: in the memory of each worker, and on disk for all workers."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Final

from msgspec import Struct

from gateway.config.settings import PromptCacheSettings
from gateway.models.model_supervisor import ModelSupervisor
from gateway.system.lane import HangsError, Lane
from gateway.system.tasks import Tasks
from protocol.life import PromptCacheDisk
from protocol.prompt_store.store import PromptStore

logger = logging.getLogger(__name__)

_LOOK_S: Final = 5.0
# The store waits for other processes, and the first look waits for the sweep.
_ANSWER_S: Final = 30.0
# A worker answers between two steps.
_WORKER_S: Final = 5.0
# The removal of very many files takes long.
_DISK_S: Final = 60.0


class Cleared(Struct, frozen=True):
    """The bytes of memory and disk that were freed, and a text for each failure."""

    reclaimed_bytes: int
    failures: tuple[str, ...]


class CachedPrompts:
    """The prompts on disk. Their files are read and removed beside the event loop.

    `for_workers` goes to each worker at its load; None: workers keep prompts in memory alone.
    `disk_bytes` has the bytes on disk by ids of models, as last measured; None: not measured yet.
    """

    def __init__(self, folder: Path, settings: PromptCacheSettings) -> None:
        self.disk_bytes: dict[str, int] | None = None
        self.most_bytes = settings.disk_bytes
        self.for_workers: PromptCacheDisk | None = None
        if self.most_bytes:
            self.for_workers = PromptCacheDisk(
                folder=str(folder),
                most_bytes=self.most_bytes,
                most_bytes_per_hour=settings.disk_writes_per_hour_bytes,
            )
        # With a bound of 0 the store removes all prompts from the disk.
        self._store = PromptStore(folder, self.most_bytes, settings.disk_writes_per_hour_bytes)
        self._looks = Lane("prompts")
        self._clears = Lane("clear prompts")
        self._tasks = Tasks("prompts")

    def start(self) -> None:
        """Remove the files that killed processes have left, then measure the disk regularly."""
        self._looks.soon(self._sweep)
        self._tasks.repeat(self._look, "prompts", _LOOK_S)

    async def close(self) -> None:
        await self._tasks.cancel_all()

    def of(self, model_id: str) -> int | None:
        """The bytes that a model's prompts take on disk; None: not measured yet."""
        return None if self.disk_bytes is None else self.disk_bytes.get(model_id, 0)

    async def clear(
        self, supervisors: Collection[ModelSupervisor], model_id: str | None = None
    ) -> Cleared:
        """Have the workers of `supervisors` let go of the prompts in memory. After that remove
        prompts from the disk, as workers may write prompts there when they let go of them: those of
        `model_id`, or all if it is None.
        """
        reclaimed = await asyncio.gather(
            *(supervisor.clear_prompts(_WORKER_S) for supervisor in supervisors)
        )
        failures = [
            f"the worker of {supervisor.model.id!r} didn't let go of its prompts within "
            f"{_WORKER_S:g} s"
            for supervisor, reclaimed_bytes in zip(supervisors, reclaimed, strict=True)
            if reclaimed_bytes is None
        ]
        reclaimed_bytes = sum(bytes_ or 0 for bytes_ in reclaimed)
        try:
            removed_bytes, self.disk_bytes, obstacle = await self._clears.run(
                functools.partial(self._remove, model_id), _DISK_S, "the prompts on disk"
            )
        except OSError as error:
            # The removal goes on, and may still succeed.
            failures.append(f"{error}")
        else:
            reclaimed_bytes += removed_bytes
            if obstacle is not None:
                failures.append(f"the prompts on disk can't be removed: {obstacle}")
        return Cleared(reclaimed_bytes, tuple(failures))

    def _remove(self, model_id: str | None) -> tuple[int, dict[str, int], str | None]:
        removed_bytes = self._store.clear(model_id)
        return removed_bytes, self._store.owners(), self._store.obstacle()

    def _sweep(self) -> None:
        self._store.sweep()

    async def _look(self) -> None:
        try:
            self.disk_bytes = await self._looks.run(
                self._store.owners, _ANSWER_S, "the prompts on disk"
            )
        except HangsError as error:
            logger.debug("%s", error)
