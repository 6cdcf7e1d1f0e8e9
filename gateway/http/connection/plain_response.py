"""A refusal as bytes, for requests that don't come as far as the application."""

from __future__ import annotations

from http import HTTPStatus

from gateway.http.connection.request_id import HEADER
from gateway.http.errors import error_response
from gateway.system.refusal import Refusal


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
