"""The tests of `make quick`: policies, text, protocol and configuration, without a process.

`pytest -p tests.support.quick` runs the tests of these folders that aren't marked `processes`, and
fails one that starts a process all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_FOLDERS: Final = ("gateway", "protocol", "worker/guesses", "worker/sampling", "worker/text")
_MARKS: Final = ("processes", "slow", "alone", "chaos")
_STARTS: Final = ("os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen")
_running: set[str] = set()


def pytest_configure() -> None:
    # A hook of the interpreter can't be taken away again, so it looks at what runs.
    sys.addaudithook(_refuse_processes)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = [item for item in items if not _is_quick(item)]
    items[:] = [item for item in items if _is_quick(item)]
    config.hook.pytest_deselected(items=others)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _running.add(item.nodeid)
    try:
        return (yield)
    finally:
        _running.discard(item.nodeid)


def _is_quick(item: pytest.Item) -> bool:
    folder = item.path.parent.relative_to(Path(__file__).parents[1])
    return any(folder.is_relative_to(quick) for quick in _FOLDERS) and not any(
        item.get_closest_marker(mark) for mark in _MARKS
    )


def _refuse_processes(event: str, _arguments: object) -> None:
    if _running and event in _STARTS:
        raise RuntimeError(f"{', '.join(_running)} starts a process: mark it `processes`")
