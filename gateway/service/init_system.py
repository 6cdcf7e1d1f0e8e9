"""The common interface to launchd and systemd, their commands, and the services that they have."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from gateway.service.definition import Installed, ServiceDefinition, ServiceError

_LONGEST_S: Final = 30.0


class Done(Struct, frozen=True):
    """A command that has ended. `printed` is its stdout; `complaint` is its stderr on one line, or
    its stdout if stderr is empty.
    """

    command: str
    status: int
    complaint: str
    printed: str

    def failed(self) -> ServiceError:
        why = self.complaint or f"exit status {self.status}"
        return ServiceError(f"`{self.command}` failed: {why}")


def run(*arguments: str, within_s: float = _LONGEST_S) -> Done:
    """Raises: ServiceError: the command can't be run, or doesn't end in time."""
    command = " ".join(arguments)
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=within_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise ServiceError(f"There is no `{arguments[0]}` on this machine.") from error
    except OSError as error:
        raise ServiceError(f"`{command}` can't be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise ServiceError(f"`{command}` did not end within {within_s:g} s.") from error
    complaint = " ".join((done.stderr.strip() or done.stdout.strip()).split())
    return Done(command, done.returncode, complaint, done.stdout)


class InitSystem(Protocol):
    """launchd or systemd, for one kind of service: of the account or of the system. Methods that
    run commands raise `ServiceError` if a command fails.
    """

    @property
    def system(self) -> bool:
        """Whether the service is of the system; False: of the account."""

    @property
    def other(self) -> InitSystem:
        """The interface for the other kind of service."""

    @property
    def path(self) -> Path:
        """The path of the definition."""

    def render(self, definition: ServiceDefinition) -> bytes: ...

    @property
    def files(self) -> list[Path]:
        """The paths of the definition and of the links to it, as far as they exist."""

    def read(self) -> Installed | None:
        """The installed definition; None: there is none."""

    def probe(self) -> None:
        """Raises: ServiceError: launchd or systemd can't be reached."""

    def domains(self) -> list[str]:
        """The domains that have the service, running or not. launchd may have the service in
        several domains: it loads an agent of an SSH session once more at a login at the screen.
        launchd may also have a service whose file is gone.
        """

    def loaded(self) -> bool:
        """Whether launchd has loaded the service, or systemd has enabled it; running or not."""

    def start_commands(self) -> list[str]:
        """The command lines that `start` would run."""

    def start(self) -> str | None:
        """Start the service, and have it start at each boot or login. Returns a remark for the
        operator, or None.
        """

    def end(self, installed: Installed) -> None:
        """End the service in order. It stays down until `start`, or the next boot or login."""

    def forget(self) -> None:
        """Remove the last traces of a service that has ended and whose file was removed."""

    def log_command(self, lines: int) -> list[str]:
        """The command that shows the system's log of the service: crashes, starts and ends."""


class ServiceJob(Struct, frozen=True):
    """The service in one domain of launchd or systemd. `domain` is a name of launchd, or `user` or
    `system` for systemd. `path` is the path of the definition; None: the file is gone.
    """

    domain: str
    path: str | None


def jobs(init: InitSystem) -> list[ServiceJob]:
    """The jobs of both kinds of service, the kind of `init` first. A kind that can't be asked has
    no jobs.
    """
    service_jobs = []
    for system in (init, init.other):
        path = str(system.path) if system.files else None
        try:
            service_jobs += [ServiceJob(domain, path) for domain in system.domains()]
        except ServiceError:
            continue
    return service_jobs


def known(init: InitSystem) -> str | None:
    """The path of this kind of service, or else its domains; None: there is no such service."""
    if init.files:
        return str(init.path)
    try:
        return ", ".join(init.domains()) or None
    except ServiceError:
        return None


def removal(init: InitSystem) -> str:
    """The command line that removes this kind of service."""
    if init.system:
        return "sudo bulkhead service uninstall --system"
    return "bulkhead service uninstall"


def duplicates(init: InitSystem, service_jobs: list[ServiceJob]) -> Iterator[tuple[str, str]]:
    """The faults of a service that exists more than once, or whose file is gone. Each fault is a
    pair of sentences: the fault and its remedy.
    """
    own_jobs = [job for job in service_jobs if (job.domain == "system") is init.system]
    domains = " and ".join(service_job.domain for service_job in own_jobs)
    if own_jobs and own_jobs[0].path is None:
        yield (
            f"Its definition {init.path} is gone, and launchd still has it in {domains}.",
            f"`{removal(init)}` removes it there.",
        )
    elif len(own_jobs) > 1:
        yield (
            f"launchd has it {len(own_jobs)} times, in {domains}, as after an installation over "
            "SSH and a login at the screen; one of them serves.",
            "`bulkhead service restart` leaves one.",
        )
    if known(init) and (where := known(init.other)):
        yield (
            f"Beside {init.path} there is another one, {where}, and two fight for one port.",
            f"Keep one: `{removal(init)}`, or `{removal(init.other)}`.",
        )
