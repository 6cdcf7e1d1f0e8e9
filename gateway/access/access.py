"""What a request needs, and what it shows for it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

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


class Need(Enum):
    NOTHING = "nothing"
    KEY = "a key"
    ADMIN = "the admin key"


def needed(method: str, path: str) -> Need:
    """Whatever isn't known here needs a key. Which methods a path has is no secret, and a browser
    asks for it without one.
    """
    if method == "OPTIONS" or path in _OPEN or path.startswith(_OPEN_FOLDERS):
        return Need.NOTHING
    if path.startswith(_ADMIN) or path.rstrip("/") in _ADMIN_PATHS:
        return Need.ADMIN
    return Need.KEY


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
