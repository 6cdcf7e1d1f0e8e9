"""The caller of a request: the key that the request shows, the caller's rights, and whose cached
prompts the caller shares. No I/O.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Final

from msgspec import Struct

# The name of the operator's own key, which no other key may have.
ADMIN: Final = "admin"


def stands_for(right: str, name: str) -> bool:
    """Whether a key's right names the model with this id or alias. A `*` in the right stands for
    any text.
    """
    if "*" not in right:
        return right == name
    return re.fullmatch(re.escape(right).replace(r"\*", ".*"), name) is not None


class Caller(Struct, frozen=True, kw_only=True):
    """`name` is the name of the key; None if there are no keys, or none was shown. `owner` owns the
    answers that are stored for the caller, and is empty without a key.

    `models` are the ids and aliases of the models that the caller may use, with `*` for any text;
    None for all models.
    `priority` is the highest priority that the caller's requests may have, None for the model's
    own. It doesn't bind an `admin`. `share` weighs the seconds of models that the caller gets while
    others want them too. A caller that `reads` looks at the gateway, and does nothing else.
    """

    name: str | None = None
    owner: str = ""
    admin: bool = False
    models: tuple[str, ...] | None = None
    priority: int | None = None
    share: int = 1
    reads: bool = False

    def may_use(self, model_id: str, aliases: Collection[str] = ()) -> bool:
        """Whether the caller may use, and see, a model."""
        return self.models is None or any(
            stands_for(model, name) for model in self.models for name in (model_id, *aliases)
        )

    def cache_salt(self, wanted: str, *, shared: bool) -> str:
        """The cache salt in force for a request that asks for the salt `wanted`. Each key has a
        prompt cache of its own, unless the cache is `shared`.
        """
        return wanted if shared or not self.owner else f"{self.owner}\0{wanted}"

    def priority_of(self, wanted: int | None, model_priority: int) -> int | None:
        """The priority in force for a request that asks for `wanted`; None: the model's own."""
        if self.admin:
            return wanted
        ceiling = model_priority if self.priority is None else self.priority
        if wanted is None:
            return None if model_priority <= ceiling else ceiling
        return min(wanted, ceiling)

    def keep_alive_of(self, wanted_s: float | None, ttl_s: float) -> float | None:
        """The time in force for a request that asks its model to stay loaded for `wanted_s`. None:
        the model's own time, which is `ttl_s`, or for ever if that is 0. Only operators may shorten
        it, since a shorter time unloads the model for all callers.
        """
        own_s = ttl_s or math.inf
        return wanted_s if self.admin or wanted_s is None or wanted_s >= own_s else None


# A client may have all addresses of such a network of IPv6 (RFC 4291).
_NETWORK: Final = 64


def sharer_at(address: str) -> str:
    """The name by which a client without a key shares models: its IP address, or its network of
    IPv6.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((int(parsed), _NETWORK), strict=False))


# Whoever shows the operator's key.
OPERATOR: Final = Caller(name=ADMIN, owner=ADMIN, admin=True)
# Every caller, as long as there are no keys.
ANYBODY: Final = Caller(admin=True)
# A caller without a key, where none is needed.
STRANGER: Final = Caller(models=())


_BEARER: Final = b"bearer "
# Headers by which proxies, tunnels and `tailscale serve` name the original client.
_PROXY_HEADERS: Final = (
    b"cdn-loop",
    b"forwarded",
    b"true-client-ip",
    b"via",
    b"x-client-ip",
    b"x-original-forwarded-for",
    b"x-real-ip",
)
# The beginning of a gateway's name in Via. Another Bulkhead has checked its callers itself.
BULKHEAD: Final = "bulkhead-"
_BULKHEADS: Final = re.compile(rb"1\.1 bulkhead-[0-9a-f]{16}(, 1\.1 bulkhead-[0-9a-f]{16})*")
_PROXY_PREFIXES: Final = (b"cf-", b"fly-", b"tailscale-", b"x-envoy-", b"x-forwarded")


class NeededKey(Enum):
    NOTHING = "nothing"
    KEY = "a key"
    ADMIN = "the admin key"


def proxy_header(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The header that shows that a request came through a proxy, which may be on this machine.
    None: there is no such header. Names of headers are in lower case.
    """
    for name, value in headers:
        if name == b"via" and _BULKHEADS.fullmatch(value):
            continue
        # Some proxies replace hyphens by underscores.
        same = name.replace(b"_", b"-")
        if same in _PROXY_HEADERS or same.startswith(_PROXY_PREFIXES):
            return name.decode("latin-1")
    return None


def shown_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The key that a request shows: `Authorization: Bearer KEY`, else `x-api-key: KEY`. None if the
    request shows no key, or two different keys. Names of headers are in lower case.
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
