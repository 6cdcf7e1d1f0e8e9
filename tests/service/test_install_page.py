"""The commands of docs/install.md, as far as they can run here."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gateway.cli import main
from gateway.service.definition import stop_s
from tests.support.service_managers import ServiceManagers

PAGE = (Path(__file__).parents[2] / "docs" / "install.md").read_text("utf-8")
BLOCK = re.compile(r"^ *```(sh|sh run)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(sys.platform != "linux", reason="these are Linux's")
def test_from_installing_to_removing(managers: ServiceManagers, home: Path, port: int) -> None:
    blocks = [text for kind, text in BLOCK.findall(PAGE) if kind == "sh run"]
    script = "\n".join(["set -e", *blocks])
    assert script.count("[models.demo]") == 1
    own_port = f"[gateway]\nport = {port}\n[models.demo]"
    before = {each.name for each in home.iterdir()}
    done = subprocess.run(
        ["bash", "-c", script.replace("[models.demo]", own_port)],
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "BULKHEAD_URL": f"http://127.0.0.1:{port}",
        },
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"serves on http://127.0.0.1:{port}") == 3
    assert "demo" in done.stdout
    left = [each for name in (".config", ".local") for each in (home / name).rglob("*")]
    assert [each for each in left if each.is_file()] == []
    assert {each.name for each in home.iterdir()} == before | {".config", ".local"}


def test_every_command_exists() -> None:
    """Of the Mac's too, which can't run here."""
    lines = [line for _, text in BLOCK.findall(PAGE) for line in text.splitlines()]
    orders = [shlex.split(each.partition("  #")[0]) for each in lines if "bulkhead" in each]
    checked = 0
    for words in orders:
        named = [i for i, word in enumerate(words) if word in ("bulkhead", "$(which bulkhead)")]
        if not named:
            continue
        command: click.Command = main
        arguments = words[named[0] + 1 :]
        while isinstance(command, click.Group):
            found = command.get_command(click.Context(command), arguments[0])
            assert found is not None, words
            command, arguments = found, arguments[1:]
        command.make_context("bulkhead", arguments)
        checked += 1
    assert checked >= 10


def test_the_page_tells_the_time_that_is_granted() -> None:
    assert f"{stop_s(30.0)} s by default" in PAGE
