"""How the service is, and what somebody should do about it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gateway import VERSION
from gateway.config.settings import Settings
from gateway.service.command import run
from gateway.service.definition import Installed, settings_of, stop_s
from gateway.service.failure import ServiceError
from gateway.service.interpreter import lasting
from gateway.service.manager import Manager
from gateway.service.mark import service_pid
from gateway.service.port import ask_health_of
from gateway.service.twin import Job, jobs, twice
from gateway.system.notation import url

# An interpreter that starts says its version in a fraction of a second.
_VERSION_S: Final = 20.0


class ServiceStatus(Struct, frozen=True):
    """None is not known, or none. `jobs` are all of the label, of the account and of the system.
    `warnings` are sentences that say what to do.
    """

    installed: bool
    path: str
    loaded: bool
    pid: int | None
    installed_version: str | None
    running_version: str | None
    uptime_s: float | None
    url: str | None
    stop_s: int | None
    jobs: list[Job]
    warnings: list[str]


def look(manager: Manager) -> ServiceStatus:
    """Raises: ServiceError if its definition can't be read."""
    installed = manager.read()
    found = jobs(manager)
    warnings = [" ".join(each) for each in twice(manager, found)]
    if installed is None:
        path = str(manager.path)
        return ServiceStatus(
            False, path, False, None, None, None, None, None, None, found, warnings
        )
    settings = None
    try:
        settings = settings_of(installed)
    except ServiceError as error:
        warnings.append(f"It will not start again: {error}")
    pid = service_pid(installed.state_dir)
    version = _installed_version(installed, warnings)
    address = health = None
    if settings is not None:
        host, port = settings.gateway.host, settings.gateway.port
        address = url(host, port, tls=settings.gateway.tls)
        health = ask_health_of(settings.gateway) if pid is not None else None
        warnings += _too_short(installed, settings)
        if pid is not None and health is None:
            warnings.append(f"Its gateway doesn't answer at {address}.")
    if health is not None and version is not None and health.version != version:
        warnings.append(
            f"Version {health.version} runs and {version} is installed: "
            "`bulkhead service restart` changes that."
        )
    return ServiceStatus(
        True,
        str(manager.path),
        manager.loaded(),
        pid,
        version,
        None if health is None else health.version,
        None if health is None else health.uptime_s,
        address,
        installed.stop_s,
        found,
        warnings,
    )


def _installed_version(installed: Installed, warnings: list[str]) -> str | None:
    """Of the environment that the service runs, which may be another one than this."""
    if installed.python == lasting():
        return VERSION
    warnings.append(
        f"It runs another environment's Bulkhead ({installed.python}): "
        "`bulkhead service install` makes it this one's."
    )
    try:
        done = run(installed.python, "-P", "-m", "gateway", "--version", within_s=_VERSION_S)
    except ServiceError as error:
        warnings.append(f"It will not start again: {error}")
        return None
    return done.said.rpartition(" ")[2] if done.status == 0 else None


def _too_short(installed: Installed, settings: Settings) -> list[str]:
    needed_s = stop_s(settings.gateway.drain_s)
    if needed_s <= installed.stop_s:
        return []
    return [
        f"Its end gets {installed.stop_s} s and may take {needed_s} s since gateway.drain_s was "
        "raised: `bulkhead service install` grants that."
    ]
