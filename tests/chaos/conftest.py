"""Short forms run in CI; the long ones are marked `chaos`. Both tell what they saw in a table."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest
from _pytest.terminal import TerminalReporter

_SHOWN: Final = "shown"


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Add a row of figures to the table at the end of the run."""

    def add(**figures: object) -> None:
        text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())
        # Properties come along with the report, whichever process ran the test.
        request.node.user_properties.append((_SHOWN, text))

    return add


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Of a test's draws: another one in each run of a long form, the same one in a short form."""
    drawn = random.randrange(1 << 32) if request.node.get_closest_marker("chaos") else 1
    print(f"seed {drawn}")
    return drawn


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    rows = [
        (report.nodeid.removeprefix("tests/chaos/"), text)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, text in report.user_properties
        if name == _SHOWN
    ]
    if not rows:
        return
    terminalreporter.section("what chaos has shown")
    width = max(len(name) for name, _ in rows)
    for name, text in sorted(rows):
        terminalreporter.write_line(f"{name:<{width}}  {text}")
