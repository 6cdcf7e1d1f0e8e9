"""Processes that run in a worker's environment, since the doctor itself never imports MLX."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from gateway.system.child import Child
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
        child = Child(
            [python or sys.executable, "-P", str(WORKER), name],
            name,
            environment=worker_environment(),
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        return ErrandOutcome((), f"{python or sys.executable} can't be run: {error.strerror}")
    # For example, Ctrl-C raises KeyboardInterrupt: the end of the context kills the process.
    with child:
        child.send(msgspec.json.encode(asked), last=True)
        try:
            status = child.wait(within_s)
            failure = None if status == 0 else _why(status, child)
        except TimeoutError:
            child.kill()
            failure = f"it took longer than {within_s:g} s"
    return ErrandOutcome(tuple(child.rest_lines()), failure)


def _why(status: int, child: Child) -> str:
    """Why a process failed: its signal, or the last line of its stderr, or its exit code."""
    if status < 0:
        return f"the process died by {signal.Signals(-status).name}"
    return next(reversed(child.last_errors), f"exit code {status}").rstrip(".")


# The longest wait for the end of a probe, which holds a tenth of the memory at most.
_ENDS_S: Final = 10.0


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
        try:
            self._child = Child(
                [*prefix, sys.executable, "-P", str(WORKER), "probe"],
                "probe",
                environment=worker_environment(),
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            raise ProbeError(f"it can't be started: {error.strerror}") from error

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None
    ) -> None:
        if kind is not None or not self.end():
            self.kill()

    @property
    def pid(self) -> int:
        return self._child.pid

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
        if not self._child.send(msgspec.json.encode(order) + b"\n"):
            raise ProbeError(self._why())

    def answer(self, kind: type[T]) -> T:
        """Wait for the answer to the oldest order. Raises: ProbeError."""
        return msgspec.json.decode(self._line(), type=kind)

    def end(self) -> bool:
        """Let the probe free its memory and end. Return False if it doesn't end in time."""
        self._child.end_input()
        try:
            self._child.wait(max(1.0, min(_ENDS_S, self.left_s)))
        except TimeoutError:
            return False
        return True

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Raises: TimeoutError: the process survives the signal."""
        self._child.signal(number)
        self._child.wait(_ENDS_S)

    def _line(self) -> bytes:
        try:
            line = self._child.next_line(self.left_s)
        except TimeoutError:
            raise ProbeError(f"it took longer than {self._within_s:g} s") from None
        if not line:
            raise ProbeError(self._why())
        return line

    def _why(self) -> str:
        """Why the probe gives no more answers."""
        try:
            return _why(self._child.wait(1.0), self._child)
        except TimeoutError:
            return "it closed its pipe"
