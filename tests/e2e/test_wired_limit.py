"""A whole life of a worker, with what it asks of MLX in its order: the wired limit of a Mac changes
only while nothing computes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.faults import after_import, in_engine_step, sitecustomize
from tests.support.gateway import Gateway, eventually

pytestmark = pytest.mark.slow

# MLX as on a Mac, as far as the limit is concerned. Every call is noted, in the order of calls.
RECORDED = """
import functools, os, threading

def note(text):
    with open({record!r}, "a") as file:
        file.write(f"{{os.getpid()}} {{text}}\\n")

def noted(name):
    original = getattr(module, name)
    @functools.wraps(original)
    def call(*arguments, **options):
        what = str(arguments[0]) if arguments and "limit" in name else str(len(arguments))
        note(f"{{name}} {{what}}")
        return original(*arguments, **options)
    setattr(module, name, call)

for each in ("async_eval", "eval", "synchronize", "set_wired_limit", "set_memory_limit",
             "clear_cache"):
    noted(each)
info = module.device_info
module.device_info = lambda *device: {{
    **info(*device), "max_recommended_working_set_size": 1 << 40
}}
"""
FAILS = """
if os.path.exists({flag!r}):
    os.remove({flag!r})
    raise RuntimeError("[metal::malloc] Unable to allocate 99 bytes.")
"""
FAILS_TO_BEGIN = """
import os
original = module.WorkerLoop._accept
def accept(self, task):
    if os.path.exists({flag!r}):
        os.remove({flag!r})
        raise RuntimeError("can't start new thread")
    original(self, task)
module.WorkerLoop._accept = accept
"""
QUESTION = "Tell me a story about a lighthouse."


class _Lives:
    """Of the workers of one gateway, each as the calls that it made."""

    def __init__(self, record: Path) -> None:
        self._record = record

    def calls(self, pid: int) -> list[str]:
        lines = (line.split(" ", 1) for line in self._record.read_text().splitlines())
        return [call for caller, call in lines if caller == str(pid)]


def _wirings(calls: list[str]) -> list[str]:
    """The limits that were set; none beside work."""
    limits = []
    awaited = 0
    for call in calls:
        name, what = call.split(" ", 1)
        if name in ("async_eval", "eval"):
            awaited = 0
        elif name == "synchronize":
            awaited += 1
        elif name == "set_wired_limit":
            # Both streams.
            assert awaited >= 2, "it was set while something may have been computed"
            limits.append(what)
    return limits


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    return tmp_path / "fails"


@pytest.fixture
def lives(tmp_path: Path) -> _Lives:
    return _Lives(tmp_path / "record")


@pytest.fixture
def start(
    tmp_path: Path, flag: Path, start_gateway: Callable[..., Gateway]
) -> Callable[[str], Gateway]:
    code = after_import("mlx.core", RECORDED.format(record=str(tmp_path / "record")))
    code += in_engine_step(FAILS.format(flag=str(flag.with_name("engine fails"))))
    code += after_import(
        "worker.process.loop", FAILS_TO_BEGIN.format(flag=str(flag.with_name("conversation fails")))
    )

    def start(config: str) -> Gateway:
        environment = sitecustomize(tmp_path / "site", code)
        return start_gateway(config=config, environment=environment)

    return start


def _live(gateway: Gateway) -> int:
    """Load, answers beside each other, limits that move, and the end; the worker's pid."""
    gateway.load()
    pid = gateway.worker_pid()
    assert gateway.say(QUESTION, max_tokens=40)
    assert gateway.say(QUESTION * 20, max_tokens=400, ignore_eos=True)
    gateway.order("unload").raise_for_status()
    eventually(lambda: gateway.model()["state"] == "unloaded")
    return pid


def test_without_wiring_the_limit_is_never_touched(
    start: Callable[[str], Gateway], lives: _Lives
) -> None:
    calls = lives.calls(_live(start("")))
    assert _wirings(calls) == []
    assert len([call for call in calls if call.startswith("set_memory_limit")]) > 1
    assert any(text.startswith("async_eval") for text in calls)


def test_with_wiring_it_is_set_once_and_undone_at_the_end(
    start: Callable[[str], Gateway], lives: _Lives
) -> None:
    calls = lives.calls(_live(start("[memory]\nwire_weights = true\n")))
    wired, undone = _wirings(calls)
    assert int(wired) > 1_000_000
    assert undone == "0"
    # Nothing but weights was read before, and nothing but buffers went after.
    assert calls.index(f"set_wired_limit {wired}") < calls.index(
        "set_memory_limit " + _first(calls)
    )
    assert [call.split()[0] for call in calls[calls.index("set_wired_limit 0") :]] == [
        "set_wired_limit",
        "clear_cache",
    ]


@pytest.mark.parametrize("where", ["engine", "conversation"])
def test_a_worker_that_fails_ends_as_orderly(
    where: str, start: Callable[[str], Gateway], lives: _Lives, flag: Path
) -> None:
    gateway = start("[memory]\nwire_weights = true\n")
    gateway.load()
    pid = gateway.worker_pid()
    flag = flag.with_name(f"{where} fails")
    flag.touch()
    # The next worker answers.
    assert gateway.say(QUESTION, max_tokens=10)
    assert not flag.exists()
    assert gateway.worker_pid() != pid
    calls = lives.calls(pid)
    assert _wirings(calls)[1:] == ["0"]
    assert [call.split()[0] for call in calls[-4:]] == [
        "synchronize",
        "synchronize",
        "set_wired_limit",
        "clear_cache",
    ]


def _first(calls: list[str]) -> str:
    return next(call.split()[1] for call in calls if call.startswith("set_memory_limit"))
