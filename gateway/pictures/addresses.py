"""Which addresses of the network a request may have the gateway call."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

# RFC 6052: the last four bytes are an IPv4 address behind a translator.
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")


def is_public(text: str) -> bool:
    """Of the internet, and of one host: neither this machine, nor its network, nor a group."""
    try:
        address = ip_address(text)
    except ValueError:
        return False  # With a zone, as fe80::1%en0, which is this network's.
    inner = _inside(address) if isinstance(address, IPv6Address) else None
    if inner is not None:
        return is_public(str(inner))
    return address.is_global and not address.is_multicast


def _inside(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that it leads to."""
    if address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour
