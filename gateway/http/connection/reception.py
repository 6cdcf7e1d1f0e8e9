"""How long one client may take for what it does. No I/O; the caller brings the time."""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

# Longer than clients and proxies keep a connection for later use (aiohttp 15 s, nginx 60 s; httpx
# and Node 5 s): who closes first must be the one that would use it again.
IDLE_S: Final = 75.0
HEAD_S: Final = 20.0
# For TLS's handshake: a few packets to and fro.
HANDSHAKE_S: Final = 10.0
BODY_S: Final = 30.0
# A slower body than this must be done within BODY_S.
BODY_BYTES_PER_S: Final = 512 << 10
# Also for an answer that is written and not taken: the system holds what fits its buffers.
UNREAD_S: Final = 60.0
LEAVING_S: Final = 30.0


class Doing(Enum):
    """What a connection is busy with. LEAVING: it is closed once its client has read the rest."""

    HANDSHAKE = "shaking hands"
    IDLE = "idle"
    HEAD = "sending its head"
    BODY = "sending its body"
    SERVED = "being served"
    LEAVING = "leaving"


_ALLOWED_S: Final = {
    Doing.HANDSHAKE: HANDSHAKE_S,
    Doing.IDLE: IDLE_S,
    Doing.HEAD: HEAD_S,
    Doing.BODY: BODY_S,
    Doing.SERVED: math.inf,
    Doing.LEAVING: LEAVING_S,
}


class Reception:
    """What a client does, and until when. Times are in seconds of one clock."""

    def __init__(self, now: float) -> None:
        self.doing = Doing.IDLE
        self._until = now + _ALLOWED_S[Doing.IDLE]
        self._unread_until = math.inf

    @property
    def deadline_at(self) -> float:
        """Infinite while it is our turn."""
        return min(self._until, self._unread_until)

    def turn(self, doing: Doing, now: float) -> None:
        """It does this now; who did it before already gets no more time."""
        if doing is not self.doing:
            self.doing = doing
            self._until = now + _ALLOWED_S[doing]

    def received(self, body_bytes: int) -> None:
        """Part of a body has come: that much longer it may take."""
        if self.doing is Doing.BODY:
            self._until += body_bytes / BODY_BYTES_PER_S

    def blocked(self, now: float) -> None:
        """It doesn't take what is written."""
        self._unread_until = now + UNREAD_S

    def unblocked(self) -> None:
        self._unread_until = math.inf
