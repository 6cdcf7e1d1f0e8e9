"""A machine that sleeps: the gateway and its worker are stopped together, and go on together."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.support.gateway import Gateway, eventually
from tests.support.streams import open_stream

pytestmark = pytest.mark.slow

LIMIT_S = 5
CONFIG = f"""
[workers]
heartbeat_timeout_s = {LIMIT_S}
stall_timeout_s = {LIMIT_S}
"""
STORY = "Tell me a story."


def test_nothing_ends_for_having_slept_and_who_hangs_does(
    start_gateway: Callable[..., Gateway],
) -> None:
    running = start_gateway(config=CONFIG)
    whole = running.say(STORY, max_tokens=150, ignore_eos=True)
    worker_pid = running.worker_pid()
    # A gateway alone, as under a debugger, and the whole machine.
    for stopped in ((running.pid,), (running.pid, worker_pid)):
        stream = open_stream(running, STORY, max_tokens=150, ignore_eos=True)
        eventually(lambda stream=stream: stream.text)
        _stop(stopped)
        assert stream.join().text == whole
        assert running.worker_pid() == worker_pid
        assert not running.events("hang")
        assert not running.events("refuse")

    os.kill(worker_pid, signal.SIGSTOP)
    (hang,) = eventually(lambda: running.events("hang"))
    assert hang["pid"] == worker_pid


def _stop(pids: tuple[int, ...]) -> None:
    """For longer than every limit, and than an absence has to be to be one."""
    for pid in reversed(pids):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(LIMIT_S * 1.6)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
