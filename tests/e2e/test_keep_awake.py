"""A gateway holds a power assertion while requests run, where the system has one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.faults import sitecustomize
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.streams import open_stream


def _start(start_gateway: Callable[..., Gateway], folder: Path, config: str) -> Gateway:
    """As on a Mac, with another program for caffeinate, and a shorter patience."""
    program = folder / "caffeinate"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\nexec sleep 600\n')
    program.chmod(0o755)
    code = f"""
    if not in_worker():
        from gateway.system import wakefulness
        wakefulness._COMMANDS = {{sys.platform: ({str(program)!r}, "-i", "-w")}}
        wakefulness._LINGER_S = 0.5
    """
    return start_gateway(config=config, environment=sitecustomize(folder / "site", code))


def _held(gateway: Gateway) -> bool:
    for child in psutil.Process(gateway.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() == "sleep":
                return True
    return False


@pytest.mark.slow
def test_as_long_as_one_runs(start_gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    gateway = _start(start_gateway, tmp_path, "")
    assert not _held(gateway)
    stream = open_stream(gateway, "Tell me a story.", max_tokens=1200, ignore_eos=True)
    eventually(lambda: stream.text, START_S)
    eventually(lambda: _held(gateway))
    assert (tmp_path / "calls").read_text().splitlines()[0] == f"-i -w {gateway.pid}"
    gateway.order("unload", force=True)
    stream.join()
    eventually(lambda: not _held(gateway))
    assert gateway.say("Hello.", max_tokens=4)


def test_a_switch(start_gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    gateway = _start(start_gateway, tmp_path, "[gateway]\nkeep_awake = false\n")
    assert gateway.say("Tell me a story.", max_tokens=40)
    assert not (tmp_path / "calls").exists()
