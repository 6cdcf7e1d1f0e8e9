"""When readers hear of what has arrived for them."""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.dispatch.request import Request

# At most sixty writes a second for each stream: no screen shows more, and every write costs a
# system call here and a wake-up at the client. Slower engines than that don't notice.
_BETWEEN_S: Final = 1 / 60


class Beat:
    """All readers of one model hear of it together, in a single turn of the event loop: an engine's
    step has something for each of them. What follows within milliseconds waits for the next beat.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # An ordered set.
        self._news: dict[Request, None] = {}
        self._next: asyncio.TimerHandle | None = None

    def note(self, request: Request) -> None:
        """Something has arrived for its reader."""
        self._news[request] = None

    def end_message(self) -> None:
        """Nothing more comes at present."""
        if self._news and self._next is None:
            self._strike()

    def _strike(self) -> None:
        self._next = None
        if not self._news:
            return
        self._next = self._loop.call_later(_BETWEEN_S, self._strike)
        news, self._news = self._news, {}
        now = self._loop.time()
        for request in news:
            request.tell(now)
