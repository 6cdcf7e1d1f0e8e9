"""Gateways whose models are commands."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from protocol.process_tree import MARK

PROGRAM = str(Path(__file__).with_name("command_server.py"))


def table(model_id: str, /, *flags: str, place: str = "--port={port}", **keys: Any) -> str:
    """A table of a configuration, whose command is the server program with these flags."""
    command = [sys.executable, PROGRAM, place, *flags]
    lines = [f"[models.{model_id}]", f"command = {json.dumps(command)}"]
    lines += [f"{key} = {_written(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {json.dumps(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def processes_of(gateway_pid: int) -> list[psutil.Process]:
    """All processes of commands that run on this machine for this gateway's user."""
    found = []
    for each in psutil.process_iter():
        try:
            if MARK in each.environ() and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
        except (psutil.Error, OSError):
            continue
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.05)
