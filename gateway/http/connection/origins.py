"""Which requests come from a web page that may not make them. No I/O.

A browser on this machine reaches loopback on behalf of any page. Its requests carry the page's
Origin or say that they cross origins, or, after DNS rebinding, have a Host that isn't ours.
Programs that are no browsers send no Origin.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers

from gateway.system.notation import is_loopback

_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
# Ports tell origins apart and sites not, so any other server of this machine is of the same site.
_FOREIGN_SITES: Final = ("cross-site", "same-site")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(?P<host>[^/@]+)")


def complaint(
    headers: Headers,
    *,
    http_1_0: bool,
    hosts: Collection[str],
    origins: Collection[str],
    addresses: bool = False,
    opens_page: bool = False,
) -> str | None:
    """Why a request is refused; None: it isn't. `hosts` and `origins` are allowed beside ours, and
    with `addresses` every one in figures: no name was looked up for it, so none can have been bent.
    With `opens_page` it may be a link that was followed to a page of ours.
    """
    host = _only(headers, "host")
    # What was made before there were browsers needs none, and no page can leave it out.
    if not (http_1_0 and "host" not in headers):
        if host is None:
            return "One Host is needed."
        named = _HOST.fullmatch(host)
        name = named["name"].strip("[]") if named else None
        ours = name is not None and (is_loopback(name) or name in hosts)
        if not (ours or (addresses and _is_address(name))):
            return (
                f"The Host {host[:200]!r} is not this machine; gateway.allowed_hosts can name "
                "others."
            )
    if "origin" not in headers:
        followed = opens_page and _is_followed_link(headers)
        if headers.get("sec-fetch-site") in _FOREIGN_SITES and not followed:
            return (
                "A page of another server asks for this; gateway.allowed_origins can allow pages "
                "that say who they are."
            )
        return None
    origin = _only(headers, "origin")
    if origin in origins:
        return None
    page = _ORIGIN.fullmatch(origin or "")
    if page is None or page["host"] != host:
        return (
            f"The Origin {(origin or '')[:200]!r} is not this server; gateway.allowed_origins can "
            "name others."
        )
    return None


def _is_address(name: str | None) -> bool:
    try:
        ipaddress.ip_address(name or "")
    except ValueError:
        return False
    return True


def _is_followed_link(headers: Headers) -> bool:
    """The answer is shown in a window of its own, and the page with the link sees none of it."""
    return (
        _only(headers, "sec-fetch-mode") == "navigate"
        and _only(headers, "sec-fetch-dest") == "document"
    )


def from_page(headers: Headers) -> bool:
    """Whether a page in a browser has made the request."""
    return "origin" in headers


def _only(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    return values[0].lower() if len(values) == 1 else None
