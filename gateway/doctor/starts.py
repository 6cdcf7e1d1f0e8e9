"""Gateways that did not end in order: crashed, killed, or their machine lost its power."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from gateway.doctor.finding import Finding, ok, warning
from gateway.doctor.installation import Installation
from gateway.server.starts import UncleanStarts
from gateway.system.state_file import read_state

_CHECK: Final = "starts"


def look_at_starts(installation: Installation) -> Iterator[Finding]:
    record = read_state(installation.state_dir.starts_path, UncleanStarts) or UncleanStarts()
    # The last one is that of the gateway that runs.
    runs = installation.running().holder is not None
    yield judge_starts(record.at[:-1] if runs else record.at)


def judge_starts(unclean: tuple[float, ...]) -> Finding:
    """Unix times of starts that no orderly end has followed."""
    if not unclean:
        return ok(_CHECK, "Nothing is known of a gateway that did not end in order.")
    last = datetime.fromtimestamp(unclean[-1], UTC)
    return warning(
        _CHECK,
        f"{len(unclean)} of the last gateways did not end in order; the last of them was started "
        f"on {last:%Y-%m-%d %H:%M} UTC.",
        "`bulkhead logs` and `bulkhead service logs` have their last words, and `bulkhead events` "
        "what followed. The next orderly end forgets them.",
    )
