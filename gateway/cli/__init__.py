"""The `bulkhead` command: one verb per file, imported when it is used."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any, Final

import click

from gateway import VERSION
from gateway.cli.uncut import UncutGroup

VERBS: Final = (
    "serve",
    "agent",
    "status",
    "top",
    "models",
    "list",
    "show",
    "rm",
    "load",
    "unload",
    "restart",
    "kill",
    "logs",
    "events",
    "chat",
    "pull",
    "estimate",
    "bench",
    "config",
    "key",
    "usage",
    "upgrade",
    "demo",
    "service",
    "doctor",
    "completion",
)

# What ollama, llama-swap and shells call them.
_ELSEWHERE: Final = {
    "download": "pull",
    "get": "pull",
    "ls": "list",
    "ps": "status",
    "remove": "rm",
    "run": "chat",
    "start": "serve",
    "stop": "unload",
}


class _Verbs(UncutGroup):
    """Finds each verb in the module of its name, so that `serve` doesn't carry the others."""

    elsewhere = _ELSEWHERE

    def list_commands(self, ctx: click.Context) -> list[str]:
        # `list` is a verb in this package.
        return [*VERBS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"gateway.cli.{cmd_name}").command
        return command

    def main(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().main(*arguments, **options)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            click.echo(f"bulkhead: This can't be written: {error.strerror}.", err=True)
            # Python would try once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(1)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="bulkhead")
def main() -> None:
    """Serve MLX models, each in a process of its own."""
