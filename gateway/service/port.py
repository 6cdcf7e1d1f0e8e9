"""Who has the gateway's port."""

from __future__ import annotations

import socket
from typing import Final

import httpx
import msgspec
import psutil
from msgspec import Struct

from gateway.url import url

_ANSWER_S: Final = 3.0


class Health(Struct, frozen=True):
    """Of GET /health."""

    version: str
    uptime_s: float


def listens(pid: int, port: int) -> bool:
    """Whether this process has the port."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(
        each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
        for each in connections
    )


def port_is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError:
        return False
    return True


def ask_health(host: str, port: int) -> Health | None:
    """None if no gateway answers there."""
    try:
        with httpx.Client(timeout=_ANSWER_S, trust_env=False) as client:
            answer = client.get(f"{url(host, port)}/health").raise_for_status()
            return msgspec.json.decode(answer.content, type=Health)
    except (httpx.HTTPError, msgspec.MsgspecError):
        return None
