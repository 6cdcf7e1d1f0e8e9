"""The check of the services of launchd or systemd: the account's service and the system's."""

from __future__ import annotations

import os
from collections.abc import Iterator

from msgspec import Struct

from gateway.doctor.finding import Finding, error, ok, warning
from gateway.doctor.installation import Installation
from gateway.service.definition import (
    Installed,
    ServiceError,
    lasting,
    owner,
    service_pid,
    settings_of,
    stop_s,
)
from gateway.service.init_system import InitSystem, duplicates, jobs, known
from gateway.service.service import init_system
from gateway.system.state_dir import StateDir

_CHECK = "service"


class ServiceFacts(Struct, frozen=True):
    """An installed service. `mistake` is a mistake in its configuration. `needed_stop_s` is the
    longest time that its end takes; None if there is a mistake. `visible` says whether this account
    may see that the service runs.
    """

    path: str
    installed: Installed
    visible: bool
    loaded: bool
    pid: int | None
    mistake: str | None
    needed_stop_s: int | None


def look_at_service(_installation: Installation) -> Iterator[Finding]:
    """Look at the account's service and the system's."""
    yield from look_at_both(users_service())


def users_service() -> InitSystem:
    """The account's service, of launchd or systemd."""
    # Under sudo `owner` refuses a service of the account: without SUDO_USER it takes root's own.
    environment = dict(os.environ)
    if os.geteuid() == 0:
        environment.pop("SUDO_USER", None)
    account = owner(environment, system=False)
    return init_system(account, lambda _text: None, system=False)


def look_at_both(users: InitSystem) -> Iterator[Finding]:
    """Look at the account's service, of `users`, and at the system's service, of `users.other`."""
    service_jobs = jobs(users)
    for init in (users, users.other):
        yield from _look_at(init)
    one = users if known(users) else users.other
    for evidence, remedy in duplicates(one, service_jobs):
        yield warning(_CHECK, evidence, remedy)
    if not known(one):
        yield ok(_CHECK, "None is installed.")


def _look_at(init: InitSystem) -> Iterator[Finding]:
    try:
        if (installed := init.read()) is not None:
            yield from judge_service(_facts(init, installed), lasting())
    except ServiceError as failure:
        yield error(
            _CHECK,
            str(failure),
            "`bulkhead service uninstall` removes it, and `install` writes a new one.",
            subject="system" if init.system else None,
        )


def _facts(init: InitSystem, installed: Installed) -> ServiceFacts:
    mistake = needed_s = None
    lock = StateDir(installed.state_dir).lock_path
    try:
        needed_s = stop_s(settings_of(installed).gateway.drain_s)
    except ServiceError as failure:
        mistake = str(failure)
    return ServiceFacts(
        path=str(init.path),
        installed=installed,
        visible=not lock.exists() or os.access(lock, os.R_OK),
        loaded=init.loaded(),
        pid=service_pid(installed.state_dir),
        mistake=mistake,
        needed_stop_s=needed_s,
    )


def judge_service(facts: ServiceFacts, python: str) -> Iterator[Finding]:
    """`python` is the interpreter of this environment."""
    findings = list(_flaws(facts, python))
    yield from findings
    if not findings and facts.pid is None:
        yield ok(_CHECK, f"{facts.path} belongs to another account: sudo shows whether it runs.")
    elif not findings:
        yield ok(_CHECK, f"{facts.path} runs (pid {facts.pid}).")


def _flaws(facts: ServiceFacts, python: str) -> Iterator[Finding]:
    if facts.mistake is not None:
        yield error(
            _CHECK,
            f"{facts.path} will not start again: {facts.mistake}",
            "Correct the configuration, then `bulkhead service start`.",
        )
    stopped = facts.pid is None and facts.visible
    if stopped and not facts.loaded:
        yield warning(
            _CHECK, f"{facts.path} is installed and stopped.", "`bulkhead service start` starts it."
        )
    elif stopped:
        yield error(
            _CHECK,
            f"{facts.path} is installed, and its gateway doesn't run.",
            "`bulkhead service start` starts it; `bulkhead service logs` says why it ended.",
        )
    if facts.installed.python != python:
        yield warning(
            _CHECK,
            f"{facts.path} runs the Bulkhead of another environment, {facts.installed.python}.",
            "`bulkhead service install` makes it this one's.",
        )
    if facts.needed_stop_s is not None and facts.needed_stop_s > facts.installed.stop_s:
        yield warning(
            _CHECK,
            f"The end of {facts.path} gets {facts.installed.stop_s} s and may take "
            f"{facts.needed_stop_s} s: a shorter end can strand memory.",
            "`bulkhead service install` grants the time that gateway.drain_s needs.",
        )
