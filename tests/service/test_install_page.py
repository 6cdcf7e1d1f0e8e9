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
from tests.support.platforms import linux_only
from tests.support.service_managers import ServiceManagers

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text("utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What the pages call by name.
PROGRAMS = {"bulkhead"}
BLOCK = re.compile(r"^ *```(sh(?: \w+)?)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@linux_only("these are Linux's")
def test_from_installing_to_removing(managers: ServiceManagers, home: Path, port: int) -> None:
    blocks = [text for kind, text in BLOCK.findall(PAGE) if kind == "sh run"]
    script = "\n".join(["set -e", *blocks])
    assert script.count("[models.demo]") == 1
    own_port = f"[gateway]\nport = {port}\n[models.demo]"
    before = {path.name for path in home.iterdir()}
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
    left = [path for name in (".config", ".local") for path in (home / name).rglob("*")]
    assert [path for path in left if path.is_file()] == []
    assert {path.name for path in home.iterdir()} == before | {".config", ".local"}


def _lines(text: str) -> list[list[str]]:
    """The words of each line."""
    shown = (line.partition("  #")[0] for line in text.replace("\\\n", " ").splitlines())
    return [shlex.split(text) for text in shown if "'" not in text and text.strip()]


def _reached(words: list[str]) -> set[str]:
    """The programs that a line puts on PATH."""
    if words[:2] == ["export", "PATH=$HOME/bulkhead/.venv/bin:$PATH"]:
        # What `make install` has put there.
        return {program for program in PROGRAMS if Path(sys.executable).with_name(program).exists()}
    # Each of these links it where it puts all programs.
    return PROGRAMS if words[0] != "make" and _installs(words) else set()


def _installs(words: list[str]) -> bool:
    return words[0] in ("make", "uv", "pipx", "brew") and any("bulkhead" in word for word in words)


def _called(words: list[str]) -> str | None:
    """The program that a line calls by its name alone."""
    first = words[1] if words[0] == "sudo" else words[0]
    first = first.removeprefix("$(which ").removesuffix(")")
    return first if first in PROGRAMS else None


@pytest.mark.parametrize("system", ["Mac", "Linux"])
def test_commands_of_the_install_page_are_on_path(system: str) -> None:
    """By every way of installing, before the first call."""
    introduction, *sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    text = introduction + "".join(
        section
        for section in sections
        if not section.startswith(("On ", "Extras")) or system in section.splitlines()[0]
    )
    blocks = [_lines(block) for _, block in BLOCK.findall(text)]
    ways = [
        index
        for index, block in enumerate(blocks)
        if any(_installs(words) and "install" in words for words in block)
    ]
    assert len(ways) == (4 if system == "Mac" else 3)
    for index in ways:
        assert set().union(*map(_reached, blocks[index])) == PROGRAMS
    calls = [
        index for index, block in enumerate(blocks) for words in block if _called(words) is not None
    ]
    assert len(calls) >= 8
    assert min(calls) > max(ways)


def test_every_command_exists() -> None:
    """On all pages, the Mac's too, which can't run here."""
    checked = 0
    for page in PAGES:
        for _, block in BLOCK.findall(page.read_text("utf-8")):
            for words in _lines(block):
                if _called(words) == "bulkhead" or words[0] == ".venv/bin/bulkhead":
                    _check(words)
                    checked += 1
    assert checked >= 20


def _check(words: list[str]) -> None:
    while not words[0].strip("$()").endswith("bulkhead"):
        words = words[1:]
    command: click.Command = main
    ends = [words.index(name) for name in (">", "||", "|") if name in words]
    arguments = words[1 : min(ends, default=len(words))]
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), arguments[0])
        assert found is not None, words
        command, arguments = found, arguments[1:]
    command.make_context("bulkhead", arguments)


def test_the_page_tells_the_time_that_is_granted() -> None:
    assert f"{stop_s(30.0)} s by default" in PAGE
