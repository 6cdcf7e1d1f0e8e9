"""Whether there is room for a service: nobody else has its folder, its port or its name."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

import httpx
import msgspec
import psutil
from msgspec import Struct

from gateway.config.settings import GatewaySettings, Settings
from gateway.service.command import ServiceError
from gateway.service.manager import Manager, known, removal
from gateway.system.state_dir import lock_holder, near_url
from gateway.system.tls import trusting_anybody

_ANSWER_S: Final = 3.0


class PortHealth(Struct, frozen=True):
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


def ask_health(host: str, port: int, *, tls: bool = False) -> PortHealth | None:
    """None if no gateway answers there."""
    verify = trusting_anybody() if tls else True
    try:
        with httpx.Client(timeout=_ANSWER_S, trust_env=False, verify=verify) as client:
            answer = client.get(f"{near_url(host, port, tls=tls)}/health").raise_for_status()
            return msgspec.json.decode(answer.content, type=PortHealth)
    except (httpx.HTTPError, msgspec.MsgspecError):
        return None


def ask_health_of(settings: GatewaySettings) -> PortHealth | None:
    """Of the gateway that these settings are in force for."""
    return ask_health(settings.host, settings.port, tls=settings.tls)


def check_free(state_dir: Path, settings: Settings, pid: int | None) -> None:
    """Whether the service can have its folder and its port, or has them: `pid` is its own.

    Raises:
        ServiceError: it can't.
    """
    holder = lock_holder(state_dir)
    if holder not in (None, pid):
        raise ServiceError(
            f"A gateway that is not this service (pid {holder}) uses the state folder "
            f"{state_dir}: end it, or choose another folder with --state-dir."
        )
    host, port = settings.gateway.host, settings.gateway.port
    if port == 0:
        raise ServiceError("A service needs a port that stays: set gateway.port.")
    if port_is_free(host, port) or (pid is not None and listens(pid, port)):
        return
    health = ask_health_of(settings.gateway)
    if health is None:
        raise ServiceError(
            f"Another program has port {port} on {host}: end it, or set gateway.port."
        )
    raise ServiceError(
        f"A Bulkhead gateway (version {health.version}) that is not this service has port "
        f"{port} on {host}: end it, or set another gateway.port."
    )


def check_alone(keeper: Manager) -> None:
    """Two services would take turns at one port and one folder.

    Raises:
        ServiceError: there is one of the other kind.
    """
    other = keeper.other
    if where := known(other):
        raise ServiceError(
            f"There is a service {'of the system' if other.system else 'of the account'} "
            f"already ({where}), and two would fight for one port: remove it first, with "
            f"`{removal(other)}`."
        )
