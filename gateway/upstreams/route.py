"""The way of a request through several gateways, in the header Via. No I/O."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final

from gateway.access.caller import BULKHEAD

_VERSION: Final = b"1.1 "


def new_instance() -> str:
    """A name for this gateway that no other has."""
    return secrets.token_hex(8)


def via_name(instance: str) -> str:
    """The gateway's name in Via."""
    return BULKHEAD + instance


def via_value(instance: str) -> bytes:
    """What the gateway adds to Via."""
    return _VERSION + via_name(instance).encode()


def comes_back(headers: Iterable[tuple[bytes, bytes]], instance: str) -> bool:
    """Whether a request has passed this gateway before. Names of headers are in lower case."""
    via = via_value(instance)
    return any(name == b"via" and via in value for name, value in headers)
