"""Who can reach the gateway, and what protects the way."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.keys import label
from gateway.config.network import exposed, network_cautions, network_complaints, tls_files
from gateway.config.places import Places
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.doctor.installation import Installation

_CHECK = "network"


def look_at_network(installation: Installation) -> Iterator[Finding]:
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
        who = "Other machines" if exposed(gateway) else "This machine alone"
        how = "plain HTTP" if tls_files(gateway) is None else "TLS"
        yield ok(_CHECK, f"{who} can reach {gateway.host}, by {how}.")
