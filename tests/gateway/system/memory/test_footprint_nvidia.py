"""NVIDIA memory of processes, against a compiled stub of the driver's library."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

pynvml = pytest.importorskip("pynvml", reason="installed on Linux alone")

from gateway.system import memory as card  # noqa: E402
from gateway.system import memory_linux as footprint_linux  # noqa: E402
from gateway.system import memory_nvidia as footprint_nvidia  # noqa: E402
from gateway.system.memory_nvidia import card_bytes, card_memory  # noqa: E402
from gateway.system.memory_reading import CardMemory, Footprint, FootprintError  # noqa: E402
from tests.support.stub import compile_stub  # noqa: E402

# Two devices. Pid 100 is on one of them, 200 on both, in two instances of the second; of 300
# nothing is known; 1002 and following fill the second one up.
_STUB = """
#include <stddef.h>

/* As nvml.h declares them. */
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId;
    unsigned int computeInstanceId;
} nvmlProcessInfo_t;
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "size");

int init_status = 0, devices_status = 0, processes_status = 0, crowd = 0, pid = 0;

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { return init_status; }

const char *nvmlErrorString(nvmlReturn_t status) {
    switch (status) {
        case 9: return "Driver Not Loaded";
        case 15: return "GPU is lost";
        case 18: return "Driver/library version mismatch";
        default: return "Unknown Error";
    }
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return devices_status; }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    if (index > 1) return 2;
    *device = (nvmlDevice_t)(size_t)(0x7f0000000000 + index);
    return 0;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    int is_second = device == (nvmlDevice_t)(size_t)0x7f0000000001;
    memory->total = is_second ? 24000000000 : 80000000000;
    memory->free = is_second ? 20000000000 : 30000000000;
    memory->used = memory->total - memory->free;
    return 0;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(
    nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
    const nvmlProcessInfo_t first[] = {
        {100, 1000000000, ~0u, ~0u}, {200, 30000000000, ~0u, ~0u}, {300, ~0ull, ~0u, ~0u},
        {pid, 2000000000000, ~0u, ~0u}};
    static const nvmlProcessInfo_t second[] = {{200, 5, 1, 0}, {200, 7, 2, 0}};
    int is_second = device == (nvmlDevice_t)(size_t)0x7f0000000001;
    unsigned int known = is_second ? 2 : 4, needed = known + (is_second ? crowd : 0);
    if (processes_status) return processes_status;
    if (*count < needed) { *count = needed; return 7; }
    for (unsigned int i = 0; i < needed; i++) {
        nvmlProcessInfo_t other = {1000 + i, 1, ~0u, ~0u};
        infos[i] = i >= known ? other : is_second ? second[i] : first[i];
    }
    *count = needed;
    return 0;
}
"""


class Stub:
    """The library, and what it is to answer."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)

    def answer(self, **values: int) -> None:
        for name in ("init_status", "devices_status", "processes_status", "crowd", "pid"):
            ctypes.c_int.in_dll(self.library, name).value = values.get(name, 0)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Stub:
    return Stub(compile_stub(tmp_path_factory.mktemp("nvml"), _STUB))


def _no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def _load_library(monkeypatch: pytest.MonkeyPatch, library: ctypes.CDLL | None) -> None:
    """As the driver's library; None: there is none yet."""
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    footprint_nvidia._start.cache_clear()


@pytest.fixture
def stub(compiled: Stub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    compiled.answer()
    _load_library(monkeypatch, compiled.library)
    yield compiled
    footprint_nvidia._start.cache_clear()


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize(("pid", "bytes_"), [(100, 10**9), (200, 30 * 10**9 + 12), (999, 0)])
def test_all_devices_count(pid: int, bytes_: int) -> None:
    assert card_bytes(pid) == bytes_


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize(
    ("pids", "memory"),
    [
        ((100,), CardMemory(80 * 10**9, 30 * 10**9)),
        ((999, 200), CardMemory(104 * 10**9, 50 * 10**9)),
        ((999,), None),
        ((), None),
    ],
)
def test_cards_that_workers_are_on(pids: tuple[int, ...], memory: CardMemory | None) -> None:
    assert card_memory(pids) == memory


def test_the_budget_counts_the_card_of_who_is_on_one() -> None:
    on_card = Footprint(host_bytes=900, host_peak_bytes=1000, card_bytes=39_000)
    assert (on_card.current_bytes, on_card.peak_bytes) == (39_000, None)
    beside = Footprint(host_bytes=900, host_peak_bytes=1000)
    assert (beside.current_bytes, beside.peak_bytes) == (900, 1000)


def test_more_processes_than_there_was_room_for(stub: Stub) -> None:
    stub.answer(crowd=100)
    assert card_bytes(200) == 30 * 10**9 + 12
    assert card_bytes(1000 + 101) == 1


@pytest.mark.usefixtures("stub")
def test_memory_that_the_driver_does_not_know_is_an_error() -> None:
    with pytest.raises(FootprintError, match="no memory per process"):
        card_bytes(300)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"init_status": 18}, "NVML: RM has detected"),
        ({"devices_status": 999}, "NVML: Unknown Error"),
        ({"processes_status": 15}, "NVML: GPU is lost"),
    ],
)
def test_failed_calls_are_errors_and_not_0(stub: Stub, values: dict[str, int], reason: str) -> None:
    stub.answer(**values)
    for ask in (lambda: card_bytes(100), lambda: card_memory([100])):
        with pytest.raises(FootprintError, match=reason):
            ask()
    stub.answer()
    assert card_bytes(100) == 10**9


def test_a_library_without_a_driver(stub: Stub) -> None:
    stub.answer(init_status=9)
    assert card_bytes(100) == 0
    assert card_memory([100]) is None


def test_a_driver_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compile_stub(
        tmp_path,
        "#include <stddef.h>\n"
        "int nvmlInitWithFlags(unsigned int flags) { return 0; }\n"
        "int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 1; return 0; }\n"
        "int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {\n"
        "    *device = NULL;\n    return 0;\n}\n",
    )
    _load_library(monkeypatch, ctypes.CDLL(path))
    with pytest.raises(FootprintError, match="does not match the NVML lib version"):
        card_bytes(100)


@pytest.mark.usefixtures("stub")
def test_a_process_that_a_container_hides_from_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    monkeypatch.setattr(footprint_nvidia, "_sees_all", lambda: False)
    monkeypatch.setattr(footprint_nvidia, "_DEVICES", (str(tmp_path / "nvidia"),))
    assert card_bytes(os.getpid()) == 0
    with device.open(), pytest.raises(FootprintError, match="doesn't list it"):
        card_bytes(os.getpid())


class TestThisSystem:
    def test_a_process_on_a_card_holds_what_the_card_says(
        self, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        control = tmp_path / "nvidiactl"
        monkeypatch.setattr(footprint_linux, "_DRIVERS", (control,))
        waits = [sys.executable, "-c", "print(flush=True); input()"]
        with subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            stub.answer(pid=process.pid)
            without = footprint_linux.footprint(process.pid)
            control.touch()
            held = footprint_linux.footprint(process.pid)
            assert without.current_bytes == without.host_bytes > 0
            assert held.current_bytes == held.card_bytes == 2 * 10**12
            assert held.host_bytes == pytest.approx(without.host_bytes, rel=0.2)
            assert card.card_memory([process.pid]) == CardMemory(80 * 10**9, 30 * 10**9)
            stub.answer(processes_status=15)
            with pytest.raises(FootprintError, match="GPU is lost"):
                footprint_linux.footprint(process.pid)

    def test_devices_without_the_library(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _load_library(monkeypatch, None)
        monkeypatch.setattr(pynvml, "CDLL", _no_library)
        monkeypatch.setattr(footprint_nvidia, "_DEVICES", (str(tmp_path / "nvidia"),))
        assert card_bytes(os.getpid()) == 0
        assert card_memory([os.getpid()]) is None
        device = tmp_path / "nvidia0"
        device.touch()
        with device.open(), pytest.raises(FootprintError, match="NVML Shared Library Not"):
            card_bytes(os.getpid())

    def test_nothing_is_imported_without_a_driver(self) -> None:
        code = (
            "import os, sys\n"
            "from pathlib import Path\n"
            "from gateway.system import memory_linux as footprint_linux\n"
            "footprint_linux._DRIVERS = (Path('/none'),)\n"
            "footprint_linux.footprint(os.getpid())\n"
            "sys.exit('pynvml' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
