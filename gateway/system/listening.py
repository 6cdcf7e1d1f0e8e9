"""Whether this machine has an address, and whether a program listens there."""

from __future__ import annotations

import errno
import socket
from typing import Final

_ANSWER_S: Final = 1.0
# What connects to these on macOS may reach another address of the machine.
_ANY: Final = {"0.0.0.0": ("127.0.0.1",), "::": ("::1", "127.0.0.1")}  # noqa: S104


def is_here(host: str) -> bool:
    """Whether an address is this machine's. True also if that can't be known."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as trial:
            trial.bind((host, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def is_listened_at(host: str, port: int) -> bool:
    """Connect to find out; blocks for a second or two at most. Binding doesn't tell: on macOS an
    address can be bound beside all addresses (`*:8642`) of the same account, whose clients it
    would take. At an address that isn't this machine's another one, or a proxy, might answer.
    """
    return is_here(host) and any(
        _is_listened_at(address, port) for address in _ANY.get(host, (host,))
    )


def _is_listened_at(host: str, port: int) -> bool:
    # Of the names of a host only those of the version that would be bound.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as asking:
            asking.settimeout(_ANSWER_S)
            asking.connect((host, port))
            # A port that the system gave this very connection is connected to itself.
            return bool(asking.getsockname() != asking.getpeername())
    except OSError:
        return False
