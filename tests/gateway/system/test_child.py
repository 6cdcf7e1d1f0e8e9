"""A child process: its lines, its input and its end."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time
from typing import IO

import psutil
import pytest

from gateway.system.child import Child, ExitStatus

PATIENCE_S = 20.0
ECHO = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
IGNORES_SIGTERM = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('ready', flush=True); time.sleep(60)"
)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_lines_answer_input_and_end_with_it() -> None:
    with Child(python(ECHO), "echo") as child:
        assert child.send(b"one\n")
        assert child.next_line(PATIENCE_S) == b"ONE\n"
        assert child.send(b"two\n", last=True)
        assert child.wait(PATIENCE_S) == 0
        assert child.rest_lines() == [b"TWO"]
        assert child.next_line(0.0) == b""
        assert not child.send(b"three\n")


def test_line_that_does_not_come_is_timeout() -> None:
    with Child(python("input()"), "silent") as child, pytest.raises(TimeoutError):
        child.next_line(0.05)
    assert child.status == -signal.SIGKILL
    assert not psutil.pid_exists(child.pid)


def test_exit_is_reported_after_last_line() -> None:
    seen: queue.SimpleQueue[str | ExitStatus] = queue.SimpleQueue()

    def read(stdout: IO[bytes]) -> None:
        for line in stdout:
            time.sleep(0.01)
            seen.put(line.decode().strip())

    code = "import sys; print(*range(20), sep='\\n'); sys.exit(3)"
    Child(python(code), "counts", read=read, on_exit=seen.put)
    received = [seen.get(timeout=PATIENCE_S) for _ in range(21)]
    assert received == [*map(str, range(20)), ExitStatus(3, None)]


def test_exit_does_not_wait_for_grandchild_with_pipe() -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    with Child(python(code), "parent", drain_s=0.2) as child:
        grandchild = psutil.Process(int(child.next_line(PATIENCE_S)))
        try:
            assert child.wait(PATIENCE_S) == 0
        finally:
            grandchild.kill()


def test_start_is_reported_before_lines_and_exit() -> None:
    calls: list[object] = []
    ended = threading.Event()

    def start(pid: int) -> None:
        time.sleep(0.3)
        calls.append(pid)

    def end(status: ExitStatus) -> None:
        calls.append(status)
        ended.set()

    child = Child(
        python("print('line')"),
        "quick",
        read=lambda stdout: calls.extend(stdout),
        on_start=start,
        on_exit=end,
    )
    assert ended.wait(PATIENCE_S)
    assert calls == [child.pid, b"line\n", ExitStatus(0, None)]


def test_stop_kills_child_that_ignores_sigterm() -> None:
    with Child(python(IGNORES_SIGTERM), "stubborn") as child:
        child.next_line(PATIENCE_S)
        assert child.stop(0.1) == -signal.SIGKILL
        child.signal(signal.SIGTERM)  # This does nothing.


def test_last_errors_are_remembered() -> None:
    code = "import sys; print(*range(30), 'x' * 999, sep='\\n', file=sys.stderr)"
    with Child(python(code), "errors", stderr=subprocess.PIPE) as child:
        assert child.wait(PATIENCE_S) == 0
    assert list(child.last_errors) == [*map(str, range(11, 30)), "x" * 500]


def test_missing_program_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(OSError, match="No such file"):
        Child(["/nowhere/program"], "missing", on_exit=lambda _: pytest.fail("there is no child"))
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("status", "text"),
    [(0, "exit code 0"), (7, "exit code 7"), (-9, "signal SIGKILL"), (-99, "signal 99")],
)
def test_exit_status_says_code_or_signal(status: int, text: str) -> None:
    assert str(ExitStatus.of(status)) == text
