"""Probes of memory and of MLX's arrays, made by a worker's code in processes of their own.

They hold a tenth of the memory at most, and no more than an eighth of what is available.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Final, Literal

from gateway.doctor.errands import Probe, ProbeError
from gateway.doctor.finding import Observation
from gateway.memory.fitting import PROCESS_BYTES
from gateway.system.child import Child
from gateway.system.memory import BackEnd, footprint, host_memory, wired_limit_mb
from gateway.system.memory_reading import FootprintError
from gateway.system.notation import format_size
from protocol.errands import (
    AttentionPeak,
    ComparedArray,
    Hold,
    Import,
    Imported,
    JoinArrays,
    MeasureAttention,
    Multiply,
    StepTimes,
    TimeSteps,
)
from protocol.life import MlxMemory

_MIB: Final = 1 << 20
_MOST_BYTES: Final = 1_000_000_000
_MAPPED_BYTES: Final = 256_000_000
_LEAST_BYTES: Final = 64_000_000
_SHARE: Final = 1 / 8
_TENTH: Final = 1 / 10
# The noise of other programs in a reading, as in gateway.workers.report.
_NOISE_BYTES: Final = 64_000_000
_NOISE_SHARE: Final = 0.05
# The pause before a footprint is read, after memory was taken.
_SETTLES_S: Final = 0.3
_WATCHED_S: Final = 10.0
_LOOK_S: Final = 0.1


def room_bytes(most_bytes: int) -> int:
    """The bytes that a probe may hold. Raises: ProbeError: they are too few to measure."""
    size = min(most_bytes, int(host_memory().available_bytes * _SHARE))
    if size < _LEAST_BYTES:
        raise ProbeError("too little memory is free for it")
    return size


def look_at_working_set(within_s: float) -> Iterator[Observation]:
    with _imported(within_s) as (_, imported):
        size = imported.device.get("max_recommended_working_set_size")
    if not isinstance(size, int):
        raise ProbeError(f"MLX recommends none on {imported.back_end}")
    total_bytes, limit_mb = host_memory().total_bytes, wired_limit_mb()
    share = size / total_bytes
    holds = abs(size / (limit_mb * _MIB) - 1) < 0.02 if limit_mb else 0.6 <= share <= 0.9
    yield Observation(f"{format_size(size)}, {share:.2f} of {format_size(total_bytes)}", holds)


def look_at_account(within_s: float) -> Iterator[Observation]:
    """Hold more and more, and compare the growth of the footprint with that of MLX's account."""
    most_bytes = room_bytes(_MOST_BYTES)
    with _imported(within_s) as (probe, imported):
        base = _footprint_bytes(probe.pid)
        assumed = PROCESS_BYTES[BackEnd(imported.back_end)]
        texts, holds = [], True
        for size in (most_bytes // 4, most_bytes // 2, most_bytes):
            held = probe.ask(Hold(size), MlxMemory)
            time.sleep(_SETTLES_S)
            account = held.active_bytes + held.cache_bytes
            beside = _footprint_bytes(probe.pid) - base - account
            holds = holds and abs(beside) <= max(_NOISE_BYTES, account * _NOISE_SHARE)
            texts.append(f"{format_size(beside)} beside {format_size(account)}")
    yield Observation(
        f"imports {format_size(base)} ({format_size(assumed)} assumed); {', '.join(texts)}", holds
    )


# Maps the file, waits; reads and wires it, waits.
_MAPPING: Final = """
import ctypes, mmap, os, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
input()
sum(mapped[::4096])
view = ctypes.c_char.from_buffer(mapped)
wire = ctypes.CDLL(None, use_errno=True).mlock
failed = wire(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(mapped)))
print(os.strerror(ctypes.get_errno()) if failed else "wired", flush=True)
input()
"""


def look_at_mapped_file(within_s: float) -> Iterator[Observation]:
    """Have a child map a file, and wire the pages, as a GPU does with a server's mapped weights."""
    size = room_bytes(_MAPPED_BYTES)
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(size // _MIB):
            file.write(bytes(_MIB))
        file.flush()
        with Child([sys.executable, "-c", _MAPPING, file.name], "mapping", stderr=None) as child:
            child.next_line(within_s)
            before, wired_before = _footprint_bytes(child.pid), host_memory().wired_bytes
            child.send(b"\n")
            wired = child.next_line(within_s).decode().strip()
            time.sleep(_SETTLES_S)
            rise = _footprint_bytes(child.pid) - before
            wired_after = host_memory().wired_bytes
    text = f"{format_size(size)} mapped and {wired}: footprint +{format_size(rise)}"
    if wired != "wired" or wired_before is None or wired_after is None:
        yield Observation(text)
        return
    more = wired_after - wired_before
    yield Observation(
        f"{text}, wired pages +{format_size(more)}", rise < size / 4 and more > size / 2
    )


def look_at_return(within_s: float) -> Iterator[Observation]:
    """Hold wired memory, end in each way, and watch the machine's memory come back."""
    size = room_bytes(int(host_memory().total_bytes * _TENTH))
    ends: dict[str, Callable[[Probe], object]] = {
        "an orderly end": Probe.end,
        "SIGTERM": lambda probe: probe.kill(signal.SIGTERM),
        "SIGKILL": Probe.kill,
    }
    for name, end in ends.items():
        yield _returned(name, size, end, within_s / len(ends))


def _returned(name: str, size: int, end: Callable[[Probe], object], within_s: float) -> Observation:
    with _imported(within_s) as (probe, _):
        before = _free()
        probe.ask(Hold(size, wire=True), MlxMemory)
        time.sleep(_SETTLES_S)
        meanwhile = _free()
        began = time.monotonic()
        end(probe)
        exit_s = time.monotonic() - began
    # The wired pages tell more, where these show what the probe held.
    which = next((index for index in (1, 0) if before[index] - meanwhile[index] > size / 2), None)
    slack = max(_NOISE_BYTES, size * _NOISE_SHARE)
    while True:
        after, passed_s = _free(), time.monotonic() - began
        if which is None or before[which] - after[which] <= slack or passed_s > _WATCHED_S:
            break
        time.sleep(_LOOK_S)
    moments = (before, meanwhile, after)
    wired = ", ".join(format_size(-moment[1]) for moment in moments)
    free = ", ".join(format_size(moment[0]) for moment in moments)
    text = f"{name}, of {format_size(size)}, took {exit_s:.1f} s; wired {wired}; available {free}"
    if which is None:
        return Observation(f"{text}; neither showed it")
    back = before[which] - after[which] <= slack
    return Observation(f"{text}; {'back' if back else 'not back'} after {passed_s:.1f} s", back)


def _free() -> tuple[int, int]:
    """The available memory, and the wired memory below 0: both fall by what is held."""
    host = host_memory()
    return host.available_bytes, -(host.wired_bytes or 0)


def look_at_limits(within_s: float) -> Iterator[Observation]:
    with Probe(within_s) as probe:
        probe.environment()
        times = probe.ask(TimeSteps(within_s / 4), StepTimes)
    base = times.without_limits_s
    ratios = {
        "above": times.limit_above_s / base,
        "below": times.limit_below_s / base,
        "32 MB of buffers": times.small_cache_s / base,
        "none": times.no_cache_s / base,
    }
    text = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    holds = max(ratios["above"], ratios["32 MB of buffers"]) <= 1.25
    yield Observation(f"times of {1000 * base:.1f} ms: {text}", holds)


_MASKS: Final[tuple[Literal["array", "causal"], ...]] = ("array", "causal")
# Head dimensions, and whether MLX has one kernel for them (scaled_dot_product_attention.cpp).
_ONE_KERNEL: Final = {64: True, 128: True, 192: False, 256: False}


def look_at_attention(within_s: float) -> Iterator[Observation]:
    """Compare the growth of the peak with that of the scores. Only scores that are written out
    against the assumption are a fault: the opposite makes estimates too high.
    """
    texts, holds = [], True
    with _imported(within_s) as (probe, imported):
        for head_dim, one_kernel in _ONE_KERNEL.items():
            for mask in _MASKS:
                peak = probe.ask(MeasureAttention(head_dim, mask), AttentionPeak)
                share = peak.grown_bytes / max(peak.scores_grown_bytes, 1)
                texts.append(f"{head_dim} {mask} {share:.2f}")
                holds = holds and not (one_kernel and share > 0.5)
    # On other back ends scores are known to be written out.
    judged = holds if imported.back_end == "metal" else None
    yield Observation(f"the peak grew by this share of the scores: {', '.join(texts)}", judged)


_ROWS: Final = 40_000
# Some more elements than 32 bits count.
_MANY_ELEMENTS: Final = (1 << 31) + (1 << 26)


def look_at_many_rows(within_s: float) -> Iterator[Observation]:
    with Probe(within_s) as probe:
        probe.environment()
        compared = probe.ask(Multiply(_ROWS), ComparedArray)
    yield Observation(
        f"{compared.wrong:,} of {compared.elements:,} elements are wrong", compared.wrong == 0
    )


def look_at_large_array(within_s: float) -> Iterator[Observation]:
    with _imported(within_s) as (probe, imported):
        if imported.back_end == "cpu":
            raise ProbeError("MLX computes on the processor, whose kernels are others")
        free_bytes = imported.device.get("free_memory", host_memory().available_bytes)
        # The parts and the joined array, one byte an element, and as much for other programs.
        if free_bytes < 4 * _MANY_ELEMENTS:
            raise ProbeError(f"{format_size(4 * _MANY_ELEMENTS)} of memory aren't free")
        compared = probe.ask(JoinArrays(_MANY_ELEMENTS), ComparedArray)
    # Either is as assumed. Without a wrong one workers could make such arrays.
    yield Observation(f"{compared.wrong:,} of {compared.elements:,} elements are wrong", True)


@contextlib.contextmanager
def _imported(within_s: float) -> Iterator[tuple[Probe, Imported]]:
    """A probe that has imported what a worker imports."""
    with Probe(within_s) as probe:
        probe.environment()
        yield probe, probe.ask(Import(), Imported)


def _footprint_bytes(pid: int) -> int:
    try:
        return footprint(pid).current_bytes
    except FootprintError as error:
        raise ProbeError(f"no footprint: {error}") from error
