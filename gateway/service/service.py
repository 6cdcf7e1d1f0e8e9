"""What an operator orders: each order says what it does, and may be given twice."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway import VERSION
from gateway.config.settings import Settings
from gateway.service.command import ServiceError, run
from gateway.service.definition import (
    DraftFile,
    Installed,
    ServiceDefinition,
    assumed,
    make_private_folder,
    service_pid,
    settings_of,
)
from gateway.service.manager import Manager, known, removal
from gateway.service.room import ask_health_of, check_alone, check_free
from gateway.service.status import ServiceStatus, look
from gateway.system.notation import url
from gateway.system.state_dir import StateDir

_LINES: Final = 5


class GatewayOutput:
    """What a gateway has printed from now on, where launchd keeps it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen_bytes = path.stat().st_size if path.exists() else 0

    def tail(self) -> str:
        """The last lines; empty where there are none."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._seen_bytes)
                lines = log.read(1 << 16).decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return "\n".join(f"  | {each}" for each in lines[-_LINES:])


# launchd tries again after ThrottleInterval, so a second attempt is waited for.
_SERVES_S: Final = 200.0
_GIVES_UP_S: Final = 25.0
# A gateway speaks before it has its folder only to say why it ends.
_AFTER_LAST_WORDS_S: Final = 5.0
_LOOK_S: Final = 0.25
_LOG_LINES: Final = 20


class Service:
    """Every method raises `ServiceError` if it can't do what it is for."""

    def __init__(self, manager: Manager, say: Callable[[str], None]) -> None:
        self._manager = manager
        self._say = say

    def install(self, definition: ServiceDefinition, settings: Settings) -> None:
        """Write the definition and have it run, in place of an older one if there is one."""
        rendered = self._manager.render(definition)
        before = self._manager.read()
        pid = None if before is None else service_pid(before.state_dir)
        check_free(definition.state_dir, settings, pid)
        if before is not None and self._is_this(rendered, settings, pid):
            self._say(f"It is installed and runs (pid {pid}): there is nothing to do.")
            return
        # What may fail comes before the end of what runs.
        self._manager.probe()
        check_alone(self._manager)
        make_private_folder(definition.state_dir, definition.owner)
        draft = DraftFile(self._manager.path, rendered)
        if before is None:
            self._say(f"Writing {self._manager.path}.")
            self._install_first(draft, definition, settings)
        else:
            self._say(f"Replacing the service of {self._manager.path}.")
            self._replace(draft, definition, settings, before)

    def uninstall(self) -> None:
        """End it and remove its definition, whatever state it is in, and with root's rights the
        other kind's too. The state folder stays.
        """
        other = self._manager.other
        if known(self._manager):
            self._uninstall(self._manager)
        elif not known(other):
            self._say(f"There is no service: {self._manager.path} doesn't exist.")
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
        self._begin_installed(installed.state_dir, settings)

    def stop(self) -> None:
        self._end(self._manager, self._installed())
        self._say("It starts again with `bulkhead service start`, or at the next boot or login.")

    def restart(self) -> None:
        installed = self._installed()
        # Looked at first: a service that can't start again had better go on.
        settings = settings_of(installed)
        self._end(self._manager, installed)
        self._begin_installed(installed.state_dir, settings)

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

    def _uninstall(self, keeper: Manager) -> None:
        try:
            installed = keeper.read() or assumed()
        except ServiceError as error:
            self._say(str(error))
            installed = assumed()
        try:
            keeper.probe()
        except ServiceError as error:
            self._say(f"Its end can't be ordered. {error}")
            self._remove(keeper)
            if (pid := service_pid(installed.state_dir)) is not None:
                self._say(f"Its gateway still runs: `kill {pid}` ends it in order.")
        else:
            self._end(keeper, installed)
            self._remove(keeper)
            keeper.forget()
        self._say(f"Removed {keeper.path}. Models and {installed.state_dir} stay.")

    def _install_first(
        self, draft: DraftFile, definition: ServiceDefinition, settings: Settings
    ) -> None:
        try:
            draft.put()
            self._begin(definition.state_dir, settings)
        except ServiceError as error:
            more = self._where_more_is()
            with contextlib.suppress(ServiceError):
                self._manager.end(_installed_by(definition))
            self._remove(self._manager)
            with contextlib.suppress(ServiceError):
                self._manager.forget()
            raise ServiceError(f"{error}\nNo service is installed.{more}") from error

    def _replace(
        self, draft: DraftFile, definition: ServiceDefinition, settings: Settings, before: Installed
    ) -> None:
        earlier = self._manager.path.read_bytes()
        try:
            self._end(self._manager, before)
            draft.put()
            self._begin(definition.state_dir, settings)
        except ServiceError as error:
            draft.discard()
            if self._manager.path.read_bytes() == earlier:
                raise
            with contextlib.suppress(ServiceError):
                self._manager.end(_installed_by(definition))
            DraftFile(self._manager.path, earlier).put()
            raise ServiceError(f"{error}\n{self._resume(before)}") from error

    def _resume(self, before: Installed) -> str:
        """Have the service run that was to be replaced; returns a sentence about it."""
        try:
            self._begin(before.state_dir, settings_of(before))
        except ServiceError as error:
            return f"The earlier service is installed again, and doesn't run: {error}"
        return "The earlier service runs again."

    def _where_more_is(self) -> str:
        """A sentence that stays true without the definition."""
        try:
            return f" `{shlex.join(self._manager.log_command(_LOG_LINES))}` may tell more."
        except ServiceError:
            return ""

    def _remove(self, keeper: Manager) -> None:
        for path in keeper.files:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise ServiceError(f"{path} can't be removed: {error.strerror}.") from error

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
        health = ask_health_of(settings.gateway)
        return health is not None and health.version == VERSION

    def _end(self, keeper: Manager, installed: Installed) -> None:
        pid = service_pid(installed.state_dir)
        if pid is not None:
            self._say(f"Ending the gateway (pid {pid}) in order: up to {installed.stop_s} s.")
        began = time.monotonic()
        keeper.end(installed)
        if pid is not None:
            self._say(f"It ended after {time.monotonic() - began:.1f} s.")

    def _begin_installed(self, state_dir: Path, settings: Settings) -> None:
        try:
            self._begin(state_dir, settings)
        except ServiceError as error:
            raise ServiceError(
                f"{error}\n`bulkhead service logs` may tell more, and `bulkhead service stop` ends "
                "further attempts."
            ) from error

    def _begin(self, state_dir: Path, settings: Settings) -> None:
        words = GatewayOutput(StateDir(state_dir).crash_log_path)
        remark = self._manager.begin()
        pid = self._serves(state_dir, settings, words)
        if pid is None:
            raise ServiceError(
                "The service was started, but doesn't serve. Its last words:\n"
                f"{words.tail() or 'none'}"
            )
        address = url(settings.gateway.host, settings.gateway.port, tls=settings.gateway.tls)
        self._say(f"Bulkhead {VERSION} serves on {address} (pid {pid}).")
        if remark is not None:
            self._say(remark)

    def _serves(self, state_dir: Path, settings: Settings, words: GatewayOutput) -> int | None:
        """Its pid once it answers."""
        began = present = time.monotonic()
        while time.monotonic() - began < _SERVES_S:
            if (pid := service_pid(state_dir)) is not None:
                present = time.monotonic()
                if ask_health_of(settings.gateway) is not None:
                    return pid
            patience_s = _AFTER_LAST_WORDS_S if words.tail() else _GIVES_UP_S
            if time.monotonic() - present > patience_s:
                return None
            time.sleep(_LOOK_S)
        return None


def _installed_by(definition: ServiceDefinition) -> Installed:
    return Installed(definition.arguments[0], None, definition.state_dir, definition.stop_s)
