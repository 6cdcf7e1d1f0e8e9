"""bulkhead top"""

from __future__ import annotations

import os
import sys

import click

from gateway.cli.client import GatewayClient
from gateway.cli.failure import WrongUseError
from gateway.cli.options import reaches_gateway


@click.command("top")
@reaches_gateway
def top_command(gateway: GatewayClient) -> None:
    """Watch the gateway live: memory, models, requests, events; with keys to steer models.

    Press q to end it, and ? for its keys and columns. It waits for a gateway that isn't there, or
    goes away.
    """
    _check_terminal()
    # Textual takes longer to import than other verbs take to run.
    from gateway.cli.top_screen import Top

    top = Top(gateway)
    top.run(mouse=False)
    # Textual has shown the traceback of what it ended for, if for anything.
    if top.return_code:
        raise click.exceptions.Exit(top.return_code)


def _check_terminal() -> None:
    """The screen is drawn on stderr, as Textual does it, and keys come from stdin."""
    for name, stream in (("input", sys.stdin), ("output", sys.stdout), ("error", sys.stderr)):
        if not stream.isatty():
            raise WrongUseError(
                f"top needs a terminal, and its standard {name} isn't one: `bulkhead status` "
                "prints what it would show."
            )
    kind = os.environ.get("TERM", "")
    if kind in ("", "dumb"):
        raise WrongUseError(
            f"top draws on the whole screen, which a terminal with TERM={kind or '(unset)'} can't: "
            "`bulkhead status --watch` prints line by line."
        )
