"""API keys: what is kept of one, and how a new one is made. No I/O but randomness."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Annotated, Final

from msgspec import Meta, Struct

from gateway.access.caller import ADMIN, Caller

# Programs that look for OpenAI's keys know them by "sk-".
_PREFIX: Final = "sk-bulkhead-"
_RANDOM_BYTES: Final = 32
_LARGEST: Final = (1 << 31) - 1
_ID_BYTES: Final = 8
# No name has it.
_BEFORE_ID: Final = "#"
# It stands in addresses, log lines and metrics, and must not need escaping in any of them.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")

Limit = Annotated[int, Meta(ge=1, le=_LARGEST)]


class Terms(Struct, frozen=True, kw_only=True):
    """What a key may do; None: nothing is said, so everything, or as much as there is.

    `models` are ids and aliases, `priority` is the highest for its requests. `rpm` and `tpm` are
    requests and tokens a minute, `concurrent` are answers at once. `expires_at` is a Unix time.
    """

    models: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1)] | None = (
        None
    )
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    rpm: Limit | None = None
    tpm: Limit | None = None
    concurrent: Limit | None = None
    expires_at: float | None = None


class ApiKey(Terms, frozen=True, kw_only=True):
    """`digest` is the SHA-256 of the key in hexadecimal digits. `id` tells it from others that have
    had its name; files of older versions have none. Times are Unix times in seconds.
    """

    name: str
    digest: str
    id: str = ""
    created_at: float
    revoked_at: float | None = None

    @property
    def caller(self) -> Caller:
        return Caller(name=self.name, owner=self.owner, models=self.models, priority=self.priority)

    @property
    def owner(self) -> str:
        """To whom belongs what is kept under it: never to a later key of the same name."""
        return f"{self.name}{_BEFORE_ID}{self.id}" if self.id else self.name

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


def new_secret() -> str:
    """256 random bits. There is nothing to guess in it, so a fast hash keeps it as well as any."""
    return _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def new_id() -> str:
    return secrets.token_hex(_ID_BYTES)


def name_of_owner(owner: str) -> str | None:
    """The name of the key that an owner is, whether or not it is still there; None without keys."""
    return owner.partition(_BEFORE_ID)[0] or None


def digest_of(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def name_complaint(name: str) -> str | None:
    """Why a key can't be called so."""
    if name == ADMIN:
        return f"{ADMIN} is the name of the operator's own key: choose another"
    if _NAME.fullmatch(name) is None:
        return (
            f"{name[:100]!r} is no name of a key: 1 to 64 letters, digits or ._@- that begin with "
            "a letter or digit"
        )
    return None
