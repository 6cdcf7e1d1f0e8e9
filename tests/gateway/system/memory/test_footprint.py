"""What processes hold, read from the real system, and macOS's reading against a compiled stub."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.system.memory import FootprintGauge, footprint
from gateway.system.memory_darwin import LibProc, RusageInfoV4
from gateway.system.memory_reading import Footprint, FootprintError
from gateway.system.memory_tree import TreeGauge
from protocol.process_tree import CommandProcesses
from tests.support.gateway import eventually, gone
from tests.support.platforms import linux_only
from tests.support.stub import compile_stub

pytestmark = pytest.mark.processes

_HOLD = """
import mmap, sys
{code}
print("held", flush=True)
sys.stdin.read()
"""

_STUB = """
#include <errno.h>
#include <stdint.h>
#include <string.h>

/* As <sys/resource.h> of xnu declares it. */
struct rusage_info_v4 {
    uint8_t  ri_uuid[16];
    uint64_t ri_user_time, ri_system_time, ri_pkg_idle_wkups, ri_interrupt_wkups, ri_pageins;
    uint64_t ri_wired_size, ri_resident_size, ri_phys_footprint;
    uint64_t ri_proc_start_abstime, ri_proc_exit_abstime;
    uint64_t ri_child_user_time, ri_child_system_time, ri_child_pkg_idle_wkups;
    uint64_t ri_child_interrupt_wkups, ri_child_pageins, ri_child_elapsed_abstime;
    uint64_t ri_diskio_bytesread, ri_diskio_byteswritten;
    uint64_t ri_cpu_time_qos_default, ri_cpu_time_qos_maintenance, ri_cpu_time_qos_background;
    uint64_t ri_cpu_time_qos_utility, ri_cpu_time_qos_legacy, ri_cpu_time_qos_user_initiated;
    uint64_t ri_cpu_time_qos_user_interactive;
    uint64_t ri_billed_system_time, ri_serviced_system_time, ri_logical_writes;
    uint64_t ri_lifetime_max_phys_footprint;
    uint64_t ri_instructions, ri_cycles, ri_billed_energy, ri_serviced_energy;
    uint64_t ri_interval_max_phys_footprint, ri_runnable_time;
};

_Static_assert(sizeof(struct rusage_info_v4) == 296, "size");

int proc_pid_rusage(int pid, int flavor, void *buffer) {
    struct rusage_info_v4 *info = buffer;
    if (flavor != 4) { errno = EINVAL; return -1; }
    if (pid == 404) { errno = ESRCH; return -1; }
    if (pid == 403) { errno = EPERM; return -1; }
    memset(info, 0, sizeof *info);
    info->ri_proc_start_abstime = 1000 + pid;
    info->ri_resident_size = 193000000;
    info->ri_phys_footprint = 30000000000;
    info->ri_lifetime_max_phys_footprint = 31000000000;
    if (pid == 500) { info->ri_phys_footprint = 0; info->ri_proc_exit_abstime = 12345; }
    return 0;
}
"""


def _held_by(code: str) -> int:
    """The footprint in bytes of a process that runs `code` and waits."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD.format(code=code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return footprint(process.pid).current_bytes


@pytest.fixture(scope="module")
def libproc(tmp_path_factory: pytest.TempPathFactory) -> LibProc:
    return LibProc(compile_stub(tmp_path_factory.mktemp("libproc"), _STUB))


class TestThisSystem:
    def test_anonymous_memory_counts(self) -> None:
        size = 200 << 20
        grown = _held_by(f"held = b'x' * {size}") - _held_by("")
        assert abs(grown - size) < 0.05 * size

    def test_freed_memory_stays_in_peak(self) -> None:
        size = 200 << 20
        code = f"held = b'x' * {size}; del held"
        with subprocess.Popen(
            [sys.executable, "-c", _HOLD.format(code=code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            held = footprint(process.pid)
        assert held.peak_bytes is not None
        assert abs(held.peak_bytes - held.current_bytes - size) < 0.05 * size

    @linux_only("maps a file into /proc's account")
    def test_clean_file_pages_do_not_count(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(bytes(100 << 20))
        code = (
            f"file = open({str(path)!r}, 'rb')\n"
            "held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
            "sum(held[::4096])"
        )
        assert _held_by(code) - _held_by("") < 10 << 20

    def test_a_process_that_is_not_there(self) -> None:
        with pytest.raises(FootprintError):
            footprint(2**22 + 1)

    def test_a_zombie_is_an_error_and_not_0(self) -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        try:
            eventually(lambda: gone(pid))
            with pytest.raises(FootprintError):
                footprint(pid)
        finally:
            os.waitpid(pid, 0)


class TestMacOS:
    def test_layout(self) -> None:
        assert ctypes.sizeof(RusageInfoV4) == 296
        offsets = {
            "ri_wired_size": 56,
            "ri_resident_size": 64,
            "ri_phys_footprint": 72,
            "ri_proc_start_abstime": 80,
            "ri_proc_exit_abstime": 88,
            "ri_lifetime_max_phys_footprint": 240,
            "ri_interval_max_phys_footprint": 280,
            "ri_runnable_time": 288,
        }
        assert {name: getattr(RusageInfoV4, name).offset for name in offsets} == offsets

    def test_reading(self, libproc: LibProc) -> None:
        assert libproc.footprint(1) == Footprint(30_000_000_000, 31_000_000_000)

    @pytest.mark.parametrize(
        ("pid", "reason"), [(404, "No such process"), (403, "not permitted"), (500, "exiting")]
    )
    def test_errors(self, libproc: LibProc, pid: int, reason: str) -> None:
        with pytest.raises(FootprintError, match=reason):
            libproc.footprint(pid)

    def test_the_start_is_told_in_ticks_that_no_clock_moves(self, libproc: LibProc) -> None:
        assert libproc.started(1) == 1001
        assert libproc.started(500) == 1500, "one that exits is still the same"
        for pid in (403, 404):
            with pytest.raises(FootprintError):
                libproc.started(pid)


@linux_only("maps a file into /proc's account")
def test_mapped_files_of_command_count_once_it_is_ready(tmp_path: Path) -> None:
    weights = tmp_path / "folder" / "weights"
    weights.parent.mkdir()
    weights.symlink_to(tmp_path / "blob")
    weights.write_bytes(bytes(64 << 20))
    (tmp_path / "other").write_bytes(bytes(64 << 20))
    code = f"""
import mmap, os, sys
held = []
for path in ({str(weights)!r}, {str(tmp_path / "other")!r}):
    with open(path, "rb") as file:
        held.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
child = os.fork()
read = [sum(each[::4096]) for each in held]
if not child:
    print("held", flush=True)
sys.stdin.read()
"""
    guard = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    ready = False
    with subprocess.Popen(
        [sys.executable, "-c", guard, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        gauge = TreeGauge(
            process.pid,
            CommandProcesses(process.pid, "none"),
            (str(weights.parent),),
            lambda: ready,
        )
        before_bytes = gauge.read().current_bytes
        ready = True
        eventually(lambda: abs(gauge.read().current_bytes - before_bytes - (64 << 20)) < 10 << 20)


def test_a_gauge_sees_what_a_process_takes_and_gives_back() -> None:
    code = "for line in sys.stdin: held = bytearray(int(line)); print(len(held), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys\n{code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        gauge = FootprintGauge(process.pid)
        for size_bytes in (0, 64 << 20, 0):
            process.stdin.write(b"%d\n" % size_bytes)
            process.stdin.flush()
            process.stdout.readline()
            now = footprint(process.pid)
            assert abs(gauge.read().current_bytes - now.current_bytes) <= 2 << 20
            assert gauge.read().host_peak_bytes >= now.host_peak_bytes - (2 << 20)
        process.stdin.close()
    with pytest.raises(FootprintError):
        gauge.read()
