"""After an unload the machine has its memory back."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support import shapes
from tests.support.gateway import Gateway, eventually
from tests.support.platforms import linux_only

_SLACK = 32 << 20


def _per_cpu_lists() -> int:
    """Free memory on the kernel's per-CPU lists, in bytes.

    Linux counts it neither as free nor as available, and since version 6.7 the lists grow with use,
    up to an eighth of a zone, and shrink over minutes: after a large exit hundreds of megabytes are
    there (mm/page_alloc.c, `pcp->high`).
    """
    counts = re.findall(r"^\s+count:\s+(\d+)$", Path("/proc/zoneinfo").read_text(), re.MULTILINE)
    return sum(map(int, counts)) * resource.getpagesize()


def _settled_available() -> int:
    """The machine's available memory once it has stopped moving, in bytes."""
    readings: list[int] = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        readings.append(psutil.virtual_memory().available + _per_cpu_lists())
        if len(readings) > 3 and max(readings[-4:]) - min(readings[-4:]) < 8 << 20:
            break
        time.sleep(0.5)
    return readings[-1]


@pytest.mark.alone
@linux_only("reads the kernel's free lists of Linux")
def test_an_unload_returns_what_the_load_took(
    start_gateway: Callable[..., Gateway],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    model = shapes.sparse(tmp_path / "large", megabytes=1050)
    weights = (model / "model.safetensors").stat().st_size
    assert weights > 1e9
    running = start_gateway(models=(str(model),))
    # Other programs move the gauge of the machine too; one quiet round of five is enough.
    for _ in range(5):
        taken, returned = _load_and_unload(running, weights)
        record_property("taken_mb", taken / 1e6)
        record_property("returned_mb", returned / 1e6)
        print(f"taken {taken / 1e6:.0f} MB, returned {returned / 1e6:.0f} MB")
        if taken > weights - _SLACK and returned >= 0.95 * taken:
            return
    raise AssertionError(f"{returned} of {taken} bytes came back")


def _load_and_unload(running: Gateway, weights: int) -> tuple[int, int]:
    """What the load took from the machine's available memory, and what came back, in bytes."""
    before = _settled_available()
    pid = running.load("large")["worker"]["pid"]
    assert running.chat("Hello", "large", max_tokens=8).status_code == 200
    eventually(lambda: (running.model("large")["worker"]["footprint_bytes"] or 0) > weights)
    loaded = _settled_available()
    running.order("unload", "large").raise_for_status()
    assert not psutil.pid_exists(pid)
    return before - loaded, _settled_available() - loaded
