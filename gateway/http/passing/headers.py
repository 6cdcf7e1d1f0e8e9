"""The headers of requests that are passed on, and of their answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.system.http_client import Headers

# What may pass, since any other header may mean something to a server, or act on this gateway's own
# origin: keys and cookies, addresses of clients, orders of other gateways.
_TO_SERVERS: Final = frozenset(
    b"accept accept-language cache-control content-type http-referer idempotency-key if-match "
    b"if-modified-since if-none-match if-range if-unmodified-since range traceparent tracestate "
    b"user-agent x-request-id x-title "
    b"anthropic-beta anthropic-dangerous-direct-browser-access anthropic-version "
    b"openai-beta".split()
)
_KINDS_TO_SERVERS: Final = (b"x-stainless-",)
# The order of others' requests, and who pays of an upstream's account, is nothing that every caller
# may change.
_OF_OPERATORS: Final = {b"x-priority", b"openai-organization", b"openai-project"}
_TO_CLIENTS: Final = frozenset(
    b"accept-ranges age allow cache-control content-disposition content-encoding content-language "
    b"content-length content-range content-type etag expires last-modified retry-after vary "
    b"openai-model openai-processing-ms openai-version".split()
)
# A page of another server has this gateway's origin. In a sandbox it can't act as the operator.
_HARMLESS: Final = [
    (b"content-security-policy", b"sandbox"),
    (b"x-content-type-options", b"nosniff"),
]
_BODILESS: Final = (204, 304)


def passed_on(headers: Iterable[tuple[bytes, bytes]], via: str, *, operator: bool) -> Headers:
    """The headers that another server gets of a client's request, or of an operator's, with `via`
    as this gateway's name in Via.
    """
    headers = list(headers)
    before = [value for name, value in headers if name == b"via"]
    names = _TO_SERVERS | _OF_OPERATORS if operator else _TO_SERVERS
    kept = [each for each in headers if each[0] in names or each[0].startswith(_KINDS_TO_SERVERS)]
    return [*kept, (b"via", b", ".join([*before, b"1.1 " + via.encode()]))]


def passed_back(headers: Headers, status: int, *, framed: bool) -> Headers:
    """The headers of a server's answer that the client gets. `framed`: the body goes on as it came,
    so its length is the one that they tell.
    """
    kept = [each for each in headers if each[0] in _TO_CLIENTS]
    if not framed or status in _BODILESS:
        kept = [each for each in kept if each[0] != b"content-length"]
    return kept + _HARMLESS
