from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from gateway.config.machine_rules import exposed
from gateway.config.settings import GatewaySettings
from gateway.http.wire.auth import complaint
from gateway.http.wire.connection_limits import network_of
from gateway.system.notation import is_loopback

NETWORK = IPv4Network("127.0.0.0/8")


def _refused(host: str) -> bool:
    headers = Headers({"host": host})
    return complaint(headers, http_1_0=False, hosts=(), origins=()) is not None


@given(st.ip_addresses(v=4, network=str(NETWORK)))
def test_all_of_the_network(address: IPv4Address) -> None:
    assert is_loopback(str(address))
    assert not exposed(GatewaySettings(host=str(address)))
    assert not _refused(f"{address}:8642")
    assert network_of(str(address)) is None


@given(st.ip_addresses(v=4).filter(lambda item: item not in NETWORK))
def test_none_beside_it(address: IPv4Address) -> None:
    assert not is_loopback(str(address))
    assert exposed(GatewaySettings(host=str(address)))
    assert _refused(f"{address}:8642")
    assert network_of(str(address)) == str(address)


@pytest.mark.parametrize("host", ["localhost", "LocalHost", "::1", "[::1]", "::ffff:127.0.0.1"])
def test_other_spellings(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "127.1", "127.0.0.1.example", "localhost.example", "0.0.0.0", "::", "::2", "127"]
)
def test_lookalike_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)
