"""Which addresses of the network a request may have the gateway call."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_interface,
    ip_network,
)
from typing import Final

import psutil

Network = IPv4Network | IPv6Network

# IANA's registries of special-purpose addresses (RFC 6890) in July 2026, and groups. Python has a
# table, too, another one in each version; none of them has 6to4 and the translators' own prefix.
_SPECIAL_IPV4: Final = tuple(
    IPv4Network(each)
    for each in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # Relays of 6to4 (RFC 7526).
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
    )
)
# What IANA gives to hosts. Outside of it are loopback, IPv4-compatible and site-local addresses,
# unique local ones, links, groups, and 64:ff9b:1::/48 of translators within a network (RFC 8215).
_UNICAST: Final = IPv6Network("2000::/3")
_SPECIAL_IPV6: Final = tuple(
    IPv6Network(each)
    for each in (
        "2001::/23",  # Protocols, with Teredo (RFC 4380), benchmarks and ORCHID among them.
        "2001:db8::/32",
        "2002::/16",  # 6to4 (RFC 3056): leads to any IPv4 address.
        "3fff::/20",
    )
)
# RFC 6052: the last four bytes are an IPv4 address behind a translator.
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")
_BITS: Final = {4: 32, 6: 128}


def may_call(text: str) -> bool:
    """Of the internet, and of none of the networks that this machine is in; blocks."""
    return is_public(text, own_networks())


def is_public(text: str, own: Collection[Network] = ()) -> bool:
    """Of the internet, and of one host: neither of this machine and its networks, nor a group."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        if (inner := _inside(address)) is not None:
            return is_public(str(inner), own)
        special = address not in _UNICAST or any(address in each for each in _SPECIAL_IPV6)
    else:
        special = any(address in each for each in _SPECIAL_IPV4)
    return not special and not any(address in each for each in own)


def own_networks() -> list[Network]:
    """Those of this machine's interfaces: machines beside it may have public addresses, too."""
    found: list[Network] = []
    for interface in psutil.net_if_addrs().values():
        for each in interface:
            try:
                address = ip_interface(each.address.partition("%")[0])
            except ValueError:
                continue  # Of the hardware.
            found.append(ip_network((address.ip, _length(each.netmask, address.version)), False))
    return found


def _length(mask: str | None, version: int) -> int:
    """Bits of a network's prefix. A mask that is missing or leaves nothing out, as some tunnels
    have it, is that of one host.
    """
    bits = 0 if mask is None else int(ip_address(mask)).bit_count()
    return bits or _BITS[version]


def _inside(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that it stands for."""
    if address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped
