"""The socket that the gateway listens on."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

_BACKLOG: Final = 2048


class PortTakenError(Exception):
    """The address can't be bound; the text says why."""


def bind(host: str, port: int) -> socket.socket:
    """Listen on an address; on :: on those of IPv4, too.

    Raises:
        PortTakenError: somebody else listens there, or the address isn't this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both
        )
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise PortTakenError(
                f"{host} can't be listened on ({error.strerror}): it is no address of this "
                "machine. Choose another with --host."
            ) from error
        why = os.strerror(error.errno) if error.errno else error
        raise PortTakenError(
            f"Port {port} on {host} can't be used ({why}). Choose another with --port."
        ) from error
