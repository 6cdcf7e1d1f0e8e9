"""Options of what runs as a service: how much it logs, and where to."""

from __future__ import annotations

import click

log_level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
log_to_option = click.option(
    "--log-to",
    type=click.Choice(["stderr", "file"]),
    default="stderr",
    envvar="BULKHEAD_LOG",
    hidden=True,
    help="file: stderr is kept for crashes, as the log of a service is.",
)
