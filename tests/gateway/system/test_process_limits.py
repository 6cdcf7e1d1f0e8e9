"""What a process holds after large buffers were freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.platforms import linux_only

pytestmark = pytest.mark.processes

# By the first ones glibc learns to keep the next, and what is held lies behind these in the heap.
_CHILD = """
import resource, sys
from gateway.system.process_limits import give_large_buffers_back
if sys.argv[1] == "given back":
    give_large_buffers_back()
def held_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
before = held_bytes()
held = []
for size in (28 << 20, 24 << 20):
    both = [b"x" * size, b"y" * size]
    held.append(b"z" * 100_000)
    both.clear()
print(held_bytes() - before)
"""


@linux_only("glibc's own way")
def test_large_buffers_go_back_to_the_system() -> None:
    held = {
        name: int(subprocess.check_output([sys.executable, "-c", _CHILD, name], timeout=120))
        for name in ("kept", "given back")
    }
    assert held["given back"] < 4 << 20
    assert held["kept"] > 20 << 20, "there is nothing to mend any more"
