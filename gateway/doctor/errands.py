"""Processes that run in a worker's environment, since the doctor itself never imports MLX."""

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
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from gateway.workers.process import WORKER, worker_environment
from protocol.errands import Environment, ProbeOrder

T = TypeVar("T", bound=Struct)
ErrandName: TypeAlias = Literal["examine", "measure", "compare"]


class ErrandOutcome(Struct, frozen=True):
    """The lines of JSON that an errand printed. `failure` is the cause if the process failed."""

    lines: tuple[bytes, ...]
    failure: str | None


def run_errand(
    name: ErrandName,
    asked: Struct,
    python: str | None,
    within_s: float,
) -> ErrandOutcome:
    """Run an errand of a worker in a process with the interpreter `python`, or with this one. This
    takes seconds, since the process imports mlx-lm. After `within_s` the process is killed, but the
    lines that it has printed are returned.
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
            # For example, Ctrl-C raises KeyboardInterrupt.
            process.kill()
            raise
    return ErrandOutcome(tuple(stdout.splitlines()), failure)


def _why(code: int, stderr: Sequence[bytes]) -> str:
    """Why a process failed: its signal, or the last line of its stderr, or its exit code."""
    if code < 0:
        return f"the process died by {signal.Signals(-code).name}"
    lines = [each.decode("utf-8", "replace").strip() for each in stderr]
    last = next((each for each in reversed(lines) if each), f"exit code {code}")
    return last.rstrip(".")


# The longest wait for the end of a probe, which holds a tenth of the memory at most.
_ENDS_S: Final = 10.0
# The number of last lines of a probe's stderr that are remembered.
_LAST_LINES: Final = 20


class ProbeError(Exception):
    """A probe could not measure. The message is the cause, as a part of a sentence."""


class Probe:
    """A process that runs a worker's code and measures by order. It reads the orders from a pipe,
    and ends when the pipe is closed: by this object, or by the end of the doctor's process.
    """

    def __init__(self, within_s: float, prefix: Sequence[str] = ()) -> None:
        """Start the process, which has `within_s` for all its orders together. `prefix` is a
        command that starts it, such as nice(1).

        Raises:
            ProbeError: the process can't be started.
        """
        self._deadline = time.monotonic() + within_s
        self._within_s = within_s
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._last_lines: deque[bytes] = deque(maxlen=_LAST_LINES)
        try:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-P", str(WORKER), "probe"],
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
        """The seconds that the probe still has for its orders."""
        return self._deadline - time.monotonic()

    def environment(self) -> Environment:
        """The probe's first answer, which comes without an order. Raises: ProbeError."""
        return self.answer(Environment)

    def ask(self, order: ProbeOrder, kind: type[T]) -> T:
        """Send an order to the probe, and wait for the answer. Raises: ProbeError."""
        self.send(order)
        return self.answer(kind)

    def send(self, order: ProbeOrder) -> None:
        """Send an order to the probe. Raises: ProbeError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ProbeError(self._why()) from error

    def answer(self, kind: type[T]) -> T:
        """Wait for the answer to the oldest order. Raises: ProbeError."""
        return msgspec.json.decode(self._line(), type=kind)

    def end(self) -> bool:
        """Let the probe free its memory and end. Return False if it doesn't end in time."""
        assert self._process.stdin is not None
        # An error means that the process has already ended, and left an order unread.
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(max(1.0, min(_ENDS_S, self.left_s)))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Raises: subprocess.TimeoutExpired: the process survives the signal."""
        self._process.send_signal(number)
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
            self._last_lines.extend(stderr)

    def _line(self) -> bytes:
        try:
            line = self._answers.get(timeout=max(0.0, self.left_s))
        except queue.Empty:
            raise ProbeError(f"it took longer than {self._within_s:g} s") from None
        if not line:
            raise ProbeError(self._why())
        return line

    def _why(self) -> str:
        """Why the probe gives no more answers."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        self._stderr.join(1.0)
        return _why(code, list(self._last_lines))
