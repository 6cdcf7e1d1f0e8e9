"""The mailbox's file as the event loop uses it: calls run beside the loop, have deadlines, and fail
with refusals.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple, Unpack

from gateway.mailbox.database import MailboxDamagedError, StoreError, TakenError
from gateway.mailbox.entry import MailboxEntry, Name
from gateway.mailbox.store import Store
from gateway.system.events import EventLog
from gateway.system.lane import Lane
from gateway.system.refusal import Refusal

logger = logging.getLogger(__name__)

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

# The deadline of a call, longer than the store's own wait for a program that has the file locked.
ANSWER_S: Final = 10.0
_RETRY_AFTER_S: Final = 30


class Archive:
    """Calls the store beside the event loop. `trouble` says why the file isn't open; None: it is
    open. `failure` says why the last write failed; None: the write succeeded. `renewals` counts how
    often a damaged or missing file was replaced.
    """

    def __init__(self, path: Path, events: EventLog) -> None:
        self.store = Store(path)
        self.trouble: str | None = "it is being opened"
        self.failure: str | None = None
        self.renewals = 0
        self._events = events
        self._lane = Lane("mailbox")
        self._tried = asyncio.Event()

    async def open(self, elsewhere: Collection[Name] = ()) -> list[MailboxEntry]:
        """Open the file. Returns the answers that are still to be made, without answers that are
        being made `elsewhere`. If the file can't be opened, returns no answers; that is an event.
        """
        try:
            pending = await self._lane.run(
                functools.partial(self.store.open, elsewhere), ANSWER_S, "the mailbox"
            )
        except MailboxDamagedError as error:
            self._tell(str(error))
            return await self._renew()
        except (StoreError, OSError) as error:
            self._tell(str(error))
            return []
        else:
            self.trouble = None
            return pending
        finally:
            self._tried.set()

    async def read(self, call: Callable[[Unpack[Arguments]], T], *arguments: *Arguments) -> T:
        """Make a call of the store, and return its result.

        Raises:
            Refusal: the call failed; the text says why.
        """
        if not self._tried.is_set():
            await asyncio.wait({asyncio.create_task(self._tried.wait())}, timeout=ANSWER_S)
        if self.trouble is not None:
            raise _unavailable(self.trouble)
        try:
            return await self._run(functools.partial(call, *arguments))
        except TakenError as error:
            raise Refusal(
                "invalid_request_error",
                f"X-Request-Id: {error} in the mailbox: fetch or delete that one, or send another "
                "id.",
                param="X-Request-Id",
            ) from error
        except (StoreError, OSError) as error:
            raise _unavailable(str(error)) from error

    async def _run(self, call: Callable[[], T]) -> T:
        """Make a call. If the file is damaged or gone, replace it, and make the call again."""
        try:
            return await self._lane.run(call, ANSWER_S, "the mailbox")
        except MailboxDamagedError as error:
            self._tell(str(error))
            await self._renew()
            if self.trouble is not None:
                raise
        return await self._lane.run(call, ANSWER_S, "the mailbox")

    async def write(self, call: Callable[[Unpack[Arguments]], T], *arguments: *Arguments) -> T:
        """Make a call that writes, as `read` does. The first failure in a row is an event."""
        try:
            result = await self.read(call, *arguments)
        except Refusal as refusal:
            if refusal.code == "storage_unavailable" and self.trouble is None:
                if self.failure is None:
                    self._events.emit("mailbox", None, reason=refusal.message)
                self.failure = refusal.message
            raise
        self.failure = None
        return result

    async def close(self) -> None:
        try:
            await self._lane.run(self.store.close, ANSWER_S, "the mailbox")
        except OSError as error:
            logger.warning("The mailbox was not closed: %s", error)

    async def _renew(self) -> list[MailboxEntry]:
        self.renewals += 1
        try:
            pending = await self._lane.run(self.store.open, ANSWER_S, "the mailbox")
        except (StoreError, OSError) as error:
            self._tell(str(error))
            return []
        self.trouble = None
        return pending

    def _tell(self, reason: str) -> None:
        """Note why the file isn't open. A new reason is an event."""
        if reason != self.trouble:
            self.trouble = reason
            self._events.emit("mailbox", None, reason=reason)


def _unavailable(reason: str) -> Refusal:
    return Refusal(
        "storage_unavailable",
        f"Answers can't be stored or fetched: {reason}.",
        retry_after_s=_RETRY_AFTER_S,
    )
