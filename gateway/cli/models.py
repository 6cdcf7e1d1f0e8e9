"""bulkhead models"""

from __future__ import annotations

import time

import click
import msgspec
from rich.table import Table

from gateway.cli.bodies import EntryReading, ListedModel
from gateway.cli.client import GatewayClient
from gateway.cli.console import stdout_console
from gateway.cli.failure import CommandError
from gateway.cli.memory_table import UNKNOWN, size
from gateway.cli.moments import ago
from gateway.cli.narrow import print_table
from gateway.cli.options import json_option, reaches_gateway
from gateway.cli.printable import printable


@click.command("models")
@json_option
@reaches_gateway
def command(gateway: GatewayClient, *, as_json: bool) -> None:
    """List the models that are served: state, size, context, aliases and last use.

    The size is that of the files. The context is the one in force; of a model that isn't loaded it
    is the longest that the model knows.
    """
    if as_json:
        click.echo(msgspec.json.format(gateway.models_json(), indent=2))
        return
    models = gateway.models()
    print_table(stdout_console(), _table(models, _on_disks(gateway)))


def _on_disks(gateway: GatewayClient) -> dict[str, EntryReading]:
    """By ids. Only operators may ask for it, and disks may be slow: the rest is told without."""
    try:
        return {name: each for each in gateway.library() for name in each.ids}
    except CommandError:
        return {}


def _table(models: tuple[ListedModel, ...], entries: dict[str, EntryReading]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("model", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("context", justify="right", no_wrap=True)
    table.add_column("last used", no_wrap=True)
    table.add_column("aliases", overflow="fold")
    now = time.time()
    for model in models:
        size_bytes, context_tokens, used_at = None, model.max_model_len, model.last_used_at
        if (entry := entries.get(model.id)) is not None:
            size_bytes = entry.size_bytes
            context_tokens = context_tokens or entry.context_tokens
            # Which also knows what was before the gateway's start.
            used_at = used_at or entry.last_used_at
        table.add_row(
            printable(model.id),
            model.state,
            size(size_bytes),
            UNKNOWN if context_tokens is None else f"{context_tokens:,}",
            ago(used_at, now),
            printable(", ".join(model.aliases)) or UNKNOWN,
        )
    return table
