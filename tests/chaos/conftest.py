"""Short forms run in CI; the long ones are marked `chaos`. Both tell what they saw in a table."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from _pytest.terminal import TerminalReporter

_ROWS = pytest.StashKey[list[tuple[str, str]]]()


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Add a row of figures to the table at the end of the run."""

    def add(**figures: object) -> None:
        text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())
        name = request.node.nodeid.removeprefix("tests/chaos/")
        request.config.stash.setdefault(_ROWS, []).append((name, text))

    return add


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(_ROWS, [])
    if not rows:
        return
    terminalreporter.section("what chaos has shown")
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        terminalreporter.write_line(f"{name:<{width}}  {text}")
