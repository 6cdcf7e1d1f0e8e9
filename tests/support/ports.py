"""Ports for programs that can't tell which one the system gave them."""

from __future__ import annotations

import socket
from random import SystemRandom


def free_port() -> int:
    """Below those that systems give to connections, so that it is still free a while later."""
    while True:
        port = SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
