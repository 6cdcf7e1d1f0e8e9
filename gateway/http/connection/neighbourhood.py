"""Where a client comes from, as far as bounds are concerned. No I/O."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

from gateway.system.notation import is_loopback_address

# What one household or one machine gets of IPv6: all its addresses are as easily had as one.
_OWN_BITS: Final = 64


def neighbourhood(host: str) -> str | None:
    """An address, or for IPv6 the network that it is in. None for this machine: who is behind a
    proxy or a tunnel comes from here, so its address says nothing of who it is.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if is_loopback_address(address):
        return None
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return str(IPv6Network((address, _OWN_BITS), strict=False))
        address = address.ipv4_mapped
    return str(address)
