"""What an operator orders: each order says what it does, and may be given twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.config.settings import Settings
from gateway.service.command import run
from gateway.service.definition import Definition, Installed, settings_of
from gateway.service.failure import ServiceError
from gateway.service.files import Draft, make_private_folder
from gateway.service.manager import Manager
from gateway.service.mark import service_pid
from gateway.service.port import ask_health, listens, port_is_free
from gateway.service.status import ServiceStatus, look
from gateway.service.words import Words
from gateway.state_dir import StateDir, lock_holder
from gateway.url import url
from gateway.version import VERSION

# launchd tries again after ThrottleInterval, so a second attempt is waited for.
_SERVES_S: Final = 200.0
_GIVES_UP_S: Final = 25.0
# A gateway speaks before it has its folder only to say why it ends.
_AFTER_LAST_WORDS_S: Final = 5.0
_LOOK_S: Final = 0.25


class Service:
    """Every method raises `ServiceError` if it can't do what it is for."""

    def __init__(self, manager: Manager, say: Callable[[str], None]) -> None:
        self._manager = manager
        self._say = say

    def install(self, definition: Definition, settings: Settings) -> None:
        """Write the definition and have it run, in place of an older one if there is one."""
        rendered = self._manager.render(definition)
        before = self._manager.read()
        pid = None if before is None else service_pid(before.state_dir)
        self._check_free(definition.state_dir, settings, pid)
        if before is not None and self._is_this(rendered, settings, pid):
            self._say(f"It is installed and runs (pid {pid}): there is nothing to do.")
            return
        # What may fail comes before the end of what runs.
        make_private_folder(definition.state_dir, definition.owner)
        draft = Draft(self._manager.path, rendered)
        if before is not None:
            self._say(f"Replacing the service of {self._manager.path}.")
            self._end(before)
        else:
            self._say(f"Writing {self._manager.path}.")
        draft.put()
        self._begin(definition.state_dir, settings)

    def uninstall(self) -> None:
        """End it and remove its definition. The state folder stays."""
        try:
            installed = self._manager.read()
        except ServiceError as error:
            raise ServiceError(f"{error} Nothing was changed.") from error
        if installed is None:
            self._say(f"There is no service: {self._manager.path} doesn't exist.")
            return
        self._end(installed)
        try:
            self._manager.path.unlink(missing_ok=True)
        except OSError as error:
            raise ServiceError(
                f"{self._manager.path} can't be removed: {error.strerror}."
            ) from error
        self._manager.forget()
        self._say(f"Removed {self._manager.path}. Models and {installed.state_dir} stay.")

    def start(self) -> None:
        installed = self._installed()
        settings = settings_of(installed)
        pid = service_pid(installed.state_dir)
        if pid is not None:
            self._say(f"It runs already (pid {pid}).")
            return
        self._check_free(installed.state_dir, settings, pid)
        self._begin(installed.state_dir, settings)

    def stop(self) -> None:
        self._end(self._installed())
        self._say("It starts again with `bulkhead service start`, or at the next boot or login.")

    def restart(self) -> None:
        installed = self._installed()
        # Looked at first: a service that can't start again had better go on.
        settings = settings_of(installed)
        self._end(installed)
        self._begin(installed.state_dir, settings)

    def status(self) -> ServiceStatus:
        return look(self._manager)

    def system_log(self, lines: int) -> str:
        """What the system keeps of it: what it printed in crashes, its starts and ends.

        Raises:
            ServiceError: there is none, or it can't be read.
        """
        self._installed()
        done = run(*self._manager.log_command(lines))
        if done.status != 0:
            raise done.failed()
        return done.printed

    def gateway_log(self) -> Path:
        """The log that the gateway writes itself.

        Raises:
            ServiceError: there is no service.
        """
        return StateDir(self._installed().state_dir).gateway_log_path

    # Inside

    def _installed(self) -> Installed:
        installed = self._manager.read()
        if installed is None:
            raise ServiceError(
                f"There is no service ({self._manager.path} doesn't exist): "
                "`bulkhead service install` makes one."
            )
        return installed

    def _is_this(self, rendered: bytes, settings: Settings, pid: int | None) -> bool:
        """Whether exactly this, in this version, is installed and serves."""
        if pid is None or self._manager.path.read_bytes() != rendered:
            return False
        health = ask_health(settings.gateway.host, settings.gateway.port)
        return health is not None and health.version == VERSION

    def _check_free(self, state_dir: Path, settings: Settings, pid: int | None) -> None:
        """Whether the service can have its folder and its port, or has them: `pid` is its own."""
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
        health = ask_health(host, port)
        if health is None:
            raise ServiceError(
                f"Another program has port {port} on {host}: end it, or set gateway.port."
            )
        raise ServiceError(
            f"A Bulkhead gateway (version {health.version}) that is not this service has port "
            f"{port} on {host}: end it, or set another gateway.port."
        )

    def _end(self, installed: Installed) -> None:
        pid = service_pid(installed.state_dir)
        if pid is not None:
            self._say(f"Ending the gateway (pid {pid}) in order: up to {installed.stop_s} s.")
        began = time.monotonic()
        self._manager.end(installed)
        if pid is not None:
            self._say(f"It ended after {time.monotonic() - began:.1f} s.")

    def _begin(self, state_dir: Path, settings: Settings) -> None:
        words = Words(StateDir(state_dir).crash_log_path)
        try:
            remark = self._manager.begin()
        except ServiceError as error:
            raise ServiceError(f"{error} `bulkhead service logs` may tell more.") from error
        pid = self._serves(state_dir, settings, words)
        if pid is None:
            raise ServiceError(
                "The service was started, but doesn't serve; `bulkhead service stop` ends further "
                "attempts. Its last words:\n"
                f"{words.tail() or 'none; `bulkhead service logs` may tell more'}"
            )
        address = url(settings.gateway.host, settings.gateway.port)
        self._say(f"Bulkhead {VERSION} serves on {address} (pid {pid}).")
        if remark is not None:
            self._say(remark)

    def _serves(self, state_dir: Path, settings: Settings, words: Words) -> int | None:
        """Its pid once it answers."""
        began = present = time.monotonic()
        while time.monotonic() - began < _SERVES_S:
            if (pid := service_pid(state_dir)) is not None:
                present = time.monotonic()
                if ask_health(settings.gateway.host, settings.gateway.port) is not None:
                    return pid
            patience_s = _AFTER_LAST_WORDS_S if words.tail() else _GIVES_UP_S
            if time.monotonic() - present > patience_s:
                return None
            time.sleep(_LOOK_S)
        return None
