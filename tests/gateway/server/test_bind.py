"""Why an address can't be listened on."""

from __future__ import annotations

import functools
import socket

import pytest

from gateway.server.uvicorn_server import PortTakenError, bind
from gateway.service.status import port_is_free


@pytest.fixture
def elsewhere_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a proxy answers at every address."""
    monkeypatch.setattr(socket, "socket", _Answered)


class _Answered(socket.socket):
    def connect(self, address: object) -> None: ...

    def getpeername(self) -> object:
        return "192.0.2.1", 8642


@pytest.mark.usefixtures("elsewhere_answers")
def test_an_address_that_this_machine_does_not_have() -> None:
    with pytest.raises(PortTakenError, match=r"^This machine has no address 192\.0\.2\.1.*Docker"):
        bind("192.0.2.1", 8642)


def test_a_name_that_nobody_has() -> None:
    with pytest.raises(PortTakenError, match=r"^nowhere\.invalid is no address.*--host"):
        bind("nowhere.invalid", 0)


def test_a_port_that_another_has() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(PortTakenError, match=r"Address already in use.*--port"),
    ):
        bind("127.0.0.1", other.getsockname()[1])


@pytest.fixture
def as_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """There SO_REUSEADDR lets an address be bound beside all, as here SO_REUSEPORT does."""
    real = socket.create_server
    monkeypatch.setattr(socket, "create_server", functools.partial(real, reuse_port=True))


@pytest.mark.usefixtures("as_on_a_mac")
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),
        ("::", "::1"),
        ("127.0.0.1", "::"),
    ],
)
def test_a_port_that_another_has_at_other_addresses(theirs: str, ours: str) -> None:
    v6 = theirs == "::"
    family = socket.AF_INET6 if v6 else socket.AF_INET
    with socket.create_server((theirs, 0), family=family, dualstack_ipv6=v6) as other:
        port = other.getsockname()[1]
        assert not port_is_free(ours, port)
        with pytest.raises(PortTakenError, match=r"Address already in use.*--port"):
            bind(ours, port)
    assert port_is_free(ours, port)
    bind(ours, port).close()


def test_a_name_is_of_the_version_that_is_bound() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        bind("localhost", port).close()
