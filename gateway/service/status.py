"""The state of the service and of the gateway at its port, and warnings with remedies."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import httpx
import msgspec
import psutil
from msgspec import Struct

import gateway
from gateway import VERSION
from gateway.config.model_folders import expand_home, hugging_face_cache
from gateway.config.settings import HUGGING_FACE, GatewaySettings, Settings
from gateway.service.definition import (
    Installed,
    ServiceDefinition,
    ServiceError,
    lasting,
    service_pid,
    settings_of,
    stop_s,
)
from gateway.service.init_system import InitSystem, ServiceJob, duplicates, jobs, run
from gateway.system.file_access import program, volume_of
from gateway.system.listening import is_listened_at
from gateway.system.notation import url
from gateway.system.state_dir import near_url
from gateway.system.tls import trusting_anybody

_ANSWER_S: Final = 3.0


class PortHealth(Struct, frozen=True):
    """Fields of GET /health."""

    version: str
    uptime_s: float


def listening_at(pid: int) -> list[tuple[str, int]]:
    """The hosts and ports at which a process listens; empty if they can't be seen."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return []
    return [
        (connection.laddr.ip, connection.laddr.port)
        for connection in connections
        if connection.status == psutil.CONN_LISTEN and connection.laddr
    ]


def port_is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if is_listened_at(host, port):
        return False
    try:
        socket.create_server((host, port), family=family).close()
    except OSError:
        return False
    return True


def ask_health(host: str, port: int, *, tls: bool = False) -> PortHealth | None:
    """The health of the gateway at an address; None: no gateway answers."""
    verify = trusting_anybody() if tls else True
    try:
        with httpx.Client(timeout=_ANSWER_S, trust_env=False, verify=verify) as client:
            answer = client.get(f"{near_url(host, port, tls=tls)}/health").raise_for_status()
            return msgspec.json.decode(answer.content, type=PortHealth)
    except (httpx.HTTPError, msgspec.MsgspecError):
        return None


def ask_health_of(settings: GatewaySettings) -> PortHealth | None:
    """The health of the gateway at the address of these settings."""
    return ask_health(settings.host, settings.port, tls=settings.tls)


# Seconds for the service's interpreter to print the version of Bulkhead.
_VERSION_S: Final = 20.0


class ServiceStatus(Struct, frozen=True):
    """The state of the service. A field is None if its value is unknown or doesn't exist. `jobs`
    has the jobs of the account's and of the system's service. Each warning is a fault with its
    remedy, in sentences.
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


def look(init: InitSystem) -> ServiceStatus:
    """Raises: ServiceError: the definition can't be read."""
    installed = init.read()
    service_jobs = jobs(init)
    warnings = [" ".join(duplicate) for duplicate in duplicates(init, service_jobs)]
    if installed is None:
        path = str(init.path)
        return ServiceStatus(
            False, path, False, None, None, None, None, None, None, service_jobs, warnings
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
        str(init.path),
        init.loaded(),
        pid,
        version,
        None if health is None else health.version,
        None if health is None else health.uptime_s,
        address,
        installed.stop_s,
        service_jobs,
        warnings,
    )


def _installed_version(installed: Installed, warnings: list[str]) -> str | None:
    """The version of Bulkhead that the service's interpreter has; None: it can't be found out."""
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
    return done.printed.strip().rpartition(" ")[2] if done.status == 0 else None


def _too_short(installed: Installed, settings: Settings) -> list[str]:
    needed_s = stop_s(settings.gateway.drain_s)
    if needed_s <= installed.stop_s:
        return []
    return [
        f"Its end gets {installed.stop_s} s and may take {needed_s} s since gateway.drain_s was "
        "raised: `bulkhead service install` grants that."
    ]


# The folder of Bulkhead's own files: of a checkout, if that is installed as it is.
_CODE: Final = Path(gateway.__file__).parent
# The last two have iCloud Drive, and the drives of other clouds.
_OF_THE_HOME: Final = (
    *("Desktop", "Documents", "Downloads"),
    *("Library/Mobile Documents", "Library/CloudStorage"),
)


def guarded_remark(
    settings: Settings, definition: ServiceDefinition, config: Path | None
) -> str | None:
    """A warning if macOS guards folders that the service reads; None: no folder is guarded. The
    service may read guarded folders only after a permission at the screen.
    """
    home = definition.owner.home
    places = {str(folder): folder for folder in _folders(settings)}
    places |= {
        f"the environment {sys.prefix}": Path(sys.prefix),
        f"the program in {_CODE}": _CODE,
        f"the state folder {definition.state_dir}": definition.state_dir,
    }
    if config is not None:
        places[f"the configuration {config}"] = config
    guarded = sorted(name for name, place in places.items() if _is_guarded(place, home))
    if not guarded:
        return None
    return (
        f"macOS may keep the service from {', '.join(guarded)}, and asks nobody who isn't at the "
        f"screen. Move that elsewhere, for example to {home / 'bulkhead'}, and install the service "
        "anew; or allow it: System Settings, Privacy & Security, Full Disk Access, add "
        f"{program()}, then `bulkhead service restart`."
    )


def _folders(settings: Settings) -> Iterable[Path]:
    for model in settings.models.values():
        folder = expand_home(model.path)
        yield folder if folder.is_absolute() else hugging_face_cache()
    for place in settings.discovery.discover:
        yield hugging_face_cache() if place == HUGGING_FACE else expand_home(place)


def _is_guarded(place: Path, home: Path) -> bool:
    """Whether the place is guarded, or what it leads to if it is a link."""
    real_home = Path(os.path.realpath(home))
    guarded = [folder / name for folder in (home, real_home) for name in _OF_THE_HOME]
    return any(
        volume_of(path / "model") is not None or any(map(path.is_relative_to, guarded))
        for path in (place, Path(os.path.realpath(place)))
    )
