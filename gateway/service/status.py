"""How the service is, and what somebody should do about it.

macOS keeps some folders from a service until somebody allows them at the screen.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from gateway import VERSION
from gateway.config.model_folders import expand_home, hugging_face_cache
from gateway.config.settings import HUGGING_FACE, Settings
from gateway.service.command import ServiceError, run
from gateway.service.definition import Installed, lasting, service_pid, settings_of, stop_s
from gateway.service.manager import Manager, ServiceJob, jobs, twice
from gateway.service.room import ask_health_of
from gateway.system.machine import volume_of
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
    jobs: list[ServiceJob]
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


_OF_THE_HOME: Final = ("Desktop", "Documents", "Downloads")


def guarded_remark(settings: Settings, home: Path, python: str) -> str | None:
    """What somebody should know who installs a service of these settings."""
    found = sorted({str(each) for each in _folders(settings) if _is_guarded(each, home)})
    if not found:
        return None
    return (
        f"macOS may keep the service from {', '.join(found)}, and asks nobody who isn't at the "
        "screen. If `bulkhead status` says so: System Settings, Privacy & Security, Full Disk "
        f"Access, add {os.path.realpath(python)}, then `bulkhead service restart`."
    )


def _folders(settings: Settings) -> Iterable[Path]:
    for model in settings.models.values():
        folder = expand_home(model.path)
        yield folder if folder.is_absolute() else hugging_face_cache()
    for place in settings.discovery.discover:
        yield hugging_face_cache() if place == HUGGING_FACE else expand_home(place)


def _is_guarded(folder: Path, home: Path) -> bool:
    return volume_of(folder / "model") is not None or any(
        folder.is_relative_to(home / each) for each in _OF_THE_HOME
    )
