"""Tasks with an owner: they end with it, and their exceptions are seen by whoever watches the loop
(`gateway.system.faults`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any


class Tasks:
    """The background tasks of one owner."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep(self, turn: Callable[[], Awaitable[None]], name: str, every_s: float) -> None:
        """Take a turn now, and then again and again, so long after each, whatever became of it."""
        self.start(self._keep(turn, name, every_s), name)

    def attempt(self, step: Callable[[], object], name: str) -> None:
        """Take a step whose failure must not keep the caller from its next one."""
        try:
            step()
        except Exception as error:
            self._tell(f"{self._owner}: {name}", error)

    async def cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, turn: Callable[[], Awaitable[None]], name: str, every_s: float) -> None:
        while True:
            try:
                await turn()
            except Exception as error:
                self._tell(f"{self._owner}: {name}", error)
            await asyncio.sleep(every_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._tell(task.get_name(), error)

    def _tell(self, what: str, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"{what} failed", "exception": error}
        )
