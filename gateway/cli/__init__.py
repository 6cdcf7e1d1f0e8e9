"""The `bulkhead` command and its verbs. The module of a verb is imported when the verb is used."""

from __future__ import annotations

import errno
import importlib
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

import click

from gateway import VERSION
from gateway.system.notation import nearest, suggestion

_NO_LIMIT: Final = 1000
# The exit status that shells give to a process that ended by SIGINT.
_INTERRUPTED: Final = 130


class UncutGroup(click.Group):
    """A group of commands. Its help has whole summaries, which click would cut to one line each.
    For a mistyped command it suggests another. `elsewhere` maps commands of other programs to
    commands of this group.
    """

    elsewhere: Mapping[str, str] = {}

    def groups(self, ctx: click.Context) -> Mapping[str, Iterable[str]]:
        """The names of the commands, by the headings of the help."""
        return {"Commands": self.list_commands(ctx)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, self.list_commands(ctx)))
        for heading, names in self.groups(ctx).items():
            with formatter.section(heading):
                commands = [(name, self.get_command(ctx, name)) for name in names]
                formatter.write_dl(
                    [
                        (name.ljust(widest), command.get_short_help_str(_NO_LIMIT))
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
        # If an option stands where the verb should be, click reports the mistake.
        if name.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, name):
            return super().resolve_command(ctx, args)
        similar = self.elsewhere.get(name) or nearest(name, self.list_commands(ctx))
        return ctx.fail(f"There is no command {name!r}.{suggestion(similar)}")


# The verbs and their modules, as the help groups them.
_GROUPS: Final = {
    "Chat": {"run": "run", "chat": "chat", "launch": "launch", "demo": "demo"},
    "Models": {
        "search": "search",
        "pull": "pull",
        "models": "models",
        "list": "models",
        "show": "models",
        "rm": "models",
        "load": "orders",
        "unload": "orders",
        "restart": "orders",
        "kill": "orders",
        "check": "check",
        "estimate": "estimate",
        "bench": "bench",
    },
    "Watch": {
        "status": "status",
        "top": "status",
        "logs": "logs",
        "events": "logs",
        "why": "why",
        "doctor": "doctor",
    },
    "Run the gateway": {
        "serve": "serve",
        "service": "service",
        "upgrade": "orders",
        "config": "config",
        "completion": "completion",
    },
    "Team": {"key": "key", "usage": "usage", "page": "page"},
}
VERBS: Final = {verb: module for group in _GROUPS.values() for verb, module in group.items()}
# Verbs that programs use, and that no help names.
_HIDDEN: Final = {"remote": "remote"}

# Verbs of ollama, llama-swap and shells, with the verbs that do the same here.
_ELSEWHERE: Final = {
    "download": "pull",
    "get": "pull",
    "ls": "list",
    "ps": "status",
    "remove": "rm",
    "find": "search",
    "start": "serve",
    "stop": "unload",
}


class _Verbs(UncutGroup):
    """The group of all verbs. It imports only the module of the used verb: verbs start fast."""

    elsewhere = _ELSEWHERE

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (name := {**VERBS, **_HIDDEN}.get(cmd_name)) is None:
            return None
        module = importlib.import_module(f"gateway.cli.{name}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def groups(self, ctx: click.Context) -> Mapping[str, Iterable[str]]:
        return _GROUPS

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # click would print "Aborted!" and end with status 1.
            raise click.exceptions.Exit(_INTERRUPTED) from None

    def main(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().main(*arguments, **options)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            click.echo(f"bulkhead: The output can't be written: {error.strerror}.", err=True)
            # Without this, Python would try to write the rest of the output when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(1)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="bulkhead")
def main() -> None:
    """Serve MLX models, each in a process of its own."""
    # A umask that lets everybody write is a mistake: any account could change models, caches and
    # bytecode that this one writes. Others stay as they are, as a group may share a cache.
    before = os.umask(0o022)
    if before & stat.S_IWOTH:
        os.umask(before)
