"""The measurements of `doctor --memory`, made by probes.

Every measurement ends in its time or raises ProbeError, and every probe's memory has a bound.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final, Literal

import msgspec
import psutil

from gateway.doctor.errands import Probe, ProbeError
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
from protocol.errands import (
    AttentionPeak,
    Drop,
    Environment,
    Hold,
    Import,
    Imported,
    JoinArrays,
    JoinedArray,
    MeasureAttention,
    StepTimes,
    TimeSteps,
    Trim,
)
from protocol.life import MlxMemory

_MOST_BYTES: Final = 1_000_000_000
_SHARE: Final = 1 / 8
_LEAST_BYTES: Final = 64_000_000
# The pause before a footprint is read, after memory was allocated or freed.
_SETTLES_S: Final = 0.3
_PARTS_OF_ALL: Final = (0.25, 0.5, 1.0)
_WATCHED_S: Final = 10.0
_LOOK_S: Final = 0.1
_STEPS_S: Final = 9.0
_BUSY_LOOK_S: Final = 0.5
# Some more elements than 32 bits count.
_MANY_ELEMENTS: Final = (1 << 31) + (1 << 26)
_HEAD_DIMS: Final = (64, 128, 192, 256)
_MASKS: Final[tuple[Literal["array", "causal"], ...]] = ("array", "causal")


def most_bytes() -> int:
    """The bytes that a probe may hold. Raises: ProbeError: they are too few to measure."""
    size = min(_MOST_BYTES, int(host_memory().available_bytes * _SHARE))
    if size < _LEAST_BYTES:
        raise ProbeError("too little memory is free for it")
    return size


def measure_process(within_s: float) -> tuple[Machine, ProcessFigures]:
    """Measure this machine, and a probe that holds nothing, then more and more, then less."""
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
    """This machine, with a probe's answers about MLX if there are any."""
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
    """The operating system and architecture, without the machine's name."""
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
    """Measure whether a probe's memory comes back after the probe ended by itself or was `killed`.
    The memory is wired if the system can do that.
    """
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
            raise ProbeError("it did not end when it was told to")
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
    """Measure one kernel after another, so that the failure of one leaves the earlier figures."""
    with Probe(within_s) as probe:
        probe.environment()
        for head_dim in _HEAD_DIMS:
            for mask in _MASKS:
                peak = probe.ask(MeasureAttention(head_dim, mask), AttentionPeak)
                yield AttentionFigures(head_dim, mask, peak)


def measure_join(within_s: float) -> JoinedArray:
    """Join arrays to one of more than 2^31 elements.

    Raises:
        ProbeError: they can't be joined, or too little memory is free.
    """
    free_bytes = host_memory().available_bytes
    with Probe(within_s) as probe:
        probe.environment()
        card_bytes = probe.ask(Import(), Imported).device.get("free_memory")
        if isinstance(card_bytes, int):
            free_bytes = card_bytes
        # The parts and the joined array, one byte an element, and as much for other programs.
        if free_bytes < 4 * _MANY_ELEMENTS:
            raise ProbeError("too little memory is free for an array of 2 GB")
        return probe.ask(JoinArrays(_MANY_ELEMENTS), JoinedArray)


def measure_rights() -> RightsFigures:
    """Read the footprints of this process, of a child, and of the system's first process."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        return RightsFigures(_reading(os.getpid()), _reading(child.pid), _reading(1))


def _reading(pid: int) -> int | str:
    try:
        return footprint(pid).host_bytes
    except FootprintError as error:
        # The text before the colon has the process id, which the report doesn't need.
        return str(error).partition(": ")[2] or str(error)
