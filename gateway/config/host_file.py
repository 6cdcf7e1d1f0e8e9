"""mlx.launch's host file: the machines that compute a model together, as JSON."""

from __future__ import annotations

from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from gateway.config.model_folders import expand_home
from gateway.config.model_settings import LOCAL, HostSettings, ModelSettings, RankPlace
from gateway.config.settings import Settings
from gateway.config.toml_locations import Place
from gateway.system.state_file import read_file
from protocol.life import RankBackend

_BACKENDS: Final = get_args(RankBackend)


class _Machine(Struct, frozen=True):
    """A machine. `ips` are its addresses for the back end ring. `rdma` has its devices towards each
    machine, and null for itself.
    """

    ssh: str
    ips: tuple[str, ...] = ()
    rdma: tuple[str | list[str] | None, ...] = ()


class _HostFile(Struct, frozen=True):
    hosts: tuple[_Machine, ...]
    backend: str = ""


def with_host_files(settings: Settings) -> tuple[Settings, list[tuple[Place, str]]]:
    """The settings, with ranks and hosts from the host files that models name. Returns also the
    mistakes. The first machine of a file is this one.
    """
    mistakes: list[tuple[Place, str]] = []
    hosts, models = dict(settings.hosts), dict(settings.models)
    for model_id, model in settings.models.items():
        if model.hostfile is None:
            continue
        place = ("models", model_id, "hostfile")
        if model.ranks or model.local > 1:
            mistakes.append((place, "ranks, or local, say already how many processes there are"))
            continue
        try:
            models[model_id] = _with_ranks(model, _read(model.hostfile), hosts)
        except ValueError as error:
            mistakes.append((place, str(error)))
    return msgspec.structs.replace(settings, hosts=hosts, models=models), mistakes


def _read(path: str) -> _HostFile:
    """Raises: ValueError: there is no such file, or no host file."""
    file = expand_home(path)
    try:
        content: Any = msgspec.json.decode(read_file(file))
        # An older form is the list of the machines alone.
        host_file = msgspec.convert(
            {"hosts": content} if isinstance(content, list) else content, _HostFile
        )
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ValueError(f"{file} is no host file of mlx.launch: {error}") from error
    if not host_file.hosts:
        raise ValueError(f"{file} names no machine")
    if host_file.backend and host_file.backend not in _BACKENDS:
        raise ValueError(
            f"{file} has the backend {host_file.backend!r}; known are {', '.join(_BACKENDS)}"
        )
    return host_file


def _with_ranks(
    model: ModelSettings, host_file: _HostFile, hosts: dict[str, HostSettings]
) -> ModelSettings:
    """The model with a rank on each machine of the file. Machines without a table of their own are
    added to `hosts`.
    """
    backend: Any = model.backend or host_file.backend or None
    places = []
    for rank, machine in enumerate(host_file.hosts):
        devices = tuple(
            device if isinstance(device, str) else device[0] for device in machine.rdma if device
        )
        name = _host_name(machine.ssh, hosts) if rank else LOCAL
        places.append(RankPlace(name, devices if backend == "jaccl" else machine.ips))
    return msgspec.structs.replace(model, ranks=tuple(places), backend=backend)


def _host_name(ssh: str, hosts: dict[str, HostSettings]) -> str:
    """The name of the host that ssh calls so."""
    if ssh in hosts:
        return ssh
    for name, host in hosts.items():
        if host.ssh == ssh:
            return name
    name = ssh.rpartition("@")[2]
    hosts[name] = HostSettings(ssh=ssh)
    return name
