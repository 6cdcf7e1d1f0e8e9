"""The other machines of the configuration: whether their agents answer, and fit this gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from gateway.config.model_settings import HostSettings
from gateway.doctor.finding import Finding, Severity, error, ok
from gateway.doctor.installation import Installation
from gateway.system.notation import format_size
from gateway.workers.agent_bodies import HostBody
from gateway.workers.remote_host import AgentLink

_CHECK: Final = "hosts"


def look_at_hosts(installation: Installation) -> Iterator[Finding]:
    hosts = installation.settings.hosts
    if not hosts:
        yield ok(_CHECK, "The configuration names no other machine.")
    for name, settings in hosts.items():
        found = asyncio.run(_look(name, settings))
        if found.severity is Severity.OK:
            of_gateway = installation.running().unreached.get(name)
            found = found if of_gateway is None else judge_difference(name, of_gateway)
        yield found


async def _look(name: str, settings: HostSettings) -> Finding:
    try:
        link = AgentLink(name, settings.url, settings.key_file, settings.fingerprint, "doctor")
    except ValueError as mistake:
        return judge_host(name, str(mistake), None)
    try:
        told = await link.host()
        return judge_host(name, told, link.disagreement(told))
    except OSError as failure:
        return judge_host(name, str(failure), None)
    finally:
        await link.close()


def judge_difference(name: str, of_gateway: str) -> Finding:
    """It answers the doctor, and not the gateway that runs, which says this."""
    return error(
        _CHECK,
        f"Its agent answers here, and not the gateway that runs: {of_gateway.rstrip('.')}.",
        "On a Mac a LaunchAgent may be kept from the local network, and what a terminal starts is "
        "not: docs/hosts.md has it. Elsewhere look again in some seconds.",
        subject=name,
    )


def judge_host(name: str, told: HostBody | str, disagreement: str | None) -> Finding:
    """`told` is what its agent said, or why it did not."""
    if isinstance(told, str):
        return error(
            _CHECK,
            f"{told.rstrip('.')}.",
            "Start `bulkhead agent` there, and compare url, key_file and fingerprint with what its "
            "log says. docs/hosts.md has the steps.",
            subject=name,
        )
    if disagreement is not None:
        return error(
            _CHECK, disagreement, "Install the same version on both machines.", subject=name
        )
    memory = told.memory
    return ok(
        _CHECK,
        f"Its agent {told.version} answers: {format_size(memory.free_bytes)} of "
        f"{format_size(memory.budget_bytes)} is free, {told.ranks} ranks run.",
        subject=name,
    )
