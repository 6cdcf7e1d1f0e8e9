"""The service in systemd, by systemctl(1): a unit of the user's, or of the system."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.service.command import Done, ServiceError, run
from gateway.service.definition import Installed, Owner, ServiceDefinition, option, template

UNIT: Final = "bulkhead.service"
# Beyond TimeoutStartSec or TimeoutStopSec, after which systemctl answers at last.
_SLACK_S: Final = 15.0
_START_S: Final = 180.0
_ANSWER_S: Final = 30.0
# A unit that has failed before begins anew.
_BEGINNING: Final = (
    ("daemon-reload",),
    ("enable", UNIT),
    ("reset-failed", UNIT),
    ("start", UNIT),
)


class Systemd:
    """systemctl waits for what it starts and stops, so nothing has to be waited for here."""

    def __init__(self, owner: Owner, *, system: bool, root: Path = Path("/")) -> None:
        """`root` is where the system's own folders are."""
        self._owner = owner
        self._root = root
        self.system = system
        if system:
            self._path = root / "etc" / "systemd" / "system" / UNIT
        else:
            configured = os.environ.get("XDG_CONFIG_HOME")
            folder = Path(configured) if configured else owner.home / ".config"
            self._path = folder / "systemd" / "user" / UNIT

    @property
    def other(self) -> Systemd:
        return Systemd(self._owner, system=not self.system, root=self._root)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def files(self) -> list[Path]:
        links = self._path.parent.glob(f"*.wants/{UNIT}")
        return [each for each in (self._path, *links) if os.path.lexists(each)]

    def render(self, definition: ServiceDefinition) -> bytes:
        name = "bulkhead-system.service" if self.system else UNIT
        environment = [f"{name}={value}" for name, value in definition.environment.items()]
        return _filled(
            template(name).decode(),
            {
                "EXEC_START": " ".join(
                    _quoted(each).replace("$", "$$") for each in definition.arguments
                ),
                "ENVIRONMENT": " ".join(map(_quoted, environment)),
                "WORKING_DIRECTORY": _escaped(str(definition.owner.home)),
                "STOP_S": str(definition.stop_s),
                "USER": definition.owner.name,
            },
        )

    def read(self) -> Installed | None:
        try:
            lines = self._path.read_text("utf-8").splitlines()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(str(error)) from error
        keys = dict(each.split("=", 1) for each in lines if "=" in each and each[0] not in "#;")
        try:
            line = keys["ExecStart"].replace("%%", "%").replace("$$", "$")
            arguments = shlex.split(line)
            state_dir = option(arguments, "--state-dir")
            if state_dir is None:
                raise ValueError("it names no state folder")
            config = option(arguments, "--config")
            return Installed(arguments[0], config, state_dir, int(keys["TimeoutStopSec"]))
        except (ValueError, KeyError, IndexError) as error:
            raise self._unreadable(repr(error)) from error

    def domains(self) -> list[str]:
        # systemd forgets a unit whose file is gone.
        return [("system" if self.system else "user")] if self.files else []

    def loaded(self) -> bool:
        return self._path.exists() and self._systemctl("is-enabled", UNIT).status == 0

    def probe(self) -> None:
        done = self._systemctl("show", "--property=Version")
        if done.status != 0:
            advice = (
                "was this system started by it?"
                if self.system
                else "log in as this user itself, not by su or sudo, or install the service with "
                "`sudo bulkhead service install --system`."
            )
            raise ServiceError(f"systemd can't be asked ({done.said or done.status}): {advice}")

    def beginning(self) -> list[str]:
        return [" ".join(("systemctl", *self._scope, *each)) for each in _BEGINNING]

    def begin(self) -> str | None:
        for verb, *unit in _BEGINNING:
            within_s = _START_S + _SLACK_S if verb == "start" else _ANSWER_S
            done = self._systemctl(verb, *unit, within_s=within_s)
            if done.status != 0 and verb != "reset-failed":
                raise done.failed()
        return self._lingers()

    def end(self, installed: Installed) -> None:
        self._must("stop", UNIT, within_s=installed.stop_s + _SLACK_S)

    def forget(self) -> None:
        # It fails if the links are gone as well.
        self._systemctl("disable", UNIT)
        self._must("daemon-reload")
        self._systemctl("reset-failed", UNIT)

    def log_command(self, lines: int) -> list[str]:
        scope = "--unit" if self.system else "--user-unit"
        return ["journalctl", f"{scope}={UNIT}", f"--lines={lines}", "--no-pager"]

    @property
    def _scope(self) -> tuple[str, ...]:
        if self.system:
            return ()
        # Root has a manager of its own, and reaches another account's by that account's name.
        elsewhere = os.geteuid() == 0 != self._owner.uid
        return ("--user", f"--machine={self._owner.name}@.host") if elsewhere else ("--user",)

    def _systemctl(self, *arguments: str, within_s: float = _ANSWER_S) -> Done:
        return run("systemctl", *self._scope, *arguments, within_s=within_s)

    def _must(self, *arguments: str, within_s: float = _ANSWER_S) -> None:
        done = self._systemctl(*arguments, within_s=within_s)
        if done.status != 0:
            raise done.failed()

    def _lingers(self) -> str | None:
        if self.system or Path("/var/lib/systemd/linger", self._owner.name).exists():
            return None
        return (
            "It ends when you log out. To have it run from boot on: "
            f"`loginctl enable-linger {self._owner.name}`, or install it with --system."
        )

    def _unreadable(self, why: str) -> ServiceError:
        return ServiceError(
            f"{self._path} can't be read ({why}): `bulkhead service uninstall` removes it, then "
            "install again."
        )


def _filled(text: str, values: Mapping[str, str]) -> bytes:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text.encode()


def _escaped(text: str) -> str:
    """Specifiers begin with a percent sign (systemd.unit(5))."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """As one word (systemd.syntax(7))."""
    escaped = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
