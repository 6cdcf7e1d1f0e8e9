"""The installation that the doctor checks: configuration, state folder and running gateway."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import psutil
from msgspec import Struct
from msgspec.structs import replace

from gateway.access.key_file import admin_key
from gateway.config.layers import Mistake
from gateway.config.read import read_draft
from gateway.config.settings import Flags, GatewaySettings, Settings
from gateway.http.wire.command_bodies import ModelStatus, Status
from gateway.service.definition import service_pid
from gateway.service.status import PortHealth, ask_health, listening_at, port_is_free
from gateway.system.memory import device_info
from gateway.system.state_dir import (
    StateDir,
    StateDirError,
    lock_holder,
    near_url,
    running_address,
)
from gateway.system.tls import trusting_anybody


class Process(Struct, frozen=True):
    """A process, with the name of its program. `stopped` is True after SIGSTOP or Ctrl-Z."""

    pid: int
    name: str
    stopped: bool = False

    def __str__(self) -> str:
        return f"{self.name}, pid {self.pid}"


_ANSWER_S: Final = 3.0


class Running(Struct, frozen=True):
    """The gateway that runs with the state folder, and the program at the configured address.

    The gateway: `holder` is the process that has the lock of the state folder. `address` and `tls`
    are as the gateway has recorded them. Without a record, `address` is one at which the process
    listens, or the configured one. `health` is the gateway's answer there, `key` is the admin key
    if there is an answer, and `status` the gateway's status if it tells that.

    The configured address: `port_free` says whether a gateway could listen there, `port_holder` is
    another process that listens there, and `stranger` is the answer of another gateway there.
    """

    holder: Process | None
    is_service: bool
    address: tuple[str, int]
    health: PortHealth | None
    port_free: bool
    port_holder: Process | None
    stranger: PortHealth | None
    status: Status | None = None
    tls: bool = False
    key: str | None = None

    @property
    def url(self) -> str:
        return near_url(*self.address, tls=self.tls)

    @property
    def models(self) -> list[ModelStatus]:
        return [] if self.status is None else self.status.models

    @property
    def troubles(self) -> dict[str, str]:
        """The reasons why models can't be loaded, by models."""
        reasons = {model.id: _trouble(model) for model in self.models}
        return {model_id: reason for model_id, reason in reasons.items() if reason is not None}

    @property
    def unreached(self) -> dict[str, str]:
        """The reasons why the gateway can't reach hosts, by hosts."""
        hosts = [] if self.status is None else self.status.hosts
        return {host.name: host.reason for host in hosts if host.reason and not host.reachable}

    @property
    def refused(self) -> dict[str, str]:
        """The reasons why the gateway sends upstreams no requests, by upstreams."""
        servers = [] if self.status is None else self.status.upstreams
        return {server.name: server.reason for server in servers if server.reason is not None}

    def client(self, timeout_s: float) -> httpx.Client:
        """An HTTP client of the gateway that has the lock. The client sends the admin key."""
        return httpx.Client(
            base_url=self.url,
            headers={} if self.key is None else {"authorization": f"Bearer {self.key}"},
            timeout=timeout_s,
            # A proxy from the environment (HTTP_PROXY) would look for 127.0.0.1 on its own machine.
            trust_env=False,
            verify=trusting_anybody() if self.tls else True,
        )


def _trouble(model: ModelStatus) -> str | None:
    """The reason why the model can't be loaded; None if it can, as after an ordered unload."""
    refused = model.reason is not None and "can't be loaded" in model.reason
    return model.reason if refused or model.state in ("failed", "backoff") else None


def look_for_gateway(settings: GatewaySettings, state_dir: StateDir) -> Running:
    """Find the gateway by lock and address. This takes some seconds if the gateway hangs."""
    configured = (settings.host, settings.port)
    holder = _lock_holder(state_dir)
    addresses = [] if holder is None else listening_at(holder.pid)
    configured_is_its = any(port == settings.port for _, port in addresses)
    address, tls = _served_at(state_dir, addresses) or (
        configured if configured_is_its or not addresses else addresses[0],
        settings.tls,
    )
    free = settings.port == 0 or port_is_free(*configured)
    port_holder = None if free or configured_is_its else _listener(settings.port)
    health = ask_health(*address, tls=tls) if holder is not None and addresses else None
    running = Running(
        holder=holder,
        is_service=holder is not None and service_pid(state_dir.path) == holder.pid,
        address=address,
        health=health,
        port_free=free,
        port_holder=port_holder,
        stranger=None if free or configured_is_its else ask_health(*configured, tls=settings.tls),
        tls=tls,
        key=None if health is None else admin_key(state_dir.admin_key_path),
    )
    return running if health is None else replace(running, status=_ask_status(running))


def _served_at(
    state_dir: StateDir, addresses: list[tuple[str, int]]
) -> tuple[tuple[str, int], bool] | None:
    """The address that the gateway has recorded, and whether it uses TLS; None without a record. If
    `addresses`, at which the gateway listens, has the recorded port, the host is taken from there.
    """
    try:
        written = running_address(state_dir)
    except StateDirError:
        written = None
    if written is None:
        return None
    url = httpx.URL(written.url)
    near = url.host, url.port or 0
    listening = (address for address in addresses if address[1] == near[1])
    return next(listening, near), written.certificate is not None


def _lock_holder(state_dir: StateDir) -> Process | None:
    pid = lock_holder(state_dir.path)
    if pid is not None:
        return _process(pid)
    # The file may have the pid of a process that is gone. To try the lock could disturb a starting
    # gateway. So the process that has the file open counts as the holder.
    if not os.path.exists(state_dir.lock_path):  # noqa: PTH110 - this one never raises.
        return None
    return _opener(state_dir.lock_path)


def _opener(path: Path) -> Process | None:
    """The process that has a file open, if it is visible without privileges."""
    resolved = str(path.resolve())
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if any(file.path == resolved for file in process.open_files()):
                return _process(process.pid)
    return None


def _process(pid: int) -> Process:
    try:
        return Process(pid, psutil.Process(pid).name(), is_stopped(pid))
    except psutil.Error:
        return Process(pid, "unknown")


def is_stopped(pid: int) -> bool:
    """Raises: psutil.Error: there is no such process, or this account may not see the process."""
    return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def _ask_status(running: Running) -> Status | None:
    """The gateway's status; None if the gateway refuses the request or doesn't answer."""
    try:
        with running.client(_ANSWER_S) as client:
            answer = client.get("/admin/v1/status").raise_for_status()
            return msgspec.json.decode(answer.content, type=Status)
    except (httpx.HTTPError, msgspec.MsgspecError):
        return None


def _listener(port: int) -> Process | None:
    for process in psutil.process_iter():
        if any(number == port for _, number in listening_at(process.pid)):
            return _process(process.pid)
    return None


class Installation:
    """The facts that several checks need. Each fact is found out only once."""

    def __init__(self, flags: Flags, environment: Mapping[str, str]) -> None:
        draft = read_draft(flags, environment)
        self.settings: Settings = draft.settings
        self.mistakes: list[Mistake] = draft.mistakes
        self.config_file: Path | None = draft.file
        self.config_digest: str | None = draft.digest
        self.state_dir: StateDir = StateDir.of(draft.settings.gateway.state_dir)
        self._running: Running | None = None
        self._device: dict[str, Any] | None = None

    def running(self) -> Running:
        """The state folder's gateway, and the program at the configured address."""
        if self._running is None:
            self._running = look_for_gateway(self.settings.gateway, self.state_dir)
        return self._running

    def device(self) -> dict[str, Any]:
        """MLX's information about the device.

        Raises:
            OSError, ValueError, subprocess.SubprocessError: MLX doesn't answer.
        """
        if self._device is None:
            self._device = device_info()
        return self._device
