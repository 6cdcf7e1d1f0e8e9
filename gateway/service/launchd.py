"""The service in launchd, by launchctl(1): a LaunchAgent, or a LaunchDaemon of the system.

launchctl's output is no interface, so only its exit statuses are read. These are errno values, or
numbers of launchd: 113 is an unknown service, 112 and 125 a domain that doesn't exist. They differ
between versions of macOS, and 0 may mean that nothing was done: so domains and jobs are looked for.
"""

from __future__ import annotations

import os
import plistlib
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from xml.parsers.expat import ExpatError

from gateway.service.definition import (
    LABEL,
    MISTAKE_STATUS,
    Installed,
    Owner,
    ServiceDefinition,
    ServiceError,
    make_private_file,
    make_private_folder,
    service_pid,
    template,
    unreadable,
)
from gateway.service.init_system import run
from gateway.system.processes import ProcessGoneError, ProcessIdentity, alive, identify
from gateway.system.state_dir import StateDir

# Statuses of bootstrap where the domain went away, and while an earlier job of the label exists, or
# is ending.
_NO_DOMAIN: Final = (112, 125)
_IN_THE_WAY: Final = (5, 17, 36, 37)
_LOOK_S: Final = 0.2
# Seconds for launchd itself, beyond the time for the end of the process.
_SETTLES_S: Final = 20.0


class Launchd:
    """The service in launchd. SIGTERM ends the gateway, and its job is removed from launchd only
    after the gateway's end, since a SIGKILL can strand memory: `bootout` of a running job was seen
    to send SIGKILL after 5 s, and `kickstart -k` sends it at once.
    """

    def __init__(
        self, owner: Owner, say: Callable[[str], None], *, system: bool, root: Path = Path("/")
    ) -> None:
        """`root` is the folder that holds the system's folders, such as Library."""
        self._owner = owner
        self._say = say
        self._root = root
        self.system = system
        if system:
            self._domains = ["system"]
            folder = root / "Library" / "LaunchDaemons"
        else:
            # gui/ exists while the account is logged in at the screen, user/ after any login.
            self._domains = [f"gui/{owner.uid}", f"user/{owner.uid}"]
            folder = owner.home / "Library" / "LaunchAgents"
        self.path = folder / f"{LABEL}.plist"

    @property
    def other(self) -> Launchd:
        return Launchd(self._owner, self._say, system=not self.system, root=self._root)

    @property
    def files(self) -> list[Path]:
        return [self.path] if os.path.lexists(self.path) else []

    def render(self, definition: ServiceDefinition) -> bytes:
        keys: dict[str, Any] = plistlib.loads(template(f"{LABEL}.plist"))
        keys["ProgramArguments"] = list(definition.arguments)
        # launchd starts a service again after each ThrottleInterval, unless it exits with 0. So a
        # gateway with a mistake in its configuration exits with 0.
        keys["EnvironmentVariables"] = definition.environment | {MISTAKE_STATUS: "0"}
        keys["WorkingDirectory"] = str(definition.owner.home)
        keys["ExitTimeOut"] = definition.stop_s
        keys["StandardErrorPath"] = str(StateDir(definition.state_dir).crash_log_path)
        if self.system:
            keys["UserName"] = definition.owner.name
            del keys["LimitLoadToSessionType"]
        return plistlib.dumps(keys, sort_keys=False)

    def read(self) -> Installed | None:
        try:
            keys = plistlib.loads(self.path.read_bytes())
            arguments = [str(argument) for argument in keys["ProgramArguments"]]
            return Installed.of(arguments, int(keys["ExitTimeOut"]))
        except FileNotFoundError:
            return None
        except (OSError, ExpatError, ValueError, KeyError, IndexError, TypeError) as error:
            raise unreadable(self.path, repr(error)) from error

    def probe(self) -> None:
        if not any(map(_answers, self._domains)):
            raise self._no_domain()

    def domains(self) -> list[str]:
        return [domain for domain in self._domains if _knows(domain)]

    def loaded(self) -> bool:
        return self._domain() is not None

    def start_commands(self) -> list[str]:
        domain = next(filter(_answers, self._domains), self._domains[0])
        return [
            shlex.join(["launchctl", "enable", f"{domain}/{LABEL}"]),
            shlex.join(["launchctl", "bootstrap", domain, str(self.path)]),
        ]

    def start(self) -> str | None:
        domain = self._domain()
        if domain is not None and _kickstart(domain):
            return None
        # launchd doesn't have the job, or can't start it.
        return self._bootstrap()

    def end(self, installed: Installed) -> None:
        if not (domains := self.domains()):
            return
        process = _gateway(installed.state_dir)
        for domain in domains:
            # The command fails if the job has no process.
            run("launchctl", "kill", "SIGTERM", f"{domain}/{LABEL}")
        deadline = time.monotonic() + installed.stop_s + _SETTLES_S
        while process is not None and alive(process):
            if time.monotonic() >= deadline:
                raise ServiceError(
                    f"The gateway (pid {process.pid}) did not end within {installed.stop_s} s. "
                    "`bulkhead service logs` says what it waits for."
                )
            time.sleep(_LOOK_S)
        for domain in domains:
            self._boot_out(domain)

    def forget(self) -> None:
        """Nothing to do: launchd keeps nothing of a job that was booted out."""

    def log_command(self, lines: int) -> list[str]:
        if (installed := self.read()) is None:
            raise ServiceError(f"There is no service: {self.path} doesn't exist.")
        path = str(StateDir(installed.state_dir).crash_log_path)
        return ["tail", "-n", str(lines), path]

    def _domain(self) -> str | None:
        """The first domain that has the job; None: no domain has it."""
        return next((domain for domain in self._domains if _knows(domain)), None)

    def _bootstrap(self) -> str | None:
        if (installed := self.read()) is not None:
            # For a LaunchDaemon, launchd would make the log as a file of root.
            state_dir = StateDir(installed.state_dir)
            make_private_folder(state_dir.logs, self._owner)
            make_private_file(state_dir.crash_log_path, self._owner)
        failed = self._no_domain()
        for domain in filter(_answers, self._domains):
            # After an earlier `launchctl disable`, bootstrap would fail with error 119.
            run("launchctl", "enable", f"{domain}/{LABEL}")
            if (why := self._bootstrap_in(domain)) is None:
                return None if domain == self._domains[0] else _HEADLESS
            failed = why
        raise failed

    def _no_domain(self) -> ServiceError:
        if self.system:
            return ServiceError("launchd can't be asked: its domain system doesn't answer.")
        return ServiceError(
            f"launchd has neither of the domains {' and '.join(self._domains)} for you: install "
            "the service with `sudo bulkhead service install --system`."
        )

    def _bootstrap_in(self, domain: str) -> ServiceError | None:
        """Bootstrap the job. An earlier job of the label is started, or its end is waited for, as
        long as launchd has the domain. Returns why another domain is to be tried, if it is.

        Raises: ServiceError.
        """
        deadline = time.monotonic() + _SETTLES_S
        while True:
            done = run("launchctl", "bootstrap", domain, str(self.path))
            if done.status == 0:
                silent = f"`{done.command}` says nothing, but launchd doesn't have the job."
                return None if _knows(domain) else ServiceError(silent)
            if done.status in _NO_DOMAIN or not _answers(domain):
                return self._no_domain()
            if done.status not in _IN_THE_WAY or time.monotonic() >= deadline:
                raise done.failed()
            if _knows(domain) and _kickstart(domain):
                return None
            time.sleep(_LOOK_S)

    def _boot_out(self, domain: str) -> None:
        done = run("launchctl", "bootout", f"{domain}/{LABEL}")
        deadline = time.monotonic() + _SETTLES_S
        while _knows(domain):
            if time.monotonic() >= deadline:
                raise done.failed()
            time.sleep(_LOOK_S)


def _answers(domain: str) -> bool:
    """Whether launchd has this domain."""
    return run("launchctl", "print", domain).status == 0


def _knows(domain: str) -> bool:
    return run("launchctl", "print", f"{domain}/{LABEL}").status == 0


def _gateway(state_dir: Path) -> ProcessIdentity | None:
    pid = service_pid(state_dir)
    try:
        return None if pid is None else identify(pid)
    except ProcessGoneError:
        return None


def _kickstart(domain: str) -> bool:
    """Start the job that launchd has, unless it runs already. Returns whether that succeeded."""
    return run("launchctl", "kickstart", f"{domain}/{LABEL}").status == 0


_HEADLESS: Final = (
    "Nobody is logged in at the screen, so the service runs in the background session of your "
    "login, and starts again only when you log in. A machine that nobody logs in to wants "
    "`sudo bulkhead service install --system`."
)
