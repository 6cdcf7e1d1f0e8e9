"""bulkhead models"""

from __future__ import annotations

import time

import click
import msgspec
from msgspec import Raw, Struct
from rich.table import Table

from gateway.cli.client import GatewayClient
from gateway.cli.disks import ModelsOnDisks, asked
from gateway.cli.failure import CommandError
from gateway.cli.options import json_option, model_argument, reaches_gateway
from gateway.cli.output import UNKNOWN, ago, print_table, printable, size, stdout_console
from gateway.http.command_bodies import ModelBody
from gateway.library.catalogue import ModelOnDisk
from gateway.system.notation import format_size


class _RawList(Struct):
    data: Raw


@click.command("models")
@json_option
@reaches_gateway
def models_command(gateway: GatewayClient, *, as_json: bool) -> None:
    """List the models that are served: state, size, context, aliases and last use.

    The size is that of the files. The context is the one in force; of a model that isn't loaded it
    is the longest that the model knows.
    """
    if as_json:
        listed = gateway.read(gateway.get("/v1/models"), _RawList)
        click.echo(msgspec.json.format(bytes(listed.data), indent=2))
        return
    models = gateway.models()
    print_table(stdout_console(), _table(models, _on_disks(gateway)))


def _on_disks(gateway: GatewayClient) -> dict[str, ModelOnDisk]:
    """By ids. Only operators may ask for it, and disks may be slow: the rest is told without."""
    try:
        return {name: each for each in asked(gateway) for name in each.ids}
    except CommandError:
        return {}


def _table(models: list[ModelBody], entries: dict[str, ModelOnDisk]) -> Table:
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


@click.command("list")
@json_option
@reaches_gateway
def list_command(gateway: GatewayClient, *, as_json: bool) -> None:
    """List the models on the disks: in the Hugging Face cache and in configured folders.

    Complete models are served under the id that is shown. `bulkhead show` says why another one is
    not.
    """
    entries = ModelsOnDisks(gateway).entries()
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


def used(entry: ModelOnDisk) -> str:
    if entry.last_used_at is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used_at))


def state(entry: ModelOnDisk) -> str:
    if entry.problem is not None and entry.part_bytes:
        return "unfinished"
    return entry.state or ("served" if entry.ids and entry.problem is None else "not served")


@click.command("show")
@model_argument
@json_option
@reaches_gateway
def show_command(gateway: GatewayClient, *, model: str, as_json: bool) -> None:
    """Show what is known of a model on a disk.

    MODEL is an id, a repository or a folder.
    """
    entry = ModelsOnDisks(gateway).entry(model)
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


@click.command("rm")
@model_argument
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@json_option
@reaches_gateway
def rm_command(gateway: GatewayClient, *, model: str, yes: bool, as_json: bool) -> None:
    """Remove a model from the disk, or what an unfinished pull has left.

    MODEL is an id, a repository or a folder. What is loaded, being pulled, or needed by another
    model stays.
    """
    disks = ModelsOnDisks(gateway)
    planned = disks.removal(model)
    if not yes:
        what = (
            f"Remove {printable(planned.source)} and free {format_size(planned.reclaimed_bytes)}?"
        )
        if not click.confirm(what, err=True):
            raise click.exceptions.Exit(1)
    removed = disks.remove(planned.source)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(removed), indent=2))
        return
    click.echo(f"{printable(removed.source)} is gone: {format_size(removed.reclaimed_bytes)} free")
