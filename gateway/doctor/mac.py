"""`doctor --mac`: what Bulkhead assumes of macOS beside what this machine shows, as one page.

Each probe has a deadline. If a probe fails, or its machine isn't there, its row says why.
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from gateway import VERSION
from gateway.doctor import mac_memory as memory
from gateway.doctor import mac_processes as processes
from gateway.doctor.errands import Probe, ProbeError
from gateway.doctor.finding import Observation
from gateway.system.memory import host_memory, wired_limit_mb
from gateway.system.memory_reading import HostError
from gateway.system.notation import format_size
from protocol.errands import Import, Imported


class MacProbe(NamedTuple):
    """An assumption of macOS, the code that relies on it, and what looks whether it holds. `look`
    gets the seconds that it may take.
    """

    name: str
    assumed: str
    relied_on_by: str
    look: Callable[[float], Iterable[Observation]]
    longest_s: float = 40.0


class Row(Struct, frozen=True):
    """A row of the page. The assumption holds or not; None: it could not be judged here."""

    probe: str
    assumed: str
    seen: str
    holds: bool | None
    relied_on_by: str


PROBES: Final = (
    MacProbe(
        "working set",
        "MLX recommends 60 to 90 % of the memory, or what iogpu.wired_limit_mb says",
        "gateway/system/memory.py, worker/system/memory.py",
        memory.look_at_working_set,
    ),
    MacProbe(
        "footprint",
        "a worker's footprint, less that of its imports, is MLX's account within 5 %",
        "gateway/memory/ledger.py, gateway/models/model_memory.py",
        memory.look_at_account,
    ),
    MacProbe(
        "mapped file",
        "a file's mapped pages are in no footprint, wired or not, but in the wired pages",
        "gateway/memory/commands.py, gateway/memory/leak_check.py",
        memory.look_at_mapped_file,
    ),
    MacProbe(
        "return",
        "a tenth of the memory, wired, is back 10 s after an end of any kind",
        "gateway/workers/shutdown_steps.py, gateway/memory/leak_check.py",
        memory.look_at_return,
        60.0,
    ),
    MacProbe(
        "limits",
        "a limit above what is active costs nothing, and 32 MB of buffers are enough for a step",
        "gateway/memory/loans.py, worker/engines/room.py",
        memory.look_at_limits,
    ),
    MacProbe(
        "attention",
        "scores are computed in one kernel for heads of 64 and 128, else written out",
        "gateway/memory/working_space.py",
        memory.look_at_attention,
    ),
    MacProbe(
        "imports",
        "the imports of a spare take seconds, and several times as long in the background",
        "gateway/workers/spares.py, gateway/workers/starter.py",
        processes.look_at_imports,
        60.0,
    ),
    MacProbe(
        "two workers",
        "two processes share the device evenly, as long as neither is nicer",
        "gateway/workers/process.py",
        processes.look_at_two_workers,
    ),
    MacProbe(
        "speed",
        "this shell is as fast as a service: `bulkhead doctor --throughput` compares them",
        "gateway/doctor/throughput.py, gateway/service/*.plist",
        processes.look_at_speed,
        80.0,
    ),
    MacProbe(
        "greedy text",
        "it is the same alone and in a batch of 8, where kernels don't depend on the batch",
        "gateway/models/recovery.py, worker/engines/batched_engine.py",
        processes.look_at_greedy_text,
    ),
    MacProbe(
        "many rows",
        "a product of 40,000 rows in float16 is that in float32",
        "worker/engines/room.py, worker/mlx_lm/rows.py",
        memory.look_at_many_rows,
    ),
    MacProbe(
        "large array",
        "MLX may be wrong beyond 2^31 elements, so workers make no such array",
        "worker/system/memory.py",
        memory.look_at_large_array,
    ),
    MacProbe(
        "launchctl",
        "`print` ends with 0 for a domain that is there; without a login gui gives 112 or 125",
        "gateway/service/launchd.py",
        processes.look_at_launchctl,
    ),
    MacProbe(
        "environment",
        "that of one's own processes can be read, but not that of Apple's programs",
        "gateway/service/definition.py, gateway/workers/orphans.py",
        processes.look_at_environment,
    ),
)


def rows(probes: Iterable[MacProbe], within_s: float) -> Iterator[Row]:
    """Run the probes one after another, and yield the rows of each. Together they take `within_s`
    at most, and a second or two.
    """
    deadline = time.monotonic() + within_s
    for probe in probes:
        yield from _rows_of(probe, deadline - time.monotonic())


def _rows_of(probe: MacProbe, left_s: float) -> Iterator[Row]:
    def row(seen: Observation) -> Row:
        text = anonymous(seen.text, platform.node(), str(Path.home()))
        return Row(probe.name, probe.assumed, text, seen.holds, probe.relied_on_by)

    try:
        if left_s <= 0:
            raise ProbeError("the probes before it took all of the time")
        for seen in probe.look(min(probe.longest_s, left_s)):
            yield row(seen)
    except ProbeError as error:
        yield row(Observation(f"not here: {' '.join(str(error).split())}"))
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        yield row(Observation(f"failed: {why}"))


def head() -> Iterator[str]:
    """The lines of the page before the rows."""
    host = host_memory()
    release = platform.mac_ver()[0]
    system = f"macOS {release}" if release else f"{platform.system()} {platform.release()}"
    yield f"### Bulkhead {VERSION} on {system}, {platform.machine()}\n"
    yield from _versions()
    yield (
        f"{format_size(host.total_bytes)} of memory, {format_size(host.available_bytes)} "
        f"available, pressure {host.pressure or 'unknown'}, iogpu.wired_limit_mb {_limit()}.\n"
    )
    yield "| probe | | assumed | seen | relied on by |"
    yield "| --- | --- | --- | --- | --- |"


def _versions() -> Iterator[str]:
    try:
        with Probe(40.0) as probe:
            versions = probe.environment()
            imported = probe.ask(Import(), Imported)
    except ProbeError as error:
        yield f"MLX could not be asked: {error}.\n"
        return
    device = ", ".join(f"{key} {value}" for key, value in sorted(imported.device.items()))
    yield (
        f"Python {versions.python_version}, mlx {versions.mlx_version}, mlx-lm "
        f"{versions.mlx_lm_version}; {imported.back_end}: {device}.\n"
    )


def _limit() -> str:
    try:
        limit = wired_limit_mb()
    except HostError:
        return "unknown"
    return "not there" if limit is None else str(limit)


_RESULTS: Final = {True: "holds", False: "**differs**", None: ""}


def line(row: Row) -> str:
    """The row as a line of Markdown."""
    cells = (row.probe, _RESULTS[row.holds], row.assumed, row.seen, row.relied_on_by)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


# A path in quotes may have spaces.
_QUOTED: Final = re.compile(r"(['\"])~?/[^'\"\n]*\1")
_PATH: Final = re.compile(r"(?<![\w.])~?/[^\s'\",;()]*[^\s'\",;().]")


def anonymous(text: str, host_name: str, home: str) -> str:
    """The text without paths, which contain names of users, and without the machine's name."""
    if len(home) > 1:
        text = text.replace(home, "/home")
    text = _PATH.sub("(path)", _QUOTED.sub("(path)", text))
    for name in (host_name, host_name.partition(".")[0]):
        if name:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "(host)", text)
    return text
