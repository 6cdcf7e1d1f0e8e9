"""The file that launchd holds open stays small."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.service.crash_log import bound

MB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "crash.log"


@pytest.fixture
def descriptor(path: Path) -> Iterator[int]:
    """As launchd opens it."""
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    yield opened
    os.close(opened)


def test_the_end_is_kept(path: Path, descriptor: int) -> None:
    os.write(descriptor, b"".join(b"line %d\n" % each for each in range(600_000)))
    assert path.stat().st_size > 4 * MB
    bound(path, descriptor)
    os.write(descriptor, b"a new line\n")
    lines = path.read_text().splitlines()
    assert path.stat().st_size < 2 * MB
    assert lines[-2:] == ["line 599999", "a new line"]
    assert lines[0].startswith("line ")


def test_a_small_one_is_left_alone(path: Path, descriptor: int) -> None:
    os.write(descriptor, b"x" * MB)
    bound(path, descriptor)
    assert path.stat().st_size == MB


def test_another_output_is_left_alone(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"x" * 5 * MB)
    with (tmp_path / "other").open("wb") as other:
        bound(path, other.fileno())
    assert path.stat().st_size == 5 * MB
    bound(tmp_path / "missing", 2)
