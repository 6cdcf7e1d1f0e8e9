"""Which process listens where a command's server is asked."""

from __future__ import annotations

import os
import socket

import psutil
import pytest

from protocol.process_tree import listens


@pytest.mark.parametrize(
    ("family", "host", "counts"),
    [
        (socket.AF_INET, "127.0.0.1", True),
        (socket.AF_INET, "0.0.0.0", True),
        (socket.AF_INET, "127.0.0.2", False),
        (socket.AF_INET6, "::1", False),
        (socket.AF_INET6, "::", False),
    ],
)
def test_another_address_of_the_same_port_is_another_program_s(
    family: socket.AddressFamily, host: str, counts: bool
) -> None:
    try:
        listening = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"{host} can't be listened at: {error}")
    with listening:
        port = listening.getsockname()[1]
        assert listens(psutil.Process(os.getpid()), port) is counts
        assert not listens(psutil.Process(os.getpid()), port + 1)
