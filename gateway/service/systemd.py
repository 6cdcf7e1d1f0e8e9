"""The service in systemd, by systemctl(1): a unit of the user or of the system."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.service.definition import (
    Installed,
    Owner,
    ServiceDefinition,
    ServiceError,
    template,
    unreadable,
)
from gateway.service.init_system import Done, run

UNIT: Final = "bulkhead.service"
# Seconds for systemctl beyond TimeoutStartSec or TimeoutStopSec, after which systemctl answers.
_SLACK_S: Final = 15.0
_START_S: Final = 180.0
_ANSWER_S: Final = 30.0
# After reset-failed a unit that failed before can start again.
_BEGINNING: Final = (
    ("daemon-reload",),
    ("enable", UNIT),
    ("reset-failed", UNIT),
    ("start", UNIT),
)


class Systemd:
    """The service in systemd. systemctl itself waits until the unit has started or stopped."""

    def __init__(self, owner: Owner, *, system: bool, root: Path = Path("/")) -> None:
        """`root` is the folder that holds the system's folders, such as etc."""
        self._owner = owner
        self._root = root
        self.system = system
        if system:
            self.path = root / "etc" / "systemd" / "system" / UNIT
        else:
            configured = os.environ.get("XDG_CONFIG_HOME")
            folder = Path(configured) if configured else owner.home / ".config"
            self.path = folder / "systemd" / "user" / UNIT

    @property
    def other(self) -> Systemd:
        return Systemd(self._owner, system=not self.system, root=self._root)

    @property
    def files(self) -> list[Path]:
        links = self.path.parent.glob(f"*.wants/{UNIT}")
        return [link for link in (self.path, *links) if os.path.lexists(link)]

    def render(self, definition: ServiceDefinition) -> bytes:
        name = "bulkhead-system.service" if self.system else UNIT
        environment = [f"{name}={value}" for name, value in definition.environment.items()]
        return _filled(
            template(name).decode(),
            {
                "EXEC_START": " ".join(
                    _quoted(argument).replace("$", "$$") for argument in definition.arguments
                ),
                "ENVIRONMENT": " ".join(map(_quoted, environment)),
                "WORKING_DIRECTORY": _escaped(str(definition.owner.home)),
                "STOP_S": str(definition.stop_s),
                "USER": definition.owner.name,
            },
        )

    def read(self) -> Installed | None:
        try:
            lines = self.path.read_text("utf-8").splitlines()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise unreadable(self.path, error) from error
        keys = dict(line.split("=", 1) for line in lines if "=" in line and line[0] not in "#;")
        try:
            line = keys["ExecStart"].replace("%%", "%").replace("$$", "$")
            arguments = shlex.split(line)
            return Installed.of(arguments, int(keys["TimeoutStopSec"]))
        except (ValueError, KeyError, IndexError) as error:
            raise unreadable(self.path, repr(error)) from error

    def domains(self) -> list[str]:
        # A unit whose file is gone is unknown to systemd.
        return [("system" if self.system else "user")] if self.files else []

    def loaded(self) -> bool:
        return self.path.exists() and self._systemctl("is-enabled", UNIT).status == 0

    def probe(self) -> None:
        done = self._systemctl("show", "--property=Version")
        if done.status != 0:
            advice = (
                "was this system started by it?"
                if self.system
                else "log in as this user itself, not by su or sudo, or install the service with "
                "`sudo bulkhead service install --system`."
            )
            raise ServiceError(
                f"systemd can't be asked ({done.complaint or done.status}): {advice}"
            )

    def start_commands(self) -> list[str]:
        return [" ".join(("systemctl", *self._scope, *arguments)) for arguments in _BEGINNING]

    def start(self) -> str | None:
        for verb, *unit in _BEGINNING:
            within_s = _START_S + _SLACK_S if verb == "start" else _ANSWER_S
            done = self._systemctl(verb, *unit, within_s=within_s)
            if done.status != 0 and verb != "reset-failed":
                raise done.failed()
        return self._lingers()

    def end(self, installed: Installed) -> None:
        self._must("stop", UNIT, within_s=installed.stop_s + _SLACK_S)

    def forget(self) -> None:
        # `disable` fails if the links of the unit are gone, too.
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
        # Root has its own instance of systemd, and names the account whose instance it wants.
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


def _filled(text: str, values: Mapping[str, str]) -> bytes:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text.encode()


def _escaped(text: str) -> str:
    """The text with double percent signs: a single one begins a specifier (systemd.unit(5))."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """The text as one quoted word of a command line (systemd.syntax(7))."""
    escaped = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
