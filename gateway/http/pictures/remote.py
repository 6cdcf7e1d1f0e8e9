"""Pictures from http and https addresses, for operators who allow it.

A name may lead anywhere, and somewhere else the next time that it is asked for. So it is resolved
here, once, and what is called is the address that was looked at; each redirection begins anew.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final
from urllib.parse import urljoin

import httpx

from gateway.http.pictures.addresses import may_call
from gateway.http.pictures.source import PictureError
from gateway.system.lane import Lane

_MOST_REDIRECTIONS: Final = 3
_MOST_AT_A_TIME: Final = 8
_LOOKUP_S: Final = 5.0
_LONGEST_LABEL: Final = 63
_LAST_PORT: Final = 65_535
_AGENT: Final = "bulkhead"


class Remote:
    """Fetches for so many callers at a time; others wait, within their time."""

    def __init__(self, may_call: Callable[[str], bool] = may_call) -> None:
        """`may_call` says it of an IP address, and may block."""
        self._may_call = may_call
        # Names may take their time; the certificates of authorities are half a megabyte to read.
        self._lane = Lane("picture names")
        self._places = asyncio.Semaphore(_MOST_AT_A_TIME)
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, url: str, most_bytes: int, deadline_s: float) -> bytes:
        """Raises: PictureError: nobody may call there, or nothing usable came in time."""
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
                # A compressed body could be a thousand times as large as what was counted.
                "Accept-Encoding": "identity",
            },
            extensions={"sni_hostname": address.raw_host.decode("ascii")},
        )

    async def _resolve(self, address: httpx.URL) -> str:
        host = address.raw_host.decode("ascii").strip("[]")
        port = address.port or (443 if address.scheme == "https" else 80)

        def look_up() -> str | None:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = [str(each[4][0]) for each in found]
            return addresses[0] if addresses and all(map(self._may_call, addresses)) else None

        address_called = await self._lane.run(look_up, _LOOKUP_S, "the lookup of names")
        if address_called is None:
            raise PictureError(
                f"{host} is not an address of the internet: none of this machine or its network "
                "is called"
            )
        return address_called


def _parsed(url: str, base: str = "") -> httpx.URL:
    """Raises: PictureError: nobody can be asked for it."""
    try:
        address = httpx.URL(urljoin(base, url))
        host = address.host
    except (httpx.InvalidURL, ValueError) as error:
        raise PictureError(f"it is no address: {error}") from error
    if address.scheme not in ("http", "https") or not host:
        raise PictureError("it is no http or https address")
    if address.userinfo:
        raise PictureError("it has a name or a password in it, which are not sent")
    labels = address.raw_host.removesuffix(b".").split(b".")
    if not all(0 < len(each) <= _LONGEST_LABEL for each in labels):
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
