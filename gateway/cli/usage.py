"""bulkhead usage"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.table import Table

from gateway.access.accounts import Counts
from gateway.access.api_key import KeyUsage, UsageList
from gateway.cli.client import GatewayClient
from gateway.cli.console import stdout_console
from gateway.cli.failure import NobodyListensError
from gateway.cli.options import json_option, reaches_gateway
from gateway.cli.own_gateway import own_gateway, state_dir_option


@click.command("usage")
@json_option
@state_dir_option
@reaches_gateway
def command(gateway: GatewayClient, *, as_json: bool, state_dir: Path | None) -> None:
    """Show what each API key has used, today and this month.

    "in" are prompt tokens, "cached" those of them that were found in the prompt cache, and "out"
    the tokens of answers. Nothing is counted while there are no keys.
    """
    if state_dir is None:
        _print(gateway, as_json=as_json)
        return
    with own_gateway(state_dir) as own:
        if own is None:
            raise NobodyListensError(f"No gateway runs with the state folder {state_dir}.")
        _print(own, as_json=as_json)


def _print(gateway: GatewayClient, *, as_json: bool) -> None:
    content = gateway.get("/admin/v1/usage")
    listed = gateway.read(content, UsageList)
    if as_json:
        click.echo(msgspec.json.format(content, indent=2))
    elif not listed.keys:
        click.echo("There are no keys, so nothing was counted: `bulkhead key add NAME` makes one.")
    else:
        stdout_console().print(_table(listed.keys))


def _table(keys: list[KeyUsage]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("key", overflow="fold")
    table.add_column("", no_wrap=True)
    for heading in ("requests", "in", "cached", "out"):
        table.add_column(heading, justify="right", overflow="fold")
    for each in keys:
        table.add_row(each.name, "today", *_counts(each.today))
        table.add_row("", "this month", *_counts(each.month))
    return table


def _counts(counts: Counts) -> tuple[str, ...]:
    numbers = (
        counts.requests,
        counts.prompt_tokens,
        counts.cached_tokens,
        counts.completion_tokens,
    )
    return tuple(f"{each:,}" for each in numbers)
