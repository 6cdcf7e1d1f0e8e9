"""A child process of ours: its start, its input, the lines that it prints, and its end.

One thread reads the output of a child, and one reaps the child. They are threads because threads
work the same on every system, and keep pipes away from the event loop. They start before the child,
so that each child is read and reaped.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import IO, Final, Self

from msgspec import Struct

from gateway.system.lane import start_thread

# The longest wait for the end of a killed process; longer than the wait for its last line.
KILLED_S: Final = 10.0
_LAST_LINES: Final = 20
_LONGEST_LINE: Final = 500


class ExitStatus(Struct, frozen=True):
    """How a process ended: by itself with an exit code, or by a signal. Neither is known of a
    process that an earlier gateway has started.
    """

    code: int | None
    signal: str | None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"signal {self.signal}"
        return "an unknown status" if self.code is None else f"exit code {self.code}"

    @classmethod
    def of(cls, status: int) -> ExitStatus:
        """The status as Popen gives it: negative for a signal."""
        if status >= 0:
            return cls(status, None)
        try:
            return cls(None, signal.Signals(-status).name)
        except ValueError:
            return cls(None, str(-status))


class Child:
    """A child process. `stdin`, `stdout` and `stderr` are as of Popen; a pipe at `stderr` is read
    into `last_errors`. A context kills a child that still runs at its end.
    """

    def __init__(
        self,
        command: Sequence[str],
        name: str,
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        stdin: int | None = subprocess.PIPE,
        stdout: int | None = subprocess.PIPE,
        stderr: int | IO[bytes] | None = subprocess.STDOUT,
        own_session: bool = False,
        read: Callable[[IO[bytes]], None] | None = None,
        on_start: Callable[[int], None] | None = None,
        on_exit: Callable[[ExitStatus], None] | None = None,
        drain_s: float = 5.0,
    ) -> None:
        """Start the child. `name` is that of its threads. The functions are called from threads:
        `read` once with the piped output, `on_exit` once with the exit status. Without `read` the
        lines wait for `next_line`. `on_start` gets the pid before any of these calls.

        `on_exit` comes after the last line, but waits no longer than `drain_s` for that line, as a
        grandchild may hold the pipe open for ever.

        Raises:
            OSError: the child, or a thread, can't be started. Then there is no child.
        """
        self.last_errors: deque[str] = deque(maxlen=_LAST_LINES)
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._status: int | None = None
        self._ended = threading.Event()
        # None tells the threads that no child was started.
        started: Future[subprocess.Popen[bytes] | None] = Future()
        self._readers: list[threading.Thread] = []
        try:
            if stdout == subprocess.PIPE:
                work = partial(_read, started, "stdout", read or self._queue_lines)
                self._readers.append(start_thread(work, name))
            if stderr == subprocess.PIPE:
                work = partial(_read, started, "stderr", self._remember_errors)
                self._readers.append(start_thread(work, f"{name}-errors"))
            start_thread(partial(self._reap, started, on_exit, drain_s), f"{name}-reaper")
            # With an absolute path, no folder, and close_fds off CPython uses posix_spawn on macOS,
            # where a forked child of a process with threads may deadlock. Python's descriptors
            # aren't inheritable anyway (PEP 446). A child stays in the group of this process:
            # launchd kills the rest of the group when the gateway is gone.
            self._popen = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                close_fds=False,
                start_new_session=own_session,
            )
        except BaseException:
            started.set_result(None)
            raise
        try:
            if on_start is not None:
                on_start(self.pid)
        finally:
            started.set_result(self._popen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.status is None:
            self.kill()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def status(self) -> int | None:
        """The exit status as Popen gives it; None: the child runs."""
        return self._status

    def send(self, content: bytes, *, last: bool = False) -> bool:
        """Write to the input, and with `last` close it. Returns False if the child has closed its
        end. A pipe takes some kilobytes without a wait.
        """
        stdin = self._popen.stdin
        if stdin is None or stdin.closed:
            return False
        try:
            stdin.write(content)
            stdin.flush()
            if last:
                stdin.close()
        except (OSError, ValueError):
            # The child has ended, and perhaps its reaper has closed the pipe.
            return False
        return True

    def end_input(self) -> None:
        """Close the input."""
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()

    def next_line(self, within_s: float) -> bytes:
        """The next line of the output; empty: the output has ended. Raises: TimeoutError."""
        try:
            line = self._lines.get(timeout=max(0.0, within_s))
        except queue.Empty:
            raise TimeoutError(f"process {self.pid} printed nothing") from None
        if not line:
            self._lines.put(b"")
        return line

    def rest_lines(self) -> list[bytes]:
        """The lines that wait for `next_line`, without a wait and without their ends."""
        lines = []
        with contextlib.suppress(TimeoutError):
            while line := self.next_line(0.0):
                lines.append(line.rstrip(b"\r\n"))
        return lines

    def signal(self, number: signal.Signals) -> None:
        """Signal the child. After its end this does nothing."""
        self._popen.send_signal(number)

    def wait(self, within_s: float | None = None) -> int:
        """Wait for the end, and for the last line as `on_exit` does. Returns the exit status as
        Popen gives it.

        Raises: TimeoutError.
        """
        if not self._ended.wait(within_s):
            raise TimeoutError(f"process {self.pid} runs")
        assert self._status is not None
        return self._status

    def wait_for_last_line(self, within_s: float) -> None:
        """Wait until the output has ended, or the time is over."""
        deadline = time.monotonic() + within_s
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))

    def kill(self) -> int:
        """Send SIGKILL, and return the exit status. Raises: TimeoutError: the child survives."""
        self.signal(signal.SIGKILL)
        return self.wait(KILLED_S)

    def stop(self, within_s: float) -> int:
        """Send SIGTERM, and SIGKILL if the child doesn't end in time. Returns the exit status.

        Raises: TimeoutError: the child survives.
        """
        self.signal(signal.SIGTERM)
        try:
            return self.wait(within_s)
        except TimeoutError:
            return self.kill()

    def _queue_lines(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def _remember_errors(self, stderr: IO[bytes]) -> None:
        for line in stderr:
            if text := line.decode("utf-8", "replace").strip():
                self.last_errors.append(text[:_LONGEST_LINE])

    def _reap(
        self,
        started: Future[subprocess.Popen[bytes] | None],
        on_exit: Callable[[ExitStatus], None] | None,
        drain_s: float,
    ) -> None:
        if (popen := started.result()) is None:
            return
        self._status = popen.wait()
        self.wait_for_last_line(drain_s)
        self._ended.set()
        if popen.stdin is not None:
            with contextlib.suppress(OSError):
                popen.stdin.close()
        if on_exit is not None:
            on_exit(ExitStatus.of(self._status))


def _read(
    started: Future[subprocess.Popen[bytes] | None],
    stream: str,
    consume: Callable[[IO[bytes]], None],
) -> None:
    if (popen := started.result()) is not None:
        with getattr(popen, stream) as pipe:
            consume(pipe)
