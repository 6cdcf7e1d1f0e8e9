"""The service twice: of the account and of the system, or in two of launchd's sessions."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from gateway.service.failure import ServiceError
from gateway.service.manager import Manager


class Job(Struct, frozen=True):
    """The service as the system knows it: launchd's domain, or whose systemd; and the file of its
    definition, None if that is gone.
    """

    domain: str
    path: str | None


def jobs(keeper: Manager) -> list[Job]:
    """Of both kinds, the asked one's first; of one that can't be asked, none."""
    found = []
    for each in (keeper, keeper.other):
        path = str(each.path) if each.files else None
        try:
            found += [Job(domain, path) for domain in each.domains()]
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


def twice(keeper: Manager, found: list[Job]) -> Iterator[tuple[str, str]]:
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
