"""Whose death ends a worker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

_WORKER = """
import os, sys, threading
from worker.process.gateway import ParentWatch
ended = threading.Event()
watch = ParentWatch(os.getppid(), ended.set, lambda: 60.0)
print("watches", flush=True)
for line in sys.stdin:
    watch.follow(int(line))
    print("follows", flush=True)
    if ended.wait(float(sys.argv[1])):
        sys.exit(7)
"""

_REPLACED = """
import os, sys, threading, time
from worker.process.gateway import ParentWatch
ended = threading.Event()
watch = ParentWatch(os.getppid(), ended.set, lambda: 60.0)
for each in sys.argv[1:]:
    watch.follow(int(each))
print("follows", flush=True)
sys.stdin.readline()
watching = lambda: sum(each.name == "parent-watch" for each in threading.enumerate())
while watching() > 1:
    time.sleep(0.01)
print(watching(), ended.is_set(), flush=True)
ended.wait(120)
sys.exit(7)
"""


@pytest.fixture
def gateways() -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)
    ]
    yield started
    for process in started:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def test_the_gateway_that_it_belongs_to(gateways: list[subprocess.Popen[bytes]]) -> None:
    first, second = gateways
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER, "60"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    assert worker.stdout.readline() == "watches\n"
    worker.stdin.write(f"{first.pid}\n")
    worker.stdin.flush()
    assert worker.stdout.readline() == "follows\n"
    first.kill()
    # None of its children.
    assert worker.wait(120) == 7
    worker.stdin.close()
    worker.stdout.close()
    assert second.poll() is None


def test_an_earlier_one_does_not_matter(gateways: list[subprocess.Popen[bytes]]) -> None:
    first, second = gateways
    worker = subprocess.Popen(
        [sys.executable, "-c", _REPLACED, *(str(gateway.pid) for gateway in gateways)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    assert worker.stdout.readline() == "follows\n"
    first.kill()
    first.wait()
    worker.stdin.write("\n")
    worker.stdin.flush()
    # Nobody watches it any more, and nothing came of its end.
    assert worker.stdout.readline() == "1 False\n"
    second.kill()
    assert worker.wait(120) == 7
    worker.stdin.close()
    worker.stdout.close()
