"""Whom a request may have the gateway call."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from types import SimpleNamespace

import psutil
import pytest

from gateway.http.generation import remote_pictures as addresses
from gateway.http.generation.remote_pictures import is_public, may_call, own_networks


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.251",
        "239.1.1.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%en0",
        "fc00::1",
        "fd12:3456::1",
        "ff02::1",
        "ff0e::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1.1.1.1",
        "64:ff9b:1:ffff::a00:1",
        "192.88.99.1",
        "2002:7f00:1::",
        "2002:101:101::1",
        "::7f00:1",
        "::1.1.1.1",
        "fec0::1",
        "2001:20::1",
        "3fff::1",
        "5f00::1",
        "4000::1",
        "2606:4700:4700::1111%en0",
        "2001:0:7f00:1:0:0:0:1",
        "2001:db8::1",
        "localhost",
        "",
    ],
)
def test_private_addresses_may_not_be_called(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"],
)
def test_public_addresses_may_be_called(address: str) -> None:
    assert is_public(address)


def test_addresses_of_own_networks_may_not_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines of its own networks have public addresses; a tunnel's may leave nothing out."""

    def address(text: str, mask: str | None) -> SimpleNamespace:
        return SimpleNamespace(address=text, netmask=mask)

    interfaces = {
        "en0": [
            address("1a:2b:3c:4d:5e:6f", None),
            address("93.184.215.14", "255.255.255.0"),
            address("2606:4700:4700::1111", "ffff:ffff:ffff:ffff::"),
            address("fe80::1%en0", "ffff:ffff:ffff:ffff::"),
        ],
        "utun0": [address("8.8.8.8", "0.0.0.0"), address("9.9.9.9", None)],
    }
    monkeypatch.setattr(addresses.psutil, "net_if_addrs", lambda: interfaces)
    for item in (
        "93.184.215.200",
        "::ffff:93.184.215.200",
        "64:ff9b::5db8:d7c8",
        "2606:4700:4700::9",
        "8.8.8.8",
        "9.9.9.9",
    ):
        assert not may_call(item), item
    for item in ("93.184.216.1", "2606:4700:4700:1::1", "8.8.4.4", "9.9.9.10"):
        assert may_call(item), item


def test_networks_of_this_machine() -> None:
    networks = own_networks()
    assert ip_network("127.0.0.0/8") in networks
    for if_addr in psutil.net_if_addrs().values():
        for found in if_addr:
            if found.family.name in ("AF_INET", "AF_INET6"):
                address = ip_address(found.address.partition("%")[0])
                assert any(address in network for network in networks)
