"""Why an address can't be listened on."""

from __future__ import annotations

import socket

import pytest

from gateway.server.uvicorn_server import PortTakenError, bind


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_a_host_that_is_not_this_machine(host: str) -> None:
    with pytest.raises(PortTakenError, match=rf"^{host} is no address of this machine.*--host"):
        bind(host, 0)


def test_a_port_that_another_has() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(PortTakenError, match=r"Address already in use.*--port"),
    ):
        bind("127.0.0.1", other.getsockname()[1])
