"""A power assertion while there is work, held by a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.system import wakefulness
from gateway.system.wakefulness import Wakefulness
from tests.support.gateway import eventually, gone

pytestmark = pytest.mark.processes


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a stand-in of caffeinate was called with, which ends as it does."""
    path, program = tmp_path / "calls", tmp_path / "caffeinate"
    program.write_text(f'#!/bin/sh\necho "$@" >> {path}\nexec sleep 600\n')
    program.chmod(0o755)
    monkeypatch.setattr(wakefulness, "_COMMANDS", {sys.platform: (str(program), "-i", "-w")})
    return path


@pytest.fixture
def awake(calls: Path) -> Iterator[Wakefulness]:
    assert not calls.exists()
    made = Wakefulness()
    yield made
    last = _holder(made)
    made.end()
    assert last is None or eventually(lambda: gone(last))


def _holder(awake: Wakefulness) -> int | None:
    """The process that holds the assertion."""
    return None if awake._assertion is None else awake._assertion.pid


def test_it_is_held_while_there_is_work_and_a_little_longer(
    awake: Wakefulness, calls: Path
) -> None:
    awake.tick(0.0, works=False)
    assert _holder(awake) is None
    for now in (1.0, 1.25, 300.0):
        awake.tick(now, works=True)
    eventually(calls.exists)
    assert eventually(calls.read_text) == f"-i -w {os.getpid()}\n"
    awake.tick(309.0, works=False)
    holder = _holder(awake)
    assert holder is not None
    assert not gone(holder)
    awake.tick(310.5, works=False)
    assert _holder(awake) is None
    eventually(lambda: gone(holder))
    awake.tick(311.0, works=True)
    assert _holder(awake) not in (None, holder)


def test_command_that_ends_by_itself_starts_again_after_a_minute(awake: Wakefulness) -> None:
    awake.tick(0.0, works=True)
    held = awake._assertion
    assert held is not None
    held.kill()
    # A thread of its own reaps it.
    eventually(lambda: held.status is not None)
    for now in (0.5, 30.0, 59.0):
        awake.tick(now, works=True)
        assert _holder(awake) is None
    awake.tick(61.0, works=True)
    assert _holder(awake) not in (None, held.pid)


def test_command_that_cannot_start_is_tried_once_a_minute(
    awake: Wakefulness, tmp_path: Path
) -> None:
    (tmp_path / "caffeinate").unlink()
    with pytest.raises(FileNotFoundError):
        awake.tick(0.0, works=True)
    awake.tick(0.25, works=True)
    with pytest.raises(FileNotFoundError):
        awake.tick(60.0, works=True)


def test_systems_without_it_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakefulness, "_COMMANDS", {})
    awake = Wakefulness()
    awake.tick(0.0, works=True)
    assert _holder(awake) is None
    awake.end()


def test_a_mac_has_it() -> None:
    assert wakefulness._COMMANDS["darwin"] == ("/usr/bin/caffeinate", "-i", "-w")
