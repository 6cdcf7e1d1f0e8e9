"""bulkhead list"""

from __future__ import annotations

import time

import click
import msgspec
from rich.table import Table

from gateway.cli.bodies import EntryReading
from gateway.cli.client import GatewayClient
from gateway.cli.console import stdout_console
from gateway.cli.moments import ago
from gateway.cli.narrow import print_table
from gateway.cli.options import json_option, reaches_gateway
from gateway.cli.printable import printable
from gateway.cli.shelf import Shelf
from gateway.system.notation import format_size


@click.command("list")
@json_option
@reaches_gateway
def command(gateway: GatewayClient, *, as_json: bool) -> None:
    """List the models on the disks: in the Hugging Face cache and in configured folders.

    Complete models are served under the id that is shown. `bulkhead show` says why another one is
    not.
    """
    entries = Shelf(gateway).entries()
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(entries), indent=2))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("model", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("quantization", no_wrap=True)
    table.add_column("context", justify="right", no_wrap=True)
    table.add_column("can", overflow="fold")
    table.add_column("last used", no_wrap=True)
    table.add_column("state", no_wrap=True)
    now = time.time()
    for each in entries:
        table.add_row(
            printable(each.name),
            format_size(each.size_bytes),
            printable(each.quantization or "-"),
            "-" if each.context_tokens is None else f"{each.context_tokens:,}",
            ", ".join(each.abilities) or "-",
            ago(each.last_used_at, now),
            state(each),
        )
    print_table(stdout_console(), table)


def used(entry: EntryReading) -> str:
    if entry.last_used_at is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used_at))


def state(entry: EntryReading) -> str:
    if entry.problem is not None and entry.part_bytes:
        return "unfinished"
    return entry.state or ("served" if entry.ids and entry.problem is None else "not served")
