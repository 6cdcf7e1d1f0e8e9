"""The device's memory, by what MLX says of it, and the budget that follows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.config.settings import MemorySettings
from gateway.memory.fitting import budget_bytes, budget_of
from gateway.system import memory as device
from gateway.system.memory import BackEnd, DeviceMemory, back_end, device_info, device_memory
from worker.system import memory as limits

GB = 10**9
GIB = 1 << 30
# As mx.device_info() has given them.
METAL: dict[str, Any] = {
    "architecture": "applegpu_g14d",
    "device_name": "Apple M2 Ultra",
    "max_buffer_length": 107374182400,
    "max_recommended_working_set_size": 115448725504,
    "memory_size": 137438953472,
    "resource_limit": 499000,
}
CUDA: dict[str, Any] = {
    "architecture": "sm_90",
    "compute_capability_major": 9,
    "compute_capability_minor": 0,
    "device_name": "NVIDIA H100 80GB HBM3",
    "free_memory": 84412596224,
    "total_memory": 85017624576,
}
CPU: dict[str, Any] = {"architecture": "x86_64", "device_name": "Intel(R) Xeon(R) Processor"}
AUTO = MemorySettings(headroom="2GB")


@pytest.mark.parametrize(
    ("info", "memory", "budget"),
    [
        (METAL, DeviceMemory(115448725504), 115448725504 - 2 * GB),
        (CUDA, DeviceMemory(85017624576, is_card=True), 85017624576 - 2 * GB),
        (CPU, None, 133 * GB - 2 * GB),
        ({**METAL, "max_recommended_working_set_size": 0}, None, 133 * GB - 2 * GB),
        ({**CUDA, "total_memory": "much"}, None, 133 * GB - 2 * GB),
    ],
)
def test_the_automatic_budget(
    info: dict[str, Any], memory: DeviceMemory | None, budget: int
) -> None:
    assert device_memory(info) == memory
    assert budget_of(AUTO, 133 * GB, device_memory(info)) == budget


def test_a_card_may_have_more_than_the_machine() -> None:
    assert budget_of(AUTO, 64 * GB, device_memory(CUDA)) == 85017624576 - 2 * GB
    assert budget_of(AUTO, 64 * GB, device_memory(METAL)) == 62 * GB


def test_a_share_is_one_of_the_memory_that_models_are_in() -> None:
    share = MemorySettings(budget="75%")
    assert budget_of(share, 133 * GB, device_memory(CUDA)) == 85017624576 * 3 // 4
    assert budget_of(share, 128 * GB, device_memory(METAL)) == 96 * GB
    assert budget_of(share, 128 * GB, device_memory(CPU)) == 96 * GB
    assert budget_of(MemorySettings(budget="90GB"), 133 * GB, device_memory(CUDA)) == 90 * GB


@pytest.mark.parametrize(
    ("info", "recommended_bytes", "memory_bytes"),
    [(METAL, 115448725504, 128 * GIB), (CUDA, None, 85017624576), (CPU, None, None)],
)
def test_device_as_worker_reports_it(
    monkeypatch: pytest.MonkeyPatch,
    info: dict[str, Any],
    recommended_bytes: int | None,
    memory_bytes: int | None,
) -> None:
    monkeypatch.setattr(limits.mx, "device_info", lambda: info)
    read = limits.read_device()
    assert (read.recommended_working_set_bytes, read.memory_bytes) == (
        recommended_bytes,
        memory_bytes,
    )


@pytest.mark.processes
def test_this_machine_can_be_asked() -> None:
    assert "device_name" in device_info()


@pytest.mark.processes
def test_it_is_asked_anew_each_time_but_not_for_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As iogpu.wired_limit_mb may have been set meanwhile."""
    probe = tmp_path / "probe.py"
    monkeypatch.setattr(device, "_PROBE", probe)
    for size in (7 * GB // 2, 5 * GB // 2):
        probe.write_text(f"print('{{\"max_recommended_working_set_size\": {size}}}')")
        assert budget_bytes(AUTO) == size - 2 * GB
    probe.write_text("print('{\"total_memory\": 8000}')")
    assert budget_bytes(MemorySettings(budget="50%")) == 4000
    probe.write_text("raise SystemExit(1)")
    assert budget_bytes(MemorySettings(budget="3GB")) == 3 * GB
    assert caplog.text == ""
    # Of what macOS may recommend the least is counted on.
    assert budget_bytes(AUTO) == psutil.virtual_memory().total * 2 // 3 - 2 * GB
    assert "can't be read" in caplog.text
    probe.write_text("print('no JSON')")
    assert budget_bytes(AUTO) < psutil.virtual_memory().total * 2 // 3


_MLX = """
cpu, device = "cpu", "gpu"


def set_default_device(chosen):
    global device
    device = chosen


def device_info():
    return {"device_name": device}
"""


@pytest.mark.parametrize(("variable", "device"), [("cpu", "cpu"), ("", "gpu")])
def test_a_variable_has_workers_compute_on_the_processor(
    variable: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another MLX, since this machine may have no GPU to leave aside."""
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").touch()
    (tmp_path / "mlx" / "core.py").write_text(_MLX)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("BULKHEAD_DEVICE", variable)
    assert device_info() == {"device_name": device}


def test_the_gateway_knows_of_that_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delenv("BULKHEAD_DEVICE", raising=False)
    assert back_end.__wrapped__() is BackEnd.METAL
    monkeypatch.setenv("BULKHEAD_DEVICE", "cpu")
    assert back_end.__wrapped__() is BackEnd.CPU
