"""The names and addresses of this machine that no other one can reach."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

_NAME: Final = "localhost"


def is_loopback(host: str) -> bool:
    """Of a name or an address as it is written in an URL's host, with or without brackets."""
    host = host.lower().removeprefix("[").removesuffix("]")
    if host == _NAME:
        return True
    try:
        return is_loopback_address(ip_address(host.partition("%")[0]))
    except ValueError:
        return False


def is_loopback_address(address: IPv4Address | IPv6Address) -> bool:
    """127.0.0.0/8, also written as IPv6, and ::1."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
