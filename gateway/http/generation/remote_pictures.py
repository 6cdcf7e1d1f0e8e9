"""Fetches pictures from http and https addresses, if the operator allows it.

A DNS name may resolve to any address, and to a different address the next time. So each name is
resolved once, and the connection goes to the address that was checked. Redirections are checked,
too.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Collection
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
from urllib.parse import urljoin

import httpx
import psutil

from gateway.http.wire.errors import PictureError
from gateway.system.lane import Lane

Network = IPv4Network | IPv6Network

# The special-purpose addresses of IANA's registries (RFC 6890) in July 2026, and multicast. The
# table in Python differs from version to version, and lacks 6to4 and the prefixes of translators.
_SPECIAL_IPV4: Final = tuple(
    IPv4Network(network)
    for network in (
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
# The addresses that IANA assigns to hosts. Outside this network are loopback, IPv4-compatible,
# link-local, site-local and unique local addresses, multicast, and 64:ff9b:1::/48 for local
# translators (RFC 8215).
_UNICAST: Final = IPv6Network("2000::/3")
_SPECIAL_IPV6: Final = tuple(
    IPv6Network(network)
    for network in (
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
    """Whether an address is public and outside the networks of this machine; blocks."""
    return is_public(text, own_networks())


def is_public(text: str, excluded: Collection[Network] = ()) -> bool:
    """Whether an IP address belongs to a host on the internet, outside the `excluded` networks."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        if (inner := _inside(address)) is not None:
            return is_public(str(inner), excluded)
        special = address not in _UNICAST or any(address in network for network in _SPECIAL_IPV6)
    else:
        special = any(address in ipv4_network for ipv4_network in _SPECIAL_IPV4)
    return not special and not any(address in network for network in excluded)


def own_networks() -> list[Network]:
    """The networks of this machine's interfaces. Machines in these may have public addresses."""
    networks: list[Network] = []
    for addresses in psutil.net_if_addrs().values():
        for snicaddr in addresses:
            try:
                address = ip_interface(snicaddr.address.partition("%")[0])
            except ValueError:
                continue  # A hardware address.
            networks.append(
                ip_network((address.ip, _length(snicaddr.netmask, address.version)), False)
            )
    return networks


def _length(mask: str | None, version: int) -> int:
    """The prefix length of a network. A mask that is missing or 0, as some tunnels have it, means a
    single host.
    """
    bits = 0 if mask is None else int(ip_address(mask)).bit_count()
    return bits or _BITS[version]


def _inside(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for; None: it stands for no IPv4 address."""
    if address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped


_MOST_REDIRECTIONS: Final = 3
_MOST_AT_A_TIME: Final = 8
_LOOKUP_S: Final = 5.0
_LONGEST_LABEL: Final = 63
_LAST_PORT: Final = 65_535
_AGENT: Final = "bulkhead"


class RemotePictures:
    """Fetches pictures, a bounded number at a time."""

    def __init__(self, may_call: Callable[[str], bool] = may_call) -> None:
        """`may_call` says whether an IP address may be called, and may block."""
        self._may_call = may_call
        # Resolves names and reads the certificates of authorities (half a megabyte) in a thread,
        # since both take time.
        self._lane = Lane("picture names")
        self._places = asyncio.Semaphore(_MOST_AT_A_TIME)
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, url: str, most_bytes: int, deadline_s: float) -> bytes:
        """Raises: PictureError: the address may not be called, or no picture came in time."""
        try:
            async with asyncio.timeout(deadline_s), self._places:
                return await self._fetch(url, most_bytes)
        except TimeoutError as error:
            raise PictureError(f"it did not come within {deadline_s:.0f} s") from error
        except (httpx.HTTPError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise PictureError(f"it can't be fetched: {reason}") from error

    async def _fetch(self, url: str, most_bytes: int) -> bytes:
        if self._tls is None:
            self._tls = await self._lane.run(_tls, _LOOKUP_S, "the reading of certificates")
        address = _parsed(url)
        async with httpx.AsyncClient(verify=self._tls, trust_env=False, timeout=None) as client:  # noqa: S113 - there is one around it
            for _ in range(_MOST_REDIRECTIONS + 1):
                request = await self._request(client, address)
                response = await client.send(request, stream=True)
                try:
                    if response.has_redirect_location:
                        address = _parsed(response.headers["location"], str(address))
                        continue
                    return await _body(response, most_bytes)
                finally:
                    await response.aclose()
        raise PictureError(f"it is redirected more than {_MOST_REDIRECTIONS} times")

    async def _request(self, client: httpx.AsyncClient, address: httpx.URL) -> httpx.Request:
        ip = await self._resolve(address)
        return client.build_request(
            "GET",
            address.copy_with(host=ip),
            headers={
                "Host": address.netloc.decode("ascii"),
                "User-Agent": _AGENT,
                "Accept": "image/*",
                # A compressed body could expand to a thousand times the bytes that are counted.
                "Accept-Encoding": "identity",
            },
            extensions={"sni_hostname": address.raw_host.decode("ascii")},
        )

    async def _resolve(self, address: httpx.URL) -> str:
        host = address.raw_host.decode("ascii").strip("[]")
        port = address.port or (443 if address.scheme == "https" else 80)

        def look_up() -> str | None:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = [str(info[4][0]) for info in infos]
            return addresses[0] if addresses and all(map(self._may_call, addresses)) else None

        address_called = await self._lane.run(look_up, _LOOKUP_S, "the lookup of names")
        if address_called is None:
            raise PictureError(
                f"{host} is not an address of the internet: the gateway calls none of this machine "
                "or its network"
            )
        return address_called


def _parsed(url: str, base: str = "") -> httpx.URL:
    """Raises: PictureError: the address is invalid, or can't be called."""
    try:
        address = httpx.URL(urljoin(base, url))
        host = address.host
    except (httpx.InvalidURL, ValueError) as error:
        raise PictureError(f"it is no address: {error}") from error
    if address.scheme not in ("http", "https") or not host:
        raise PictureError("it is no http or https address")
    if address.userinfo:
        raise PictureError("it has a user name or a password, which the gateway doesn't send")
    labels = address.raw_host.removesuffix(b".").split(b".")
    if not all(0 < len(label) <= _LONGEST_LABEL for label in labels):
        raise PictureError(
            f"{host!r} is no name of a machine: between its dots stand 1 to {_LONGEST_LABEL} "
            "characters"
        )
    if address.port is not None and not 0 < address.port <= _LAST_PORT:
        raise PictureError(f"{address.port} is no port")
    return address


async def _body(response: httpx.Response, most_bytes: int) -> bytes:
    if response.status_code != httpx.codes.OK:
        raise PictureError(f"its server answered with status {response.status_code}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise PictureError("its server compressed it, though it was asked not to")
    declared = response.headers.get("content-length", "")
    body = bytearray()
    if not (declared.isdecimal() and int(declared) > most_bytes):
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > most_bytes:
                break
        else:
            return bytes(body)
    raise PictureError(f"it is too large: {most_bytes >> 20} MiB is the most")


def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)
