"""Processes that the doctor starts in a worker's environment, as it never imports MLX itself."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from gateway.workers.process import WORKER, worker_environment
from protocol.errands import Environment, ProbeOrder

T = TypeVar("T", bound=Struct)


class ErrandOutcome(Struct, frozen=True):
    """The lines of JSON that a process printed, and its failure, if it failed."""

    lines: tuple[bytes, ...]
    failure: str | None


def run_errand(
    name: Literal["examine", "measure"], asked: Struct, python: str | None, within_s: float
) -> ErrandOutcome:
    """Run a worker's errand; this takes seconds, as it imports mlx-lm. At the deadline the process
    is killed, and its lines are kept.
    """
    try:
        process = subprocess.Popen(
            [python or sys.executable, "-P", str(WORKER), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=worker_environment(),
            close_fds=False,
        )
    except OSError as error:
        return ErrandOutcome((), f"{python or sys.executable} can't be run: {error.strerror}")
    with process:
        try:
            stdout, stderr = process.communicate(msgspec.json.encode(asked), within_s)
            failure = (
                None if process.returncode == 0 else _why(process.returncode, stderr.splitlines())
            )
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, _ = process.communicate()
            failure = f"it took longer than {within_s:g} s"
        except BaseException:
            # Such as Ctrl-C.
            process.kill()
            raise
    return ErrandOutcome(tuple(stdout.splitlines()), failure)


def _why(code: int, stderr: Sequence[bytes]) -> str:
    """The signal or the last line that a process ended with."""
    if code < 0:
        return f"the process died by {signal.Signals(-code).name}"
    lines = [each.decode("utf-8", "replace").strip() for each in stderr]
    last = next((each for each in reversed(lines) if each), f"exit code {code}")
    return last.rstrip(".")


# For the end of a process that holds a gigabyte at most.
_ENDS_S: Final = 10.0
# Lines of its stderr that are kept.
_LAST_WORDS: Final = 20


class ProbeError(Exception):
    """A probe gave no answer; the message is the cause, as a part of a sentence."""


class Probe:
    """A process of the worker's code that measures on orders. Its orders come through a pipe, so it
    ends with this object and with this process.
    """

    def __init__(self, within_s: float) -> None:
        """Start the process, which has `within_s` for all its orders together.

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
        """The seconds that the probe still has."""
        return self._deadline - time.monotonic()

    def environment(self) -> Environment:
        """The first answer, which comes without an order. Raises: ProbeError."""
        return msgspec.json.decode(self._answer(), type=Environment)

    def ask(self, order: ProbeOrder, kind: type[T]) -> T:
        """Send an order, and wait for its answer. Raises: ProbeError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ProbeError(self._why()) from error
        return msgspec.json.decode(self._answer(), type=kind)

    def end(self) -> bool:
        """End the probe, which frees its memory first; False if it doesn't end in time."""
        assert self._process.stdin is not None
        # An error means that it has ended already, with an order unread.
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(max(1.0, min(_ENDS_S, self.left_s)))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Raises: subprocess.TimeoutExpired if the process survives SIGKILL."""
        self._process.kill()
        self._process.wait(_ENDS_S)

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
        """The cause of the probe's end."""
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
