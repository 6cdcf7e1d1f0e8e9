"""What launchd and systemd have in common, and which of them this system has."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gateway.service.definition import Definition, Installed
from gateway.service.launchd import Launchd
from gateway.service.owner import Owner
from gateway.service.systemd import Systemd


class Manager(Protocol):
    """Every method that talks to it raises `ServiceError` if it refuses."""

    @property
    def system(self) -> bool:
        """It keeps the whole machine's service, not a user's."""

    @property
    def other(self) -> Manager:
        """The system's beside a user's, and the other way round."""

    @property
    def path(self) -> Path:
        """The definition's file."""

    def render(self, definition: Definition) -> bytes: ...

    @property
    def files(self) -> list[Path]:
        """The definition and what links to it, as far as they are there."""

    def read(self) -> Installed | None:
        """What is installed; None if nothing is."""

    def probe(self) -> None:
        """Raises: ServiceError if it can't be asked for anything."""

    def domains(self) -> list[str]:
        """Where it knows the service, running or not, and whether or not its file is there. It may
        be several: launchd loads an agent of an SSH session once more at a login at the screen.
        """

    def loaded(self) -> bool:
        """Whether it knows the service, running or not."""

    def beginning(self) -> list[str]:
        """The command lines of `begin`, for who wants to see them first."""

    def begin(self) -> str | None:
        """Have it run from now on; returns what the operator should know."""

    def end(self, installed: Installed) -> None:
        """Have it end in order, and not come back before `begin` or the next boot or login."""

    def forget(self) -> None:
        """After its end and the removal of its file: nothing of it comes back."""

    def log_command(self, lines: int) -> list[str]:
        """Shows what the system keeps of it: what it printed in crashes, its starts and ends."""


def manager(owner: Owner, say: Callable[[str], None], *, system: bool) -> Manager:
    if sys.platform == "darwin":
        return Launchd(owner, say, system=system)
    return Systemd(owner, system=system)
