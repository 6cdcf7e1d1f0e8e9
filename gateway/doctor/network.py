"""Who can reach the gateway, and what protects the way."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.machine_rules import (
    Places,
    first_key,
    has_keys,
    network_cautions,
    network_complaints,
)
from gateway.config.tables import label
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.doctor.installation import Installation
from gateway.system.notation import is_loopback

_CHECK = "network"


def look_at_network(installation: Installation) -> Iterator[Finding]:
    """What is wrong by the configuration; if nothing is, how the gateway that runs is reached."""
    gateway = installation.settings.gateway
    complaints = list(network_complaints(installation.settings, Places()))
    for place, message in complaints:
        yield error(
            _CHECK, f"{label(place)}: {message}.", "docs/network.md has what belongs there."
        )
    if complaints:
        return
    cautions = list(network_cautions(gateway))
    for caution in cautions:
        yield warning(_CHECK, caution, "docs/network.md shows ways to do it.")
    if not cautions:
        running = installation.running()
        host, tls = gateway.host, gateway.tls
        if running.holder is not None:
            host, tls = running.address[0], running.tls
        who = "This machine alone" if is_loopback(host) else "Other machines"
        keyless = (
            ""
            if has_keys(gateway)
            else " There is no API key, so what a proxy passes on, as Caddy or Tailscale, is "
            f"refused until {first_key(gateway)} makes one."
        )
        yield ok(_CHECK, f"{who} can reach {host}, by {'TLS' if tls else 'plain HTTP'}.{keyless}")
