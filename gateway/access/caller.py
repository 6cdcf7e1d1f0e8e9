"""Who makes a request: the key that it shows, what it needs, and what it may do. No I/O."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Final

from msgspec import Struct

# Of the operator's own key; no other may be called so.
ADMIN: Final = "admin"


class Caller(Struct, frozen=True, kw_only=True):
    """`name` is that of the key, and None if there are none, or none was shown. `owner` is who has
    what is kept for it, and empty then.

    `models` are the ids and aliases that it may use, None for all. `priority` is the highest that
    its requests may have, None for the model's own; it doesn't bind who is `admin`.
    """

    name: str | None = None
    owner: str = ""
    admin: bool = False
    models: tuple[str, ...] | None = None
    priority: int | None = None

    def may_use(self, model_id: str, aliases: Collection[str] = ()) -> bool:
        """Whether it may know of a model at all."""
        return (
            self.models is None
            or model_id in self.models
            or any(alias in self.models for alias in aliases)
        )

    def cache_salt(self, wanted: str, *, shared: bool) -> str:
        """What becomes of the salt that a request asks for: each key has prompts of its own, unless
        they are `shared`.
        """
        return wanted if shared or not self.owner else f"{self.owner}\0{wanted}"

    def priority_of(self, wanted: int | None, model_priority: int) -> int | None:
        """What becomes of the priority that a request asks for; None is the model's own."""
        if self.admin:
            return wanted
        ceiling = model_priority if self.priority is None else self.priority
        if wanted is None:
            return None if model_priority <= ceiling else ceiling
        return min(wanted, ceiling)

    def keep_alive_of(self, wanted_s: float | None, ttl_s: float) -> float | None:
        """What becomes of how long a request asks that its model stays; None is the model's own,
        which is `ttl_s`, or for ever. A shorter one would unload it for everybody: that is for
        operators.
        """
        own_s = ttl_s or math.inf
        return wanted_s if self.admin or wanted_s is None or wanted_s >= own_s else None


# Without keys.
ANYBODY: Final = Caller(admin=True)
# Who shows none where none is needed.
STRANGER: Final = Caller(models=())


# For probes; and what is the same for everybody, and asks for a key itself.
_OPEN: Final = ("/", "/livez", "/readyz", "/health", "/ui")
_OPEN_FOLDERS: Final = ("/ui/",)
_ADMIN: Final = ("/admin", "/metrics")
# Ollama's verbs that change which models there are.
_ADMIN_PATHS: Final = (
    "/api/pull",
    "/api/push",
    "/api/create",
    "/api/copy",
    "/api/delete",
)
_BEARER: Final = b"bearer "
# What proxies, tunnels and `tailscale serve` say of who has really come.
_PASSED_ON: Final = (
    b"cdn-loop",
    b"forwarded",
    b"true-client-ip",
    b"via",
    b"x-client-ip",
    b"x-original-forwarded-for",
    b"x-real-ip",
)
_PASSED_ON_PREFIXES: Final = (b"cf-", b"fly-", b"tailscale-", b"x-envoy-", b"x-forwarded")


class NeededKey(Enum):
    NOTHING = "nothing"
    KEY = "a key"
    ADMIN = "the admin key"


def needed(method: str, path: str) -> NeededKey:
    """Whatever isn't known here needs a key. Which methods a path has is no secret, and a browser
    asks for it without one.
    """
    if method == "OPTIONS" or path in _OPEN or path.startswith(_OPEN_FOLDERS):
        return NeededKey.NOTHING
    if path.startswith(_ADMIN) or path.rstrip("/") in _ADMIN_PATHS:
        return NeededKey.ADMIN
    return NeededKey.KEY


def counts(method: str, path: str) -> bool:
    """Whether it is work that the limits of a key are about, and not a question that is answered
    from what is known.
    """
    return method == "POST" and path != "/api/show" and not path.endswith("/cancel")


def passed_on(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The header by which a request says that somebody else's came through a proxy, which may be
    on this machine. Names are in lower case.
    """
    for name, _ in headers:
        # Gateways in between take one sign for the other.
        same = name.replace(b"_", b"-")
        if same in _PASSED_ON or same.startswith(_PASSED_ON_PREFIXES):
            return name.decode("latin-1")
    return None


def shown_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """What a request shows: `Authorization: Bearer KEY`, else `x-api-key: KEY`. Of two that say
    different things neither counts. Names are in lower case.
    """
    bearer: set[bytes] = set()
    other: set[bytes] = set()
    for name, value in headers:
        if name == b"authorization":
            if value[: len(_BEARER)].lower() == _BEARER:
                bearer.add(value[len(_BEARER) :].strip())
        elif name == b"x-api-key":
            other.add(value.strip())
    shown = bearer or other
    return shown.pop() if len(shown) == 1 else None
