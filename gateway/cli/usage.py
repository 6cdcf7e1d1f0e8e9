"""bulkhead usage"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.table import Table

from gateway.access.limits import Counts, KeyUsage, UsageList
from gateway.cli.client import GatewayClient
from gateway.cli.failure import NobodyListensError
from gateway.cli.gateway_access import local_gateway
from gateway.cli.options import json_option, reaches_gateway, state_dir_option
from gateway.cli.output import new_table, stdout_console


@click.command("usage")
@json_option
@state_dir_option
@reaches_gateway
def usage_command(gateway: GatewayClient, *, as_json: bool, state_dir: Path | None) -> None:
    """Show the requests and tokens of each API key, today and this month.

    "in" are prompt tokens, "cached" those of them that were found in the prompt cache, and "out"
    the tokens of answers. Without keys nothing is counted.
    """
    if state_dir is None:
        _print_usage(gateway, as_json=as_json)
        return
    with local_gateway(state_dir) as local:
        if local is None:
            raise NobodyListensError(f"No gateway runs with the state folder {state_dir}.")
        _print_usage(local, as_json=as_json)


def _print_usage(gateway: GatewayClient, *, as_json: bool) -> None:
    content = gateway.get("/admin/v1/usage")
    listed = gateway.read(content, UsageList)
    if as_json:
        click.echo(msgspec.json.format(content, indent=2))
    elif not listed.keys:
        click.echo("There are no keys, so nothing was counted: `bulkhead key add NAME` makes one.")
    else:
        stdout_console().print(_usage_table(listed.keys))


def _usage_table(keys: list[KeyUsage]) -> Table:
    table = new_table(2)
    table.add_column("key", overflow="fold")
    table.add_column("", no_wrap=True)
    for heading in ("requests", "in", "cached", "out"):
        table.add_column(heading, justify="right", overflow="fold")
    for key in keys:
        table.add_row(key.name, "today", *_counts(key.today))
        table.add_row("", "this month", *_counts(key.month))
    return table


def _counts(counts: Counts) -> tuple[str, ...]:
    numbers = (
        counts.requests,
        counts.prompt_tokens,
        counts.cached_tokens,
        counts.completion_tokens,
    )
    return tuple(f"{count:,}" for count in numbers)
