"""Figures of the machine, from the real system, and macOS's against a compiled stub."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from gateway.system import memory_linux as host_linux
from gateway.system.memory import host_memory
from gateway.system.memory_darwin import Sysctl
from gateway.system.memory_reading import HostError
from tests.support.platforms import linux_only
from tests.support.stub import compile_stub

_STUB = """
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* As <sys/sysctl.h> declares it. */
int sysctlbyname(const char *name, void *old, size_t *size, void *new, size_t new_size) {
    const char *level = getenv("LEVEL");
    if (!strcmp(name, "iogpu.wired_limit_mb") && getenv("LIMIT") && *size >= sizeof(int) && !new) {
        *(int *) old = atoi(getenv("LIMIT"));
        *size = sizeof(int);
        return 0;
    }
    if (strcmp(name, "kern.memorystatus_vm_pressure_level") || *size != sizeof(int) || new) {
        errno = ENOENT;
        return -1;
    }
    if (!level) { errno = EPERM; return -1; }
    *(int *) old = atoi(level);
    return 0;
}
"""


@pytest.fixture(scope="module")
def sysctl(tmp_path_factory: pytest.TempPathFactory) -> Sysctl:
    return Sysctl(compile_stub(tmp_path_factory.mktemp("stub"), _STUB))


def test_this_machine() -> None:
    memory = host_memory()
    assert memory.total_bytes == psutil.virtual_memory().total
    assert 0 < memory.available_bytes <= memory.total_bytes
    assert memory.pressure in ("normal", "warn", "critical", None)


@linux_only("reads /proc")
def test_wired_pages_are_some_but_not_all() -> None:
    assert 1_000_000 < host_linux.wired_bytes() < psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("some", "full", "level"),
    [("0.00", "0.00", "normal"), ("12.30", "1.00", "warn"), ("60.00", "25.10", "critical")],
)
def test_pressure_by_stalls(some: str, full: str, level: str, tmp_path: Path) -> None:
    stalls = tmp_path / "memory"
    rest = "avg60=0.00 avg300=0.00 total=1"
    stalls.write_text(f"some avg10={some} {rest}\nfull avg10={full} {rest}\n")
    assert host_linux.pressure(stalls) == level


def test_unreadable_host_figure_is_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for read in (host_linux.pressure, host_linux.wired_bytes):
        with pytest.raises(HostError):
            read(empty)
        with pytest.raises(HostError):
            read(tmp_path / "missing")


def test_free_pages_of_each_cpu(tmp_path: Path) -> None:
    zones = tmp_path / "zoneinfo"
    zones.write_text("  pagesets\n    cpu: 0\n              count:    3\n    cpu: 1\n  count: 4\n")
    assert host_linux.unlisted_free_bytes(zones) == 7 * os.sysconf("SC_PAGESIZE")


@pytest.mark.processes
@pytest.mark.parametrize(("number", "level"), [("1", "normal"), ("2", "warn"), ("4", "critical")])
def test_macos_levels(
    number: str, level: str, sysctl: Sysctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVEL", number)
    assert sysctl.pressure() == level


@pytest.mark.processes
def test_macos_errors(sysctl: Sysctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVEL", raising=False)
    with pytest.raises(HostError, match="not permitted"):
        sysctl.pressure()
    monkeypatch.setenv("LEVEL", "3")
    with pytest.raises(HostError, match="is 3"):
        sysctl.pressure()


@pytest.mark.processes
def test_the_limit_of_wired_memory(sysctl: Sysctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMIT", "49152")
    assert sysctl.wired_limit_mb() == 49152
    monkeypatch.delenv("LIMIT")
    with pytest.raises(HostError, match=r"iogpu\.wired_limit_mb: No such file"):
        sysctl.wired_limit_mb()
