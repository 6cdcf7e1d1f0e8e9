"""bulkhead show"""

from __future__ import annotations

import click
import msgspec

from gateway.cli.client import GatewayClient
from gateway.cli.list import state, used
from gateway.cli.options import json_option, model_argument, reaches_gateway
from gateway.cli.printable import printable
from gateway.cli.shelf import Shelf
from gateway.system.notation import format_size


@click.command("show")
@model_argument
@json_option
@reaches_gateway
def command(gateway: GatewayClient, *, model: str, as_json: bool) -> None:
    """Show what is known of a model on a disk.

    MODEL is an id, a repository or a folder.
    """
    entry = Shelf(gateway).entry(model)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(entry), indent=2))
        return
    context = None if entry.context_tokens is None else f"{entry.context_tokens:,} tokens"
    parts = f", of which {format_size(entry.part_bytes)} of an unfinished pull"
    rows = {
        "source": entry.source,
        "ids": ", ".join(entry.ids) or "none",
        "state": state(entry),
        "problem": entry.problem,
        "path": entry.path,
        "size": format_size(entry.size_bytes) + (parts if entry.part_bytes else ""),
        "architecture": entry.architecture,
        "quantization": entry.quantization,
        "context": context,
        "chat template": "yes" if entry.has_template else "no",
        "can": ", ".join(entry.abilities) or None,
        "last used": used(entry),
        "configured": ", ".join(entry.configured) or "no, found",
    }
    for name, value in rows.items():
        if value is not None:
            click.echo(f"{name:<14} {printable(value)}")
