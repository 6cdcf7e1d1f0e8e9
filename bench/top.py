"""`python -m bench.top`: the time of `bulkhead top` from a key to the change on its screen.

On a pseudo-terminal, before a gateway that streams, one that was stopped (SIGSTOP) and never
answers, and none at all. Beside the clock's time it shows the command's CPU time: other programs
took the difference.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psutil

from bench.machine import describe_machine
from tests.cli.terminal import Terminal, terminal
from tests.support.gateway import Gateway
from tests.support.streams import open_stream

_STREAMS: Final = 4
_ROUNDS: Final = 20
_TARGET_S: Final = 0.2
_PAUSE_S: Final = 0.3
_SIZE: Final = (40, 120)
_NOBODY: Final = "http://127.0.0.1:1"
# A key, the text that it brings, and the key that takes it back.
_HELP: Final = ("?", "Escape closes this", "\x1b")
_KILL: Final = ("k", "Kill demo", "n")


def main() -> int:
    print(describe_machine())
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    gateway = Gateway()
    try:
        gateway.load()
        for index in range(_STREAMS):
            open_stream(gateway, f"Story {index}", max_tokens=100_000, ignore_eos=True)
        with _top(gateway.url) as screen:
            _measure("streams, k", screen, *_KILL)
            _measure("streams, ?", screen, *_HELP)
        # Held, so that they end.
        gateway.order("unload", force=True, hold=True)
        with _top(gateway.url) as screen, _stopped(gateway.pid):
            time.sleep(2 * _PAUSE_S)
            _measure("silent, k", screen, *_KILL)
    finally:
        gateway.stop()
    with _top(_NOBODY, "Trying again") as screen:
        _measure("none, ?", screen, *_HELP)
    return 0


@contextmanager
def _top(url: str, ready: str = "serving") -> Iterator[Terminal]:
    with terminal("top", url=url, size=_SIZE) as screen:
        screen.expect(ready)
        yield screen


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _measure(name: str, screen: Terminal, key: str, brings: str, back: str) -> None:
    taken_s, used_s = [], []
    process = psutil.Process(screen.pid)
    for _ in range(_ROUNDS):
        time.sleep(_PAUSE_S)
        while screen.more(0.01) is not None:
            pass
        began_at, began_used_s = time.monotonic(), _used_s(process)
        screen.type(key)
        screen.expect(brings)
        taken_s.append(time.monotonic() - began_at)
        used_s.append(_used_s(process) - began_used_s)
        screen.type(back)
    median_s, worst_s = statistics.median(taken_s), max(taken_s)
    late = sum(number > _TARGET_S for number in taken_s)
    print(
        f"{name:<12} median {median_s * 1000:4.0f} ms, worst {worst_s * 1000:4.0f} ms, "
        f"{late} of {_ROUNDS} later than {_TARGET_S * 1000:.0f} ms; "
        f"CPU mean {statistics.mean(used_s) * 1000:.0f} ms"
    )


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    sys.exit(main())
