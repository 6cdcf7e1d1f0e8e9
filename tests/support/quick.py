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

_FOLDERS: Final = (
    "gateway",
    "protocol",
    "worker/guesses",
    "worker/sampling",
    "worker/template",
    "worker/calls",
    "worker/text",
)
_MARKS: Final = ("processes", "slow", "alone", "chaos")
_STARTS: Final = ("os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen")
_running: set[str] = set()


def pytest_configure() -> None:
    # A hook of the interpreter can't be taken away again, so it looks at what runs.
    sys.addaudithook(_refuse_processes)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    tests = Path(__file__).parents[1]
    quick = any(collection_path.is_relative_to(tests / folder) for folder in _FOLDERS)
    return None if quick or collection_path.is_dir() else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = [item for item in items if any(map(item.get_closest_marker, _MARKS))]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if not any(map(item.get_closest_marker, _MARKS))]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _running.add(item.nodeid)
    try:
        return (yield)
    finally:
        _running.discard(item.nodeid)


def _refuse_processes(event: str, _arguments: object) -> None:
    if _running and event in _STARTS:
        raise RuntimeError(f"{', '.join(_running)} starts a process: mark it `processes`")
