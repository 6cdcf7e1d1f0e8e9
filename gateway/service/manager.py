"""What launchd and systemd have in common, and whether both of their services are there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from gateway.service.command import ServiceError
from gateway.service.definition import Installed, Owner, ServiceDefinition
from gateway.service.launchd import Launchd
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

    def render(self, definition: ServiceDefinition) -> bytes: ...

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


class ServiceJob(Struct, frozen=True):
    """The service as the system knows it: launchd's domain, or whose systemd; and the file of its
    definition, None if that is gone.
    """

    domain: str
    path: str | None


def jobs(keeper: Manager) -> list[ServiceJob]:
    """Of both kinds, the asked one's first; of one that can't be asked, none."""
    found = []
    for each in (keeper, keeper.other):
        path = str(each.path) if each.files else None
        try:
            found += [ServiceJob(domain, path) for domain in each.domains()]
        except ServiceError:
            continue
    return found


def known(keeper: Manager) -> str | None:
    """Where there is a service of this kind, its file or else its domains; None: there is none."""
    if keeper.files:
        return str(keeper.path)
    try:
        return ", ".join(keeper.domains()) or None
    except ServiceError:
        return None


def removal(keeper: Manager) -> str:
    """The command that removes a service of this kind."""
    if keeper.system:
        return "sudo bulkhead service uninstall --system"
    return "bulkhead service uninstall"


def twice(keeper: Manager, found: list[ServiceJob]) -> Iterator[tuple[str, str]]:
    """What is wrong with these jobs, and what to do, in sentences."""
    own = [each for each in found if (each.domain == "system") is keeper.system]
    domains = " and ".join(each.domain for each in own)
    if own and own[0].path is None:
        yield (
            f"Its definition {keeper.path} is gone, and launchd still has it in {domains}.",
            f"`{removal(keeper)}` removes it there.",
        )
    elif len(own) > 1:
        yield (
            f"launchd has it {len(own)} times, in {domains}, as after an installation over SSH and "
            "a login at the screen; one of them serves.",
            "`bulkhead service restart` leaves one.",
        )
    if known(keeper) and (where := known(keeper.other)):
        yield (
            f"Beside {keeper.path} there is another one, {where}, and two fight for one port.",
            f"Keep one: `{removal(keeper)}`, or `{removal(keeper.other)}`.",
        )
