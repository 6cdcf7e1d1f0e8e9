"""A part of the slow tests, chosen by file, and no test begun when its time is over.

`pytest -p tests.support.slices --slice 3/8 --begin-before 1790000000` runs the files of slice 3 of
8, and names the files whose tests it had no time to begin. A file stays in its slice while other
files come and go.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter

import pytest
from _pytest.terminal import TerminalReporter

_LEFT_OUT = "left out: the time of this slice is over"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slice", required=True, metavar="K/N", help="this slice of so many")
    parser.addoption("--begin-before", type=float, required=True, metavar="EPOCH_S")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number, count = (int(part) for part in config.getoption("slice").split("/"))
    sides: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])
    for item in items:
        sides[zlib.crc32(_file(item.nodeid).encode()) % count == number].append(item)
    outside, items[:] = sides
    config.hook.pytest_deselected(items=outside)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > item.config.getoption("begin_before"):
        pytest.skip(_LEFT_OUT)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    left_out = Counter(
        _file(report.nodeid)
        for report in terminalreporter.stats.get("skipped", [])
        if _LEFT_OUT in str(report.longrepr)
    )
    if left_out:
        terminalreporter.section("left out, because the time of this slice is over")
        for file, tests in sorted(left_out.items()):
            terminalreporter.write_line(f"{file}: {tests} tests")


def _file(node_id: str) -> str:
    return node_id.partition("::")[0]
