"""HTTP as bytes on a socket, for what no client library would send."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.support.gateway import Gateway

HOST = b"Host: localhost\r\n"


@dataclass
class RawResponse:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


def connect(gateway: Gateway, timeout_s: float = 30.0) -> socket.socket:
    url = urlsplit(gateway.url)
    assert url.hostname is not None
    return socket.create_connection((url.hostname, url.port or 0), timeout_s)


def post(path: str, body: object, *headers: str, version: str = "1.1") -> bytes:
    """A whole request."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", f"Content-Length: {len(text)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + text


def get(path: str, *headers: str, version: str = "1.1") -> bytes:
    return "\r\n".join([f"GET {path} HTTP/{version}", "Host: localhost", *headers, "", ""]).encode()


def read_all(connection: socket.socket) -> bytes:
    """Everything until the other side closes, or cuts the connection."""
    received = bytearray()
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            received += part
    return bytes(received)


def send(connection: socket.socket, data: bytes) -> None:
    """As far as it is taken."""
    with suppress(ConnectionError):
        connection.sendall(data)


def parse(data: bytes) -> RawResponse:
    """The final response; those that only inform come before it."""
    head, _, body = data.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    status = int(status_line.split()[1])
    if status < 200:
        return parse(body)
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return RawResponse(status, headers, body)


def ask(gateway: Gateway, data: bytes) -> RawResponse:
    """Send, and read until the gateway closes."""
    with connect(gateway) as connection:
        send(connection, data)
        return parse(read_all(connection))
