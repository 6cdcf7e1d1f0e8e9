"""How the operator's page is signed in without the admin key: a code that works once is exchanged
for the secret of a session. Only hashes of both stay, in memory. No I/O.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections.abc import Iterator
from typing import Final

from gateway.access.api_key import LONGEST, HeldKey, digest_of
from gateway.access.caller import OPERATOR
from gateway.access.limits import MINUTE_S, Window

CODE_S: Final = 60.0
SESSION_S: Final = 86_400.0
_RANDOM_BYTES: Final = 32
_MOST_CODES: Final = 8
_MOST_SESSIONS: Final = 32
# Wrong codes a minute, of all clients together.
MOST_WRONG: Final = 10


class SignIns:
    """Codes that weren't used yet, and the sessions of those that were. Times are in seconds of a
    clock that doesn't go back.
    """

    def __init__(self) -> None:
        # For each hash the time at which its code or its session ends, the earliest first.
        self._codes: dict[bytes, float] = {}
        self._sessions: dict[bytes, float] = {}
        self._wrong = Window()

    def code(self, now: float) -> str:
        """A new code. With too many codes the oldest one ends."""
        return _add(self._codes, now + CODE_S, _MOST_CODES)

    def wait_s(self, now: float) -> int:
        """Seconds for which no code is accepted, since too many wrong codes came; 0: one is."""
        if self._wrong.taken(now) < MOST_WRONG:
            return 0
        return min(math.ceil(self._wrong.below_s(now, MOST_WRONG)), int(MINUTE_S) + 1)

    def exchange(self, code: str, now: float) -> str | None:
        """The secret of a new session; None if the code is wrong or was used. With too many
        sessions the oldest one ends.
        """
        digest = self._find(self._codes, code.encode(), now)
        if digest is None:
            self._wrong.add(now, 1)
            return None
        del self._codes[digest]
        return _add(self._sessions, now + SESSION_S, _MOST_SESSIONS)

    def find(self, secret: bytes, now: float) -> HeldKey | None:
        """The session with this secret, as a key of the operator; None if there is none."""
        digest = self._find(self._sessions, secret, now)
        return None if digest is None else HeldKey(digest, OPERATOR, None)

    def end(self, secret: bytes, now: float) -> bool:
        """End the session with this secret; False if there is none."""
        digest = self._find(self._sessions, secret, now)
        return digest is not None and self._sessions.pop(digest) > now

    def sessions(self, now: float) -> Iterator[bytes]:
        """The hashes of the sessions that go on."""
        return (digest for digest, ends_at in self._sessions.items() if now < ends_at)

    @staticmethod
    def _find(known: dict[bytes, float], secret: bytes, now: float) -> bytes | None:
        """The hash of a secret that is known and hasn't ended. The secret is compared with every
        known one, in constant time.
        """
        digest = digest_of(secret[:LONGEST])
        same = [candidate for candidate in known if hmac.compare_digest(candidate, digest)]
        return digest if same and now < known[digest] else None


def _add(known: dict[bytes, float], ends_at: float, most: int) -> str:
    secret = secrets.token_urlsafe(_RANDOM_BYTES)
    while len(known) >= most:
        del known[next(iter(known))]
    known[digest_of(secret.encode())] = ends_at
    return secret
