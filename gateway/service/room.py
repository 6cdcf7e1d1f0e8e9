"""Whether there is room for a service: nobody else has its folder, its port or its name."""

from __future__ import annotations

from pathlib import Path

from gateway.config.settings import Settings
from gateway.service.failure import ServiceError
from gateway.service.manager import Manager
from gateway.service.port import ask_health_of, listens, port_is_free
from gateway.service.twin import known, removal
from gateway.system.state_dir import lock_holder


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
