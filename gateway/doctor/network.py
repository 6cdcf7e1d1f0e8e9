"""Checks of the network: who can reach the gateway, and whether other hosts' agents answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from gateway.config.machine_rules import (
    Places,
    first_key,
    has_keys,
    network_cautions,
    network_complaints,
)
from gateway.config.model_settings import HostSettings
from gateway.config.tables import label
from gateway.doctor.finding import Finding, Severity, error, ok, warning
from gateway.doctor.installation import Installation
from gateway.system.notation import format_size, is_loopback
from gateway.workers.agent_bodies import HostBody
from gateway.workers.remote_host import AgentLink

_NETWORK = "network"


def look_at_network(installation: Installation) -> Iterator[Finding]:
    """Yield the configuration's faults, or else its cautions. Without either, say who can reach the
    gateway: at its own address if it runs, otherwise at the configured one.
    """
    gateway = installation.settings.gateway
    complaints = list(network_complaints(installation.settings, Places()))
    for place, message in complaints:
        yield error(
            _NETWORK, f"{label(place)}: {message}.", "docs/network.md has what belongs there."
        )
    if complaints:
        return
    cautions = list(network_cautions(gateway))
    for caution in cautions:
        yield warning(_NETWORK, caution, "docs/network.md shows ways to do it.")
    if not cautions:
        running = installation.running()
        host, tls = gateway.host, gateway.tls
        if running.holder is not None:
            host, tls = running.address[0], running.tls
        who = "This machine alone" if is_loopback(host) else "Other machines"
        keyless = (
            ""
            if has_keys(gateway)
            else " There is no API key, so requests through a proxy, such as Caddy or Tailscale, "
            f"are refused until {first_key(gateway)} makes one."
        )
        yield ok(_NETWORK, f"{who} can reach {host}, by {'TLS' if tls else 'plain HTTP'}.{keyless}")


_HOSTS: Final = "hosts"


def look_at_hosts(installation: Installation) -> Iterator[Finding]:
    hosts = installation.settings.hosts
    if not hosts:
        yield ok(_HOSTS, "The configuration names no other machine.")
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
        host = await link.host()
        return judge_host(name, host, link.disagreement(host))
    except OSError as failure:
        return judge_host(name, str(failure), None)
    finally:
        await link.close()


def judge_difference(name: str, of_gateway: str) -> Finding:
    """The finding for an agent that answers the doctor, but not the running gateway. `of_gateway`
    is the gateway's reason.
    """
    return error(
        _HOSTS,
        f"Its agent answers the doctor, but not the running gateway: {of_gateway.rstrip('.')}.",
        "macOS may keep a LaunchAgent from the local network, but no program in a terminal: see "
        "docs/hosts.md. On other systems try again in some seconds.",
        subject=name,
    )


def judge_host(name: str, host: HostBody | str, disagreement: str | None) -> Finding:
    """`host` is the agent's answer, or the reason why there is none. `disagreement` says why ranks
    on that host can't work with ranks here; None if they can.
    """
    if isinstance(host, str):
        return error(
            _HOSTS,
            f"{host.rstrip('.')}.",
            "Start `bulkhead agent` there, and compare url, key_file and fingerprint with its log. "
            "docs/hosts.md has the steps.",
            subject=name,
        )
    if disagreement is not None:
        return error(
            _HOSTS, disagreement, "Install the same version on both machines.", subject=name
        )
    memory = host.memory
    return ok(
        _HOSTS,
        f"Its agent {host.version} answers: {format_size(memory.free_bytes)} of "
        f"{format_size(memory.budget_bytes)} is free, {host.ranks} ranks run.",
        subject=name,
    )
