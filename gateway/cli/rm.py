"""bulkhead rm"""

from __future__ import annotations

import click
import msgspec

from gateway.cli.client import GatewayClient
from gateway.cli.options import json_option, model_argument, reaches_gateway
from gateway.cli.printable import printable
from gateway.cli.shelf import Shelf
from gateway.system.notation import format_size


@click.command("rm")
@model_argument
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@json_option
@reaches_gateway
def command(gateway: GatewayClient, *, model: str, yes: bool, as_json: bool) -> None:
    """Remove a model from the disk, or what an unfinished pull has left.

    MODEL is an id, a repository or a folder. What is loaded, being pulled, or needed by another
    model stays.
    """
    shelf = Shelf(gateway)
    planned = shelf.removal(model)
    if not yes:
        what = (
            f"Remove {printable(planned.source)} and free {format_size(planned.reclaimed_bytes)}?"
        )
        if not click.confirm(what, err=True):
            raise click.exceptions.Exit(1)
    removed = shelf.remove(planned.source)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(removed), indent=2))
        return
    click.echo(f"{printable(removed.source)} is gone: {format_size(removed.reclaimed_bytes)} free")
