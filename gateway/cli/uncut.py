"""A group of commands whose summaries stand whole in its help."""

from __future__ import annotations

from typing import Final

import click

_NO_LIMIT: Final = 1000


class UncutGroup(click.Group):
    """click itself cuts them to a line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(_NO_LIMIT))
                    for name, command in commands
                    if command is not None
                ]
            )
