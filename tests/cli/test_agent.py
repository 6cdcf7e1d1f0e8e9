"""What an agent's first start says."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.agent import first_steps

KEY = Path("/var/state of it/agent.key")


def _steps(host: str) -> tuple[str, dict[str, Any]]:
    """What it says, and the host's table in it."""
    lines = list(first_steps(host, 8643, "studio2.local", KEY, "SHA256:abc"))
    begins = lines.index("  [hosts.studio2]")
    table = tomllib.loads("\n".join(lines[begins:]))
    return "\n".join(lines[:begins]), table["hosts"]["studio2"]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "https://studio2.local:8643"),
        ("::", "https://studio2.local:8643"),
        ("10.0.0.2", "https://10.0.0.2:8643"),
        ("fd00::7", "https://[fd00::7]:8643"),
    ],
)
def test_an_address_that_others_reach(host: str, url: str) -> None:
    printed, table = _steps(host)
    assert "scp 'studio2.local:/var/state of it/agent.key' ~/studio2.key" in printed
    assert table == {"url": url, "key_file": "~/studio2.key", "fingerprint": "SHA256:abc"}


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "https://127.0.0.1:8643"),
        ("127.0.0.2", "https://127.0.0.2:8643"),
        ("::1", "https://[::1]:8643"),
    ],
)
def test_agent_on_loopback_has_a_hint(host: str, url: str) -> None:
    printed, table = _steps(host)
    assert "Only this machine" in printed
    assert "scp" not in printed
    assert table == {"url": url, "key_file": str(KEY), "fingerprint": "SHA256:abc"}
