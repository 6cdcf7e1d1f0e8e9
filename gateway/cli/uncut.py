"""A group of commands that helps whoever looks for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from gateway.system.notation import nearest, suggestion

_NO_LIMIT: Final = 1000


class UncutGroup(click.Group):
    """Summaries stand whole in its help, which click cuts to a line, and a verb that isn't there is
    answered with the one that was meant. `elsewhere` are other programs' names for its verbs.
    """

    elsewhere: Mapping[str, str] = {}

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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(
                f"There is no option {error.option_name} here. Options come after the command: "
                f"{ctx.command_path} COMMAND [OPTIONS]",
                ctx,
            ) from error

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        # click looks at options that stand in a verb's place, and has no help for verbs that are
        # imported when they are used.
        if name.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, name):
            return super().resolve_command(ctx, args)
        found = self.elsewhere.get(name) or nearest(name, self.list_commands(ctx))
        return ctx.fail(f"There is no command {name!r}.{suggestion(found)}")
