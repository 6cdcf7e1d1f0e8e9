"""Gateways whose models are commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench.models import AGENT, build_model, copy_without_end
from gateway.config.model_folders import DEMO_FOLDER
from tests.support.gateway import Gateway, gone

PROGRAM = str(Path(__file__).with_name("command_server.py"))
HOSTILE = str(Path(__file__).with_name("hostile_server.py"))


def hostile(model_id: str, /, *flags: str, **keys: Any) -> str:
    """The same, whose command is the hostile server with these flags."""
    return table(model_id, *flags, program=HOSTILE, health="/health", memory="200MB", **keys)


def table(
    model_id: str, /, *flags: str, place: str = "--port={port}", program: str = PROGRAM, **keys: Any
) -> str:
    """A table of a configuration, whose command is the server program with these flags."""
    command = [sys.executable, program, place, *flags]
    lines = [f"[models.{model_id}]", f"command = {json.dumps(command)}"]
    lines += [f"{key} = {_written(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {json.dumps(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def mlx_lm_server(folder: Path) -> str:
    """A table of the model `other`, whose command is mlx_lm.server with a model made in `folder`
    that never ends by itself.
    """
    build_model(folder / "source", AGENT, DEMO_FOLDER)
    copy_without_end(folder / "source", folder / "model")
    return real_server("mlx_lm.server", "--model", str(folder / "model"))


def real_server(*command: str) -> str:
    """A table of the model `other`, whose command is another project's server."""
    return f"""
[models.other]
command = {json.dumps([*command, "--port", "{port}"])}
health = "/health"
name = "default_model"
memory = "1GB"
"""


@contextmanager
def serving(config: str, *arguments: str, **more: Any) -> Iterator[Gateway]:
    gateway = Gateway(*arguments, config=config, models=(), **more)
    try:
        yield gateway
    finally:
        gateway.stop()


def guarded(gateway: Gateway, model: str) -> list[psutil.Process]:
    """The processes of a command, its first one first."""
    return psutil.Process(gateway.worker_pid(model)).children(recursive=True)


def all_gone(processes: list[psutil.Process]) -> bool:
    return all(gone(process.pid) for process in processes)
