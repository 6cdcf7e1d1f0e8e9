from __future__ import annotations

import subprocess
import sys

import pytest

from protocol.process import ProcessExit

pytestmark = pytest.mark.processes


def test_the_end_comes_before_anybody_has_reaped_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watched = ProcessExit(process.pid)
    assert watched.watched
    assert not watched.comes_within(0)
    process.kill()
    assert watched.comes_within(60)
    watched.close()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def test_ended_process_is_not_watched() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    gone = ProcessExit(process.pid)
    assert not gone.watched
    assert not gone.comes_within(0)
    gone.close()
