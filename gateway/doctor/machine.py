"""Checks of the machine and its software: the device, memory, clock, Python and its packages."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import psutil
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from gateway.config.settings import Settings
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.doctor.installation import Installation
from gateway.memory.fitting import budget_of, unknown_device
from gateway.memory.leak_check import read_stranded
from gateway.system.memory import (
    DeviceMemory,
    HostMemory,
    device_memory,
    host_memory,
    wired_limit_mb,
)
from gateway.system.memory_reading import HostError
from gateway.system.notation import format_size
from gateway.system.process_limits import LEAST_FILES, attainable_files, needed_files
from protocol.extras import command_to_add

_MIB: Final = 1 << 20
# The least memory for macOS and other programs; with less, machines have panicked (mlx#3186).
_LEFT_TO_SYSTEM_BYTES: Final = 4_000_000_000
# On macOS, where the swap grows, a use of this share of the memory counts as a full swap.
_SWAP_SHARE: Final = 0.25
# Elsewhere a use of this share of the swap counts as a full swap.
_FULL_SHARE: Final = 0.9
# Less available memory than this share of the memory counts as little.
_LITTLE_SHARE: Final = 0.1
_RAISE_LIMIT: Final = "Raise the hard limit"
_WHERE: Final = (
    "where the gateway is started: `ulimit -Hn` shows it; limits.conf(5) or launchctl(1) change it."
)


def look_at_device(installation: Installation) -> Iterator[Finding]:
    try:
        info = installation.device()
    except (OSError, ValueError, subprocess.SubprocessError) as failure:
        yield error(
            "device",
            f"MLX doesn't answer: {_last_line(failure)}.",
            "Install Bulkhead again, as docs/install.md says."
            if platform.system() == "Darwin"
            else f"Install a back end of MLX: {command_to_add('cpu')}; for an NVIDIA GPU with "
            "cuda13 instead of cpu.",
        )
        return
    yield judge_device(info)


def _last_line(failure: Exception) -> str:
    stderr = getattr(failure, "stderr", None)
    text = stderr.decode("utf-8", "replace") if isinstance(stderr, bytes) else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else str(failure)).rstrip(".")


def judge_device(info: dict[str, Any]) -> Finding:
    memory = device_memory(info)
    name = f"{info.get('device_name', 'a device without a name')}"
    if memory is None:
        return ok("device", f"{name}; MLX computes in the machine's memory.")
    if memory.is_card:
        return ok("device", f"{name}; it has {format_size(memory.most_bytes)} of its own.")
    return ok("device", f"{name}; the recommended working set is {format_size(memory.most_bytes)}.")


def look_at_wired_limit(_installation: Installation) -> Iterator[Finding]:
    try:
        limit_mb = wired_limit_mb()
    except HostError as failure:
        yield warning(
            "wired limit",
            f"It can't be read ({failure}).",
            "MLX needs the GPU of an Apple silicon Mac: look at the output of `sysctl iogpu`.",
        )
        return
    yield judge_wired_limit(limit_mb, host_memory().total_bytes)


def judge_wired_limit(limit_mb: int | None, total_bytes: int) -> Finding:
    """`limit_mb` is iogpu.wired_limit_mb; None if the system has no such setting."""
    if limit_mb is None:
        return ok("wired limit", "This system has no iogpu.wired_limit_mb.")
    if limit_mb == 0:
        return ok("wired limit", "iogpu.wired_limit_mb is 0: the system's own choice.")
    left_bytes = total_bytes - limit_mb * _MIB
    if left_bytes < _LEFT_TO_SYSTEM_BYTES:
        return warning(
            "wired limit",
            f"iogpu.wired_limit_mb is {limit_mb}, which leaves {format_size(max(0, left_bytes))} "
            "to all other programs: the system may panic.",
            f"`sudo sysctl iogpu.wired_limit_mb=0`, or leave {format_size(_LEFT_TO_SYSTEM_BYTES)} "
            "at least.",
        )
    return ok("wired limit", f"iogpu.wired_limit_mb is {limit_mb}.")


def budget_bytes(installation: Installation) -> int:
    """The budget of a gateway with the settings of the installation."""
    memory = installation.settings.memory
    return budget_of(memory, host_memory().total_bytes, _device_memory(installation))


def _device_memory(installation: Installation) -> DeviceMemory | None:
    try:
        return device_memory(installation.device())
    except (OSError, ValueError, subprocess.SubprocessError):
        return unknown_device(host_memory().total_bytes)


def look_at_memory(installation: Installation) -> Iterator[Finding]:
    stranded_bytes = read_stranded(installation.state_dir.stranded_path).bytes
    device = _device_memory(installation)
    yield from judge_memory(host_memory(), budget_bytes(installation), stranded_bytes, device)


def judge_memory(
    host: HostMemory, budget_bytes: int, stranded_bytes: int, device: DeviceMemory | None = None
) -> Iterator[Finding]:
    """Judge pressure, budget and stranded memory, in bytes."""
    most_bytes = host.total_bytes
    holder = "machine"
    if device is not None and device.is_card:
        most_bytes, holder = device.most_bytes, "card"
    evidence = (
        f"{format_size(host.total_bytes)}, {format_size(host.available_bytes)} available, pressure "
        f"{host.pressure or 'unknown'}; the workers' budget is {format_size(budget_bytes)}."
    )
    sound = True
    if host.pressure in ("warn", "critical"):
        sound = False
        judge = error if host.pressure == "critical" else warning
        yield judge(
            "memory",
            evidence,
            "End other programs, or lower memory.budget: under pressure models are unloaded.",
        )
    if budget_bytes > most_bytes or budget_bytes == 0:
        sound = False
        yield error(
            "memory",
            f"The workers' budget is {format_size(budget_bytes)}, and the {holder} has "
            f"{format_size(most_bytes)}.",
            f'Set memory.budget to "auto", or to the memory that the {holder} can spare.',
        )
    if stranded_bytes:
        sound = False
        yield warning(
            "memory",
            f"{format_size(stranded_bytes)} are wired and belong to no process: a worker that "
            "ended has stranded them.",
            "Only a restart of the machine frees them (`purge` doesn't). Until then each end of a "
            "worker may strand more: pin the models that matter, so that they aren't unloaded.",
        )
    if sound:
        yield ok("memory", evidence)


def look_at_swap(_installation: Installation) -> Iterator[Finding]:
    swap = psutil.swap_memory()
    yield judge_swap(swap.used, swap.total, host_memory(), grows=sys.platform == "darwin")


def judge_swap(used_bytes: int, total_bytes: int, host: HostMemory, *, grows: bool) -> Finding:
    """`grows` is True on macOS, which enlarges the swap until the disk is full. A full swap is a
    fault only if little memory is available, too.
    """
    evidence = f"{format_size(used_bytes)} of {format_size(total_bytes)} are used"
    most_bytes = host.total_bytes * _SWAP_SHARE if grows else total_bytes * _FULL_SHARE
    full = used_bytes >= most_bytes and used_bytes > 0
    if full and host.available_bytes < host.total_bytes * _LITTLE_SHARE:
        return warning(
            "swap",
            f"{evidence}, and {format_size(host.available_bytes)} of memory are available: the "
            "machine is about to run out of both.",
            "End other programs, or lower memory.budget; swapped models answer slowly.",
        )
    return ok("swap", f"{evidence}.")


def look_at_open_files(installation: Installation) -> Iterator[Finding]:
    yield judge_open_files(attainable_files(), installation.settings)


def judge_open_files(attainable: int, settings: Settings) -> Finding:
    """Judge whether the limit of open files, `attainable`, is enough for the gateway, its workers
    and the clients of one full queue.
    """
    workers = len(settings.models) + settings.workers.spare
    if attainable < LEAST_FILES:
        return error(
            "open files",
            f"The hard limit of open files is {attainable}, and mlx-lm's import sets the limit to "
            f"{LEAST_FILES:,}: no worker can start.",
            f"{_RAISE_LIMIT} to {LEAST_FILES} at least {_WHERE}",
        )
    least = needed_files(workers)
    wanted = least + settings.queue.depth
    remedy = f"{_RAISE_LIMIT} to {wanted} at least {_WHERE}"
    evidence = f"A gateway started from here may open {attainable} files"
    if attainable < least:
        return error("open files", f"{evidence}, and needs {least} for its workers.", remedy)
    if attainable < wanted:
        return warning("open files", f"{evidence}; a full queue needs {wanted}.", remedy)
    return ok("open files", f"{evidence}.")


_CLOCK: Final = "clock"
_TOLERATED_S: Final = 3600.0


def look_at_clock(installation: Installation) -> Iterator[Finding]:
    state_dir = installation.state_dir
    newest: tuple[float, Path] | None = None
    for folder in (state_dir.path, state_dir.logs):
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                with contextlib.suppress(OSError):
                    dated_path = path.stat().st_mtime, path
                    newest = dated_path if newest is None else max(newest, dated_path)
    yield judge_clock(time.time(), newest)


def judge_clock(now: float, newest: tuple[float, Path] | None) -> Finding:
    """Judge the clock. `newest` is the file that changed last; both times are Unix times."""
    present = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M} UTC"
    if newest is None or newest[0] <= now + _TOLERATED_S:
        return ok(_CLOCK, f"It is {present}.")
    written = f"{datetime.fromtimestamp(newest[0], UTC):%Y-%m-%d %H:%M} UTC"
    return warning(
        _CLOCK,
        f"It is {present}, and {newest[1]} was written on {written}: the clock is wrong, or was.",
        "Set it (on a Mac: System Settings, General, Date & Time; `sudo sntp -sS time.apple.com`). "
        "Keys and certificates expire by it, and with a wrong clock the hub's TLS fails.",
    )


_DISTRIBUTION: Final = "mlx-bulkhead"
_INSTALL: Final = "Install Bulkhead again in this environment, as docs/install.md says."
_MENTIONED: Final = ("mlx", "mlx-lm", "transformers", "pyzmq")
# Back ends of MLX, which overwrite each other's files.
_BACK_ENDS: Final = ("mlx-cpu", "mlx-cuda", "mlx-cuda-12", "mlx-cuda-13")


def look_at_python(_installation: Installation) -> Iterator[Finding]:
    try:
        requirements = metadata.metadata(_DISTRIBUTION).get_all("Requires-Python")
        wanted = requirements[0] if requirements else None
    except metadata.PackageNotFoundError:
        wanted = None
    yield judge_python(platform.python_version(), wanted, sys.platform, platform.machine())


def judge_python(version: str, wanted: str | None, system: str, machine: str) -> Finding:
    """`wanted` is the version specifier in Bulkhead's metadata, if there is one. `system` is as in
    sys.platform, `machine` as in platform.machine().
    """
    if system == "darwin" and machine != "arm64":
        return error(
            "python",
            f"Python {version} at {sys.executable} is built for {machine}, and MLX needs arm64.",
            "Install an arm64 Python, and Bulkhead in it.",
        )
    if not SpecifierSet(wanted or "").contains(version, prereleases=True):
        return error(
            "python",
            f"Python {version} runs this, and Bulkhead needs {wanted}.",
            "Install Bulkhead again with another Python, as docs/install.md says.",
        )
    return ok("python", f"{version} on {machine}, {sys.executable}")


def look_at_packages(_installation: Installation) -> Iterator[Finding]:
    # A package with damaged metadata has no name, and is left out.
    installed: dict[str, str] = {
        canonicalize_name(distribution.metadata["Name"]): distribution.version
        for distribution in metadata.distributions()
        if "Name" in distribution.metadata
    }
    try:
        requirements = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        requirements = None
    yield from judge_packages(requirements, installed)


def judge_packages(
    requirements: Sequence[str] | None, installed: Mapping[str, str]
) -> Iterator[Finding]:
    """`requirements` are those of Bulkhead; None if Bulkhead itself isn't installed. `installed`
    maps canonical names of packages to versions.
    """
    if requirements is None:
        yield error("packages", f"{_DISTRIBUTION} is not installed in this environment.", _INSTALL)
        return
    wrong = list(_unmet(requirements, installed))
    for evidence in wrong:
        yield error("packages", evidence, _INSTALL)
    back_ends = [back_end for back_end in _BACK_ENDS if back_end in installed]
    if len(back_ends) > 1:
        yield error(
            "packages",
            f"{' and '.join(back_ends)} are both installed, and overwrite each other's files.",
            "Make a new environment with one of them, as docs/install.md says.",
        )
    elif not wrong:
        versions = (f"{name} {installed[name]}" for name in _MENTIONED if name in installed)
        yield ok("packages", f"bulkhead {installed.get(_DISTRIBUTION)}, {', '.join(versions)}")


def _unmet(requirements: Sequence[str], installed: Mapping[str, str]) -> Iterator[str]:
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed.get(canonicalize_name(requirement.name))
        if version is None:
            yield f"{requirement.name} is missing."
        elif not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} is {version}, and Bulkhead needs {requirement.specifier}."
