"""Other machines in `bulkhead status`."""

from __future__ import annotations

import pytest
from rich.console import Console

from gateway.cli.status import _hosts_table
from gateway.http.wire.command_bodies import HostStatus
from tests.cli.canned import filled

GB = 1_000_000_000


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (
            HostStatus("studio2", "me@studio2", True, None, "1.0", 96 * GB, 8 * GB, 88 * GB, 1),
            ["studio2", "1.0", "1", "8.0 GB", "88.0 GB", "96.0 GB"],
        ),
        (
            filled(HostStatus, name="gone", ssh="gone", reason="no answer"),
            ["gone", "out of reach", "-", "-", "-", "-"],
        ),
    ],
)
def test_host_is_one_row(host: HostStatus, words: list[str]):
    console = Console(width=100)
    with console.capture() as captured:
        console.print(_hosts_table((host,)))
    _, row = captured.get().splitlines()
    assert row.startswith(host.name)
    for word in words:
        assert word in row
