"""The service in launchd, by launchctl(1): a LaunchAgent, or a LaunchDaemon of the system.

What launchctl prints is no interface, so only exit statuses are read. They are errno values, or of
launchd's own: 113 is an unknown service, 125 a domain that isn't there.
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

from gateway.service.command import Done, ServiceError, run
from gateway.service.definition import (
    LABEL,
    MISTAKE_STATUS,
    Installed,
    Owner,
    ServiceDefinition,
    make_private_file,
    make_private_folder,
    option,
    service_pid,
    template,
)
from gateway.system.processes import ProcessGoneError, ProcessIdentity, alive, identify
from gateway.system.state_dir import StateDir

_NO_DOMAIN: Final = 125
# bootstrap's answers while an earlier job of the label is there, or still going away.
_IN_THE_WAY: Final = (5, 17, 36, 37)
_LOOK_S: Final = 0.2
# Beyond the time that the end of the process gets.
_SETTLES_S: Final = 20.0


class Launchd:
    """Ends the gateway by SIGTERM and takes the job out of launchd once it is gone: `bootout` of a
    running job has been seen to send SIGKILL after 5 s, and so does `kickstart -k` at once. On a
    job that doesn't run nothing can be stranded.
    """

    def __init__(
        self, owner: Owner, say: Callable[[str], None], *, system: bool, root: Path = Path("/")
    ) -> None:
        """`root` is where the system's own folders are."""
        self._owner = owner
        self._say = say
        self._root = root
        self.system = system
        if system:
            self._domains = ["system"]
            folder = root / "Library" / "LaunchDaemons"
        else:
            # gui/ is there while somebody is logged in at the screen, user/ after any login.
            self._domains = [f"gui/{owner.uid}", f"user/{owner.uid}"]
            folder = owner.home / "Library" / "LaunchAgents"
        self._path = folder / f"{LABEL}.plist"

    @property
    def other(self) -> Launchd:
        return Launchd(self._owner, self._say, system=not self.system, root=self._root)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def files(self) -> list[Path]:
        return [self._path] if os.path.lexists(self._path) else []

    def render(self, definition: ServiceDefinition) -> bytes:
        keys: dict[str, Any] = plistlib.loads(template(f"{LABEL}.plist"))
        keys["ProgramArguments"] = list(definition.arguments)
        # Only an exit with 0 keeps launchd from starting it again, every ThrottleInterval.
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
            keys = plistlib.loads(self._path.read_bytes())
            arguments = [str(each) for each in keys["ProgramArguments"]]
            state_dir = option(arguments, "--state-dir")
            if state_dir is None:
                raise ValueError("it names no state folder")
            return Installed(
                arguments[0], option(arguments, "--config"), state_dir, int(keys["ExitTimeOut"])
            )
        except FileNotFoundError:
            return None
        except (OSError, ExpatError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ServiceError(
                f"{self._path} can't be read ({error!r}): `bulkhead service uninstall` removes it, "
                "then install again."
            ) from error

    def probe(self) -> None:
        if not any(run("launchctl", "print", each).status == 0 for each in self._domains):
            raise self._no_domain()

    def domains(self) -> list[str]:
        return [each for each in self._domains if _knows(each)]

    def loaded(self) -> bool:
        return self._domain() is not None

    def beginning(self) -> list[str]:
        domain = self._domains[0]
        return [
            shlex.join(["launchctl", "enable", f"{domain}/{LABEL}"]),
            shlex.join(["launchctl", "bootstrap", domain, str(self._path)]),
        ]

    def begin(self) -> str | None:
        domain = self._domain()
        if domain is not None and _kickstart(domain):
            return None
        # launchd doesn't know it, or not any more.
        return self._bootstrap()

    def end(self, installed: Installed) -> None:
        if not (domains := self.domains()):
            return
        process = _gateway(installed.state_dir)
        for domain in domains:
            # If there is no process this fails, and nothing is to be done.
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
        """launchd keeps nothing of a job that was booted out."""

    def log_command(self, lines: int) -> list[str]:
        if (installed := self.read()) is None:
            raise ServiceError(f"There is no service: {self._path} doesn't exist.")
        path = str(StateDir(installed.state_dir).crash_log_path)
        return ["tail", "-n", str(lines), path]

    def _domain(self) -> str | None:
        """Where launchd knows it, the screen's session before the background's."""
        return next((each for each in self._domains if _knows(each)), None)

    def _bootstrap(self) -> str | None:
        if (installed := self.read()) is not None:
            # launchd would make it root's own for a LaunchDaemon.
            state_dir = StateDir(installed.state_dir)
            make_private_folder(state_dir.logs, self._owner)
            make_private_file(state_dir.crash_log_path, self._owner)
        for domain in self._domains:
            # An earlier `launchctl disable` would keep it from being loaded, with error 119.
            run("launchctl", "enable", f"{domain}/{LABEL}")
            done = self._bootstrap_in(domain)
            if done.status == 0:
                return None if domain == self._domains[0] else _HEADLESS
            if done.status != _NO_DOMAIN:
                raise done.failed()
        raise self._no_domain()

    def _no_domain(self) -> ServiceError:
        if self.system:
            return ServiceError("launchd can't be asked: its domain system doesn't answer.")
        return ServiceError(
            f"launchd has neither of the domains {' and '.join(self._domains)} for you: install "
            "the service with `sudo bulkhead service install --system`."
        )

    def _bootstrap_in(self, domain: str) -> Done:
        """An earlier job of the label may still be going away, or be there already."""
        deadline = time.monotonic() + _SETTLES_S
        while True:
            done = run("launchctl", "bootstrap", domain, str(self._path))
            if done.status not in _IN_THE_WAY:
                return done
            if self._domain() == domain and _kickstart(domain):
                return Done(done.command, 0, "", "")
            if time.monotonic() >= deadline:
                return done
            time.sleep(_LOOK_S)

    def _boot_out(self, domain: str) -> None:
        done = run("launchctl", "bootout", f"{domain}/{LABEL}")
        deadline = time.monotonic() + _SETTLES_S
        while _knows(domain):
            if time.monotonic() >= deadline:
                raise done.failed()
            time.sleep(_LOOK_S)


def _knows(domain: str) -> bool:
    return run("launchctl", "print", f"{domain}/{LABEL}").status == 0


def _gateway(state_dir: Path) -> ProcessIdentity | None:
    pid = service_pid(state_dir)
    try:
        return None if pid is None else identify(pid)
    except ProcessGoneError:
        return None


def _kickstart(domain: str) -> bool:
    """Have a known job run. If it runs already nothing happens."""
    return run("launchctl", "kickstart", f"{domain}/{LABEL}").status == 0


_HEADLESS: Final = (
    "Nobody is logged in at the screen, so the service runs in the background session of your "
    "login, and starts again only when you log in. A machine that nobody logs in to wants "
    "`sudo bulkhead service install --system`."
)
