"""Who uses a state folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.state_dir import StateDir, lock_holder


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, since the paths of sockets are bounded."""
    with tempfile.TemporaryDirectory(prefix="bh-") as name:
        yield Path(name)


def test_the_holder_of_the_lock(folder: Path) -> None:
    assert lock_holder(folder) is None
    state_dir = StateDir(folder)
    state_dir.acquire()
    assert lock_holder(folder) == os.getpid()
    state_dir.release()
    assert lock_holder(folder) is None


def test_a_pid_that_was_left_behind(folder: Path) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    for stale in (str(done.pid), str(os.getpid()), "", "no pid"):
        (folder / "gateway.lock").write_text(stale)
        assert lock_holder(folder) is None
