"""The orders of `bulkhead service`. Each order may be given twice, and reports its steps."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway import VERSION
from gateway.config.settings import Settings
from gateway.service.definition import (
    DraftFile,
    Installed,
    Owner,
    ServiceDefinition,
    ServiceError,
    assumed,
    make_private_folder,
    service_pid,
    settings_of,
)
from gateway.service.init_system import InitSystem, known, removal, run
from gateway.service.launchd import Launchd
from gateway.service.status import ServiceStatus, ask_health_of, listening_at, look, port_is_free
from gateway.service.systemd import Systemd
from gateway.system.listening import is_here
from gateway.system.notation import url
from gateway.system.state_dir import StateDir, lock_holder

_LINES: Final = 5


class GatewayOutput:
    """The lines that a gateway prints from now on into launchd's log of crashes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen_bytes = path.stat().st_size if path.exists() else 0

    def tail(self) -> str:
        """The last lines, indented; empty if there are none."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._seen_bytes)
                lines = log.read(1 << 16).decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return "\n".join(f"  | {line}" for line in lines[-_LINES:])


# Seconds until the service must answer. A second attempt of launchd, which comes after
# ThrottleInterval, has time enough.
_SERVES_S: Final = 200.0
# Seconds without a gateway in the state folder after which a start has failed.
_GIVES_UP_S: Final = 25.0
# The same after a gateway has printed something. A gateway that has no state folder yet prints only
# if it fails.
_AFTER_OUTPUT_S: Final = 5.0
_LOOK_S: Final = 0.25
_LOG_LINES: Final = 20


class Service:
    """Carries out the orders. Every method raises `ServiceError` if it fails."""

    def __init__(self, init: InitSystem, say: Callable[[str], None]) -> None:
        self._init = init
        self._say = say

    def install(self, definition: ServiceDefinition, settings: Settings) -> None:
        """Write the definition and start the service. An older service is replaced."""
        rendered = self._init.render(definition)
        before = self._init.read()
        pid = None if before is None else service_pid(before.state_dir)
        check_free(definition.state_dir, settings, pid)
        if before is not None and self._is_this(rendered, settings, pid):
            self._say(f"It is installed and runs (pid {pid}): there is nothing to do.")
            return
        # All that may fail happens before the running service ends.
        self._init.probe()
        check_alone(self._init)
        make_private_folder(definition.state_dir, definition.owner)
        draft = DraftFile(self._init.path, rendered)
        if before is None:
            self._say(f"Writing {self._init.path}.")
            self._install_first(draft, definition, settings)
        else:
            self._say(f"Replacing the service of {self._init.path}.")
            self._replace(draft, definition, settings, before)

    def uninstall(self) -> None:
        """End the service and remove its definition, in any state of the service. For root this
        also removes the service of the other kind. The state folder stays.
        """
        other = self._init.other
        if known(self._init):
            self._uninstall(self._init)
        elif not known(other):
            self._say(f"There is no service: {self._init.path} doesn't exist.")
        if known(other) and os.geteuid() == 0:
            self._uninstall(other)
        elif known(other):
            self._say(f"There is another one, {other.path}: `{removal(other)}` removes it.")

    def start(self) -> None:
        installed = self._installed()
        settings = settings_of(installed)
        pid = service_pid(installed.state_dir)
        if pid is not None:
            self._say(f"It runs already (pid {pid}).")
            return
        check_free(installed.state_dir, settings, pid)
        self._start_installed(installed.state_dir, settings)

    def stop(self) -> None:
        self._end(self._init, self._installed())
        self._say("It starts again with `bulkhead service start`, or at the next boot or login.")

    def restart(self) -> None:
        installed = self._installed()
        # The settings are read before the end, so that a service with a mistake in them stays up.
        settings = settings_of(installed)
        self._end(self._init, installed)
        self._start_installed(installed.state_dir, settings)

    def status(self) -> ServiceStatus:
        return look(self._init)

    def system_log(self, lines: int) -> str:
        """The system's log of the service: crashes, starts and ends.

        Raises:
            ServiceError: there is no service, or the log can't be read.
        """
        self._installed()
        done = run(*self._init.log_command(lines))
        if done.status != 0:
            raise done.failed()
        return done.printed

    def gateway_log(self) -> Path:
        """The path of the log that the gateway itself writes.

        Raises:
            ServiceError: there is no service.
        """
        return StateDir(self._installed().state_dir).gateway_log_path

    def _uninstall(self, init: InitSystem) -> None:
        try:
            installed = init.read() or assumed()
        except ServiceError as error:
            self._say(str(error))
            installed = assumed()
        try:
            init.probe()
        except ServiceError as error:
            self._say(f"Its end can't be ordered. {error}")
            self._remove(init)
            if (pid := service_pid(installed.state_dir)) is not None:
                self._say(f"Its gateway still runs: `kill {pid}` ends it in order.")
        else:
            self._end(init, installed)
            self._remove(init)
            init.forget()
        self._say(f"Removed {init.path}. Models and {installed.state_dir} stay.")

    def _install_first(
        self, draft: DraftFile, definition: ServiceDefinition, settings: Settings
    ) -> None:
        try:
            draft.put()
            self._start_serving(definition.state_dir, settings)
        except ServiceError as error:
            more = self._where_more_is()
            with contextlib.suppress(ServiceError):
                self._init.end(Installed.of(definition.arguments, definition.stop_s))
            self._remove(self._init)
            with contextlib.suppress(ServiceError):
                self._init.forget()
            raise ServiceError(f"{error}\nNo service is installed.{more}") from error

    def _replace(
        self, draft: DraftFile, definition: ServiceDefinition, settings: Settings, before: Installed
    ) -> None:
        earlier = self._init.path.read_bytes()
        try:
            self._end(self._init, before)
            draft.put()
            self._start_serving(definition.state_dir, settings)
        except ServiceError as error:
            draft.discard()
            if self._init.path.read_bytes() == earlier:
                raise
            with contextlib.suppress(ServiceError):
                self._init.end(Installed.of(definition.arguments, definition.stop_s))
            DraftFile(self._init.path, earlier).put()
            raise ServiceError(f"{error}\n{self._resume(before)}") from error

    def _resume(self, before: Installed) -> str:
        """Start the earlier service again. Returns a sentence about the outcome."""
        try:
            self._start_serving(before.state_dir, settings_of(before))
        except ServiceError as error:
            return f"The earlier service is installed again, and doesn't run: {error}"
        return "The earlier service runs again."

    def _where_more_is(self) -> str:
        """A sentence with the command for the system's log, which works without the definition."""
        try:
            return f" `{shlex.join(self._init.log_command(_LOG_LINES))}` may tell more."
        except ServiceError:
            return ""

    def _remove(self, init: InitSystem) -> None:
        for path in init.files:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise ServiceError(f"{path} can't be removed: {error.strerror}.") from error

    def _installed(self) -> Installed:
        installed = self._init.read()
        if installed is None:
            raise ServiceError(
                f"There is no service ({self._init.path} doesn't exist): "
                "`bulkhead service install` makes one."
            )
        return installed

    def _is_this(self, rendered: bytes, settings: Settings, pid: int | None) -> bool:
        """Whether the definition `rendered` is installed, and a gateway of this version serves."""
        if pid is None or self._init.path.read_bytes() != rendered:
            return False
        health = ask_health_of(settings.gateway)
        return health is not None and health.version == VERSION

    def _end(self, init: InitSystem, installed: Installed) -> None:
        pid = service_pid(installed.state_dir)
        if pid is not None:
            self._say(f"Ending the gateway (pid {pid}) in order: up to {installed.stop_s} s.")
        began = time.monotonic()
        init.end(installed)
        if pid is not None:
            self._say(f"It ended after {time.monotonic() - began:.1f} s.")

    def _start_installed(self, state_dir: Path, settings: Settings) -> None:
        try:
            self._start_serving(state_dir, settings)
        except ServiceError as error:
            raise ServiceError(
                f"{error}\n`bulkhead service logs` may tell more, and `bulkhead service stop` ends "
                "further attempts."
            ) from error

    def _start_serving(self, state_dir: Path, settings: Settings) -> None:
        words = GatewayOutput(StateDir(state_dir).crash_log_path)
        remark = self._init.start()
        pid = self._serves(state_dir, settings, words)
        if pid is None:
            raise ServiceError(
                "The service was started, but doesn't serve. Its last lines:\n"
                f"{words.tail() or 'none'}"
            )
        address = url(settings.gateway.host, settings.gateway.port, tls=settings.gateway.tls)
        self._say(f"Bulkhead {VERSION} serves on {address} (pid {pid}).")
        if remark is not None:
            self._say(remark)

    def _serves(self, state_dir: Path, settings: Settings, words: GatewayOutput) -> int | None:
        """Wait until the service answers. Returns the pid of its gateway, or None if it fails."""
        began = present = time.monotonic()
        while time.monotonic() - began < _SERVES_S:
            if (pid := service_pid(state_dir)) is not None:
                present = time.monotonic()
                if ask_health_of(settings.gateway) is not None:
                    return pid
            patience_s = _AFTER_OUTPUT_S if words.tail() else _GIVES_UP_S
            if time.monotonic() - present > patience_s:
                return None
            time.sleep(_LOOK_S)
        return None


def check_free(state_dir: Path, settings: Settings, pid: int | None) -> None:
    """Check that no other program uses the service's folder and port. `pid` is the pid of the
    service's gateway, if it runs.

    Raises:
        ServiceError: another program uses the folder or the port, or the configured port is 0.
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
    own_ports = [] if pid is None else [port for _, port in listening_at(pid)]
    if port in own_ports or not is_here(host) or port_is_free(host, port):
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


def check_alone(init: InitSystem) -> None:
    """Check that there is no service of the other kind, which would fight for port and folder.

    Raises:
        ServiceError: there is a service of the other kind.
    """
    other = init.other
    if where := known(other):
        raise ServiceError(
            f"There is a service {'of the system' if other.system else 'of the account'} "
            f"already ({where}), and two would fight for one port: remove it first, with "
            f"`{removal(other)}`."
        )


def init_system(owner: Owner, say: Callable[[str], None], *, system: bool) -> InitSystem:
    """launchd on macOS, systemd elsewhere."""
    on_mac = sys.platform == "darwin"
    return Launchd(owner, say, system=system) if on_mac else Systemd(owner, system=system)
