"""Checks of the network: who can reach the gateway, and whether other hosts answer by ssh."""

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
from gateway.workers.ssh_host import SshHost
from gateway.workers.ssh_messages import HostReading

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
        finding = asyncio.run(_look(name, settings))
        if finding.severity is Severity.OK:
            of_gateway = installation.running().unreached.get(name)
            finding = finding if of_gateway is None else judge_difference(name, of_gateway)
        yield finding


async def _look(name: str, settings: HostSettings) -> Finding:
    host = SshHost(name, settings)
    try:
        return judge_host(name, await host.read())
    except OSError as failure:
        return judge_host(name, str(failure))
    finally:
        await host.close()


def judge_difference(name: str, of_gateway: str) -> Finding:
    """The finding for a host that answers the doctor, but not the running gateway. `of_gateway` is
    the gateway's reason.
    """
    return error(
        _HOSTS,
        f"It answers the doctor, but not the running gateway: {of_gateway.rstrip('.')}.",
        "A service may have no ssh agent, and so needs a key without a passphrase; macOS may keep "
        "it from the local network. docs/hosts.md has both.",
        subject=name,
    )


def judge_host(name: str, answer: HostReading | str) -> Finding:
    """`answer` is the host's, or the reason why there is none."""
    if isinstance(answer, str):
        return error(
            _HOSTS,
            f"{answer.rstrip('.')}.",
            "Try `ssh -o BatchMode=yes` to it: ssh must need no password, and `bulkhead` there "
            "must be the same version. docs/hosts.md has the steps.",
            subject=name,
        )
    return ok(
        _HOSTS,
        f"It answers: ranks may hold {format_size(answer.budget_bytes)}, and "
        f"{format_size(answer.available_bytes)} of {format_size(answer.total_bytes)} is available.",
        subject=name,
    )
