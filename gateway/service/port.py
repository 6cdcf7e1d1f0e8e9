"""Who has the gateway's port."""

from __future__ import annotations

import socket
from typing import Final

import httpx
import msgspec
import psutil
from msgspec import Struct

from gateway.config.settings import GatewaySettings
from gateway.system.state_dir import near_url
from gateway.system.tls import trusting_anybody

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


def ask_health(host: str, port: int, *, tls: bool = False) -> Health | None:
    """None if no gateway answers there."""
    verify = trusting_anybody() if tls else True
    try:
        with httpx.Client(timeout=_ANSWER_S, trust_env=False, verify=verify) as client:
            answer = client.get(f"{near_url(host, port, tls=tls)}/health").raise_for_status()
            return msgspec.json.decode(answer.content, type=Health)
    except (httpx.HTTPError, msgspec.MsgspecError):
        return None


def ask_health_of(settings: GatewaySettings) -> Health | None:
    """Of the gateway that these settings are in force for."""
    return ask_health(settings.host, settings.port, tls=settings.tls)
