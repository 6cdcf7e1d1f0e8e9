from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from gateway.cli import VERBS, main


def _groups() -> list[tuple[str, ...]]:
    context = click.Context(main)
    groups = [verb for verb in VERBS if isinstance(main.get_command(context, verb), click.Group)]
    return [(), *((group,) for group in groups)]


def test_the_verbs_stand_in_groups() -> None:
    shown = CliRunner().invoke(main, ["--help"]).output
    headings = [line for line in shown.splitlines() if re.fullmatch(r"[A-Z][\w ]+:", line)]
    assert headings == ["Options:", "Chat:", "Models:", "Watch:", "Run the gateway:", "Team:"]


@pytest.mark.parametrize("path", _groups())
@pytest.mark.parametrize("columns", [40, 80])
def test_every_summary_stands_whole(path: tuple[str, ...], columns: int) -> None:
    done = CliRunner().invoke(main, [*path, "--help"], terminal_width=columns)
    assert done.exit_code == 0
    shown = " ".join(done.output.split())
    group: click.Command | None = main
    for name in path:
        assert isinstance(group, click.Group)
        group = group.get_command(click.Context(group), name)
    assert isinstance(group, click.Group)
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        assert f"{name} {' '.join(command.get_short_help_str(1000).split())}" in shown
    assert max(map(len, done.output.splitlines())) <= 80
