"""A refusal as bytes, for requests that don't come as far as the application."""

from __future__ import annotations

from http import HTTPStatus

from gateway.api.errors import error_response
from gateway.dispatch.refusal import Refusal
from gateway.edge.request_id import HEADER


def plain_response(refusal: Refusal, request_id: str) -> bytes:
    """A whole response, after which the connection closes."""
    response = error_response(refusal)
    headers = [
        *response.raw_headers,
        (HEADER, request_id.encode("ascii")),
        (b"connection", b"close"),
    ]
    status = HTTPStatus(refusal.status)
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    return head + lines + b"\r\n" + bytes(response.body)
