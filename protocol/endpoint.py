"""The addresses of ZeroMQ's sockets, for whoever has none open."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

# sizeof(sockaddr_un.sun_path) less the terminating zero: <sys/un.h> of either system.
MAX_SOCKET_PATH_BYTES: Final = 103 if sys.platform == "darwin" else 107


class EndpointError(Exception):
    """The endpoint's path can't be a Unix socket."""


def endpoint(path: Path) -> str:
    """The ZeroMQ address of a socket file.

    Raises:
        EndpointError: the path is longer than the system allows, or isn't UTF-8.
    """
    try:
        length = len(str(path).encode())
    except UnicodeEncodeError as error:
        raise EndpointError(f"the path {path} is not UTF-8: choose another folder") from error
    if length > MAX_SOCKET_PATH_BYTES:
        raise EndpointError(
            f"the socket path {path} has {length} bytes, the system allows "
            f"{MAX_SOCKET_PATH_BYTES}: choose a shorter state folder"
        )
    return f"ipc://{path}"
