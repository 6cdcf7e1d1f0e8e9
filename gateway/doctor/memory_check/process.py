"""A process in a worker's environment, asked about its memory: only there is MLX imported."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from types import TracebackType
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from gateway.workers.process import WORKER, worker_environment
from protocol.errands import Environment
from protocol.probe import ProbeOrder

T = TypeVar("T", bound=Struct)

# For a process that was told to go; it gives back a gigabyte at most.
_GOES_S: Final = 10.0
# Lines of its log.
_LAST_WORDS: Final = 20


class ProbeError(Exception):
    """It gave no answer; the text says why."""


class Probe:
    """Ends with this object, and with this process: its orders come from a pipe."""

    def __init__(self, within_s: float) -> None:
        """Start it. It has so long for everything that it is asked.

        Raises:
            ProbeError: it can't be started.
        """
        self._deadline = time.monotonic() + within_s
        self._within_s = within_s
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._last_words: deque[bytes] = deque(maxlen=_LAST_WORDS)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(WORKER), "probe"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=worker_environment(),
                close_fds=False,
            )
        except OSError as error:
            raise ProbeError(f"it can't be started: {error.strerror}") from error
        self._stderr = threading.Thread(target=self._read_stderr, name="probe log", daemon=True)
        self._stderr.start()
        threading.Thread(target=self._read, name="probe", daemon=True).start()

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None
    ) -> None:
        if kind is not None or not self.end():
            self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def left_s(self) -> float:
        """Of its time."""
        return self._deadline - time.monotonic()

    def environment(self) -> Environment:
        """What it says first. Raises: ProbeError."""
        return msgspec.json.decode(self._answer(), type=Environment)

    def ask(self, order: ProbeOrder, kind: type[T]) -> T:
        """Raises: ProbeError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ProbeError(self._why()) from error
        return msgspec.json.decode(self._answer(), type=kind)

    def end(self) -> bool:
        """Let it give its memory back and go; whether it does."""
        assert self._process.stdin is not None
        # Else it is gone, with an order unread.
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(max(1.0, min(_GOES_S, self.left_s)))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Raises: subprocess.TimeoutExpired if it survives that."""
        self._process.kill()
        self._process.wait(_GOES_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:
                self._answers.put(line)
        self._answers.put(b"")

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            self._last_words.extend(stderr)

    def _answer(self) -> bytes:
        try:
            line = self._answers.get(timeout=max(0.0, self.left_s))
        except queue.Empty:
            raise ProbeError(f"it took longer than {self._within_s:g} s") from None
        if not line:
            raise ProbeError(self._why())
        return line

    def _why(self) -> str:
        """Why it has ended."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        if code < 0:
            return f"the process died by {signal.Signals(-code).name}"
        self._stderr.join(1.0)
        lines = [each.decode("utf-8", "replace").strip() for each in list(self._last_words)]
        last = next((each for each in reversed(lines) if each), f"exit code {code}")
        return last.rstrip(".")
