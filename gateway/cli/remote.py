"""bulkhead remote"""

from __future__ import annotations

import logging
import sys

import click

from gateway.workers.remote import run


@click.command("remote", hidden=True)
def remote_command() -> None:
    """Run a rank for a gateway on another machine, which starts this by ssh."""
    if sys.stdin.isatty():
        raise click.UsageError("A gateway starts this by ssh, and speaks to it by its pipes.")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    run()
