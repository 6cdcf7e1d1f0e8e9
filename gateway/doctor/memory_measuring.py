"""Measures, part by part, in processes that are started for it.

Every part ends in its time or raises ProbeError, and holds no more memory than it is given.
"""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Literal, TypeVar

import msgspec
import psutil
from msgspec import Struct

from gateway.doctor.memory_judgement import (
    AttentionFigures,
    Gauge,
    HeldMemory,
    Machine,
    ProcessFigures,
    ReturnFigures,
    RightsFigures,
    StepFigures,
    is_back,
)
from gateway.system.memory import BackEnd, back_end, footprint, host_memory, wired_limit_mb
from gateway.system.memory_reading import FootprintError, HostError
from gateway.workers.process import WORKER, worker_environment
from protocol.errands import (
    AttentionPeak,
    Drop,
    Environment,
    Hold,
    Import,
    Imported,
    MeasureAttention,
    ProbeOrder,
    StepTimes,
    TimeSteps,
    Trim,
)
from protocol.life import MlxMemory

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


_MOST_BYTES: Final = 1_000_000_000
_SHARE: Final = 1 / 8
_LEAST_BYTES: Final = 64_000_000
# A footprint is read when what was just allocated or freed has settled.
_SETTLES_S: Final = 0.3
_PARTS_OF_ALL: Final = (0.25, 0.5, 1.0)
_WATCHED_S: Final = 10.0
_LOOK_S: Final = 0.1
_STEPS_S: Final = 9.0
_BUSY_LOOK_S: Final = 0.5
_HEAD_DIMS: Final = (64, 128, 192, 256)
_MASKS: Final[tuple[Literal["array", "causal"], ...]] = ("array", "causal")


def most_bytes() -> int:
    """What a process of this check may hold. Raises: ProbeError if that is too little to tell."""
    size = min(_MOST_BYTES, int(host_memory().available_bytes * _SHARE))
    if size < _LEAST_BYTES:
        raise ProbeError("too little memory is free for it")
    return size


def measure_process(within_s: float) -> tuple[Machine, ProcessFigures]:
    """A worker's footprint as it holds nothing, more, and less."""
    size = most_bytes()
    with Probe(within_s) as probe:
        environment = probe.environment()
        imported = probe.ask(Import(), Imported)
        card_bytes = imported.device.get("free_memory")
        if isinstance(card_bytes, int):
            size = min(size, int(card_bytes * _SHARE))
        figures = ProcessFigures(
            _held(probe, "after the imports", imported.memory),
            tuple(_hold(probe, int(size * part)) for part in _PARTS_OF_ALL),
            _held(probe, "freed", probe.ask(Drop(), MlxMemory)),
            _held(probe, "freed, and buffers given back", probe.ask(Trim(), MlxMemory)),
        )
    return machine(imported, environment), figures


def machine(imported: Imported | None = None, environment: Environment | None = None) -> Machine:
    """With what a worker has said of MLX, if one has."""
    host = host_memory()
    try:
        limit_mb = wired_limit_mb()
    except HostError:
        limit_mb = None
    return Machine(
        system=_system(),
        back_end=back_end() if imported is None else BackEnd(imported.back_end),
        device={} if imported is None else imported.device,
        environment=environment,
        total_bytes=host.total_bytes,
        available_bytes=host.available_bytes,
        pressure=host.pressure,
        wired_limit_mb=limit_mb,
    )


def _system() -> str:
    """Without the name of the machine."""
    release = platform.mac_ver()[0]
    name = f"macOS {release}" if release else f"{platform.system()} {platform.release()}"
    return f"{name}, {platform.machine()}"


def _hold(probe: Probe, size_bytes: int) -> HeldMemory:
    memory = probe.ask(Hold(size_bytes), MlxMemory)
    return _held(probe, f"holding {size_bytes / 1e6:.0f} MB", memory)


def _held(probe: Probe, what: str, memory: MlxMemory) -> HeldMemory:
    time.sleep(_SETTLES_S)
    return HeldMemory(what, _footprint_bytes(probe.pid), memory)


def _footprint_bytes(pid: int) -> int:
    try:
        return footprint(pid).current_bytes
    except FootprintError as error:
        raise ProbeError(f"no footprint: {error}") from error


def measure_return(within_s: float, *, killed: bool) -> ReturnFigures:
    """Of a process that holds memory, wired where that is possible, and ends."""
    size = most_bytes()
    with Probe(within_s) as probe:
        probe.environment()
        probe.ask(Import(), Imported)
        before = _gauge()
        began_bytes = _footprint_bytes(probe.pid)
        probe.ask(Hold(size, wire=True), MlxMemory)
        time.sleep(_SETTLES_S)
        held_bytes = _footprint_bytes(probe.pid) - began_bytes
        meanwhile = _gauge()
        watched_s = max(1.0, min(_WATCHED_S, probe.left_s / 2))
        ordered = time.monotonic()
        if killed:
            probe.kill()
        elif not probe.end():
            raise ProbeError("it was told to end, and did not")
        ended = time.monotonic()
        while True:
            after, passed_s = _gauge(), time.monotonic() - ended
            figures = ReturnFigures(
                held_bytes, before, meanwhile, after, ended - ordered, passed_s, watched_s
            )
            if is_back(figures):
                return figures
            if passed_s >= watched_s:
                return msgspec.structs.replace(figures, back_s=None)
            time.sleep(_LOOK_S)


def _gauge() -> Gauge:
    host = host_memory()
    return Gauge(host.available_bytes, host.wired_bytes)


def measure_steps(within_s: float) -> StepFigures:
    busy = psutil.cpu_percent(_BUSY_LOOK_S) / 100
    with Probe(within_s) as probe:
        probe.environment()
        return StepFigures(probe.ask(TimeSteps(_STEPS_S), StepTimes), busy)


def measure_attention(within_s: float) -> Iterator[AttentionFigures]:
    """One after the other, so that what was measured stays if a kernel fails."""
    with Probe(within_s) as probe:
        probe.environment()
        for head_dim in _HEAD_DIMS:
            for mask in _MASKS:
                peak = probe.ask(MeasureAttention(head_dim, mask), AttentionPeak)
                yield AttentionFigures(head_dim, mask, peak)


def measure_rights() -> RightsFigures:
    """Of this process, a child of it, and the first process of the system."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        return RightsFigures(_reading(os.getpid()), _reading(child.pid), _reading(1))


def _reading(pid: int) -> int | str:
    try:
        return footprint(pid).host_bytes
    except FootprintError as error:
        # Whose it was is known, and process ids tell others nothing.
        return str(error).partition(": ")[2] or str(error)
