"""The processes of a command, of which some can't be told by what they carry."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from protocol.process_tree import MARK, CommandProcesses, kill_marked, marked
from tests.support.gateway import eventually, gone

pytestmark = pytest.mark.processes

# A shell in a session of its own, which leaves another program, without an environment, to itself.
_LEAVES = "env -i sleep 1000 & echo $!; exec sleep 1000"
_GUARD = f"""
import os, subprocess, sys
subprocess.Popen(
    ["sh", "-c", {_LEAVES!r}],
    env={{**os.environ, {MARK!r}: sys.argv[1]}},
    start_new_session=True,
).wait()
"""


@pytest.fixture
def guard() -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process, psutil.Process]]:
    """A guard with the mark `own`, its child, and what that has left, which hides its mark."""
    with subprocess.Popen(
        [sys.executable, "-c", _GUARD, "own"], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        hidden = psutil.Process(int(process.stdout.readline()))
        child = psutil.Process(os.getsid(hidden.pid))
        eventually(lambda: MARK not in hidden.environ())
        yield process, child, hidden
        for item in (hidden, child):
            if item.is_running():
                item.kill()
        process.kill()


def test_it_is_found_in_the_session_of_a_marked_one(
    guard: tuple[subprocess.Popen[bytes], psutil.Process, psutil.Process],
) -> None:
    process, child, hidden = guard
    assert {process.pid for process in marked("own")} == {child.pid, hidden.pid}, "and no guard"
    process.kill()
    process.wait()
    assert kill_marked("own", 30)
    eventually(lambda: gone(child.pid) and gone(hidden.pid))


def test_it_is_found_in_a_session_that_was_seen(
    guard: tuple[subprocess.Popen[bytes], psutil.Process, psutil.Process],
) -> None:
    process, child, hidden = guard
    command = CommandProcesses(process.pid, "own")
    assert [process.pid for process in command.below()][:1] == [child.pid]
    for item in (process, child):
        item.send_signal(signal.SIGKILL)
    process.wait()
    eventually(lambda: gone(child.pid))
    assert marked("own") == []
    assert command.kill(30)
    eventually(lambda: gone(hidden.pid))


def test_a_session_is_forgotten_with_its_last_process(
    guard: tuple[subprocess.Popen[bytes], psutil.Process, psutil.Process],
) -> None:
    process, child, hidden = guard
    command = CommandProcesses(process.pid, "own")
    assert {process.pid for process in command.all()} == {child.pid, hidden.pid}
    for item in (process, child, hidden):
        item.send_signal(signal.SIGKILL)
    process.wait()
    eventually(lambda: gone(child.pid) and gone(hidden.pid))
    assert command.all() == []
    assert not command._sessions


def test_the_session_of_the_caller_is_nobodys() -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, env={MARK: "own"}, stdin=subprocess.PIPE) as process:
        eventually(lambda: [process.pid for process in marked("own")] == [process.pid])
        process.kill()
