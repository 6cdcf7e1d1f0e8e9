"""bulkhead models, list, show and rm: the served models, and the models on the disks

If no gateway runs, `list`, `show` and `rm` ask a temporary one (`child_gateway.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import click
import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from gateway.cli.child_gateway import FOLDER_ID, asks_gateway, folder_gateway
from gateway.cli.client import DISKS, GatewayClient, quoted
from gateway.cli.failure import CommandError, NoSuchModelError
from gateway.cli.gateway_access import local_settings
from gateway.cli.model_table import check_result, disk_state, disk_table, served_table
from gateway.cli.options import (
    NO_MODEL,
    json_option,
    model_argument,
    names_gateway,
    reaches_gateway,
)
from gateway.cli.output import (
    print_json,
    print_table,
    printable,
    stdout_console,
)
from gateway.config.model_folders import check_holds_model, locate
from gateway.library.catalogue import EntryList, ModelOnDisk, Removed
from gateway.system.notation import format_size
from gateway.system.state_dir import lock_holder


def models_on_disks(gateway: GatewayClient) -> list[ModelOnDisk]:
    """The models on the disks of the gateway's machine."""
    return gateway.read(gateway.get("/admin/v1/library", DISKS), EntryList).models


def model_on_disk(gateway: GatewayClient, name: str) -> ModelOnDisk:
    """The model on a disk of the gateway's machine with this id, source or folder."""
    return gateway.read(gateway.get(_path(name), DISKS), ModelOnDisk)


def _path(name: str, kind: str = "library") -> str:
    """The API's path for a model on a disk. The name may be a folder, and begin with a slash."""
    root = "/" if name.startswith("/") else ""
    return f"/admin/v1/{kind}/{root}{quoted(name.removeprefix('/'), name)}"


def located(name: str) -> str | None:
    """The folder or repository on this machine that the name means; None: it has no model."""
    try:
        source = locate(name)
        check_holds_model(source)
    except (ValueError, OSError):
        return None
    return source


def unlisted(name: str) -> ModelOnDisk | None:
    """The model in a folder of this machine that no gateway lists; None: there is none."""
    if (source := located(name)) is None:
        return None
    with folder_gateway(source) as gateway:
        model = model_on_disk(gateway, FOLDER_ID)
    return replace(model, ids=(), aliases=(), configured=(), state=None)


class _RawList(Struct):
    """The answer of /v1/models, with the models as they were sent."""

    data: Raw


@click.command("models")
@json_option
@reaches_gateway
def models_command(gateway: GatewayClient, *, as_json: bool) -> None:
    """List the models that are served: state, size, context, aliases and last use.

    "size" is the size of the files. "context" is the context in force; for a model that isn't
    loaded, it is the longest that the model supports.
    """
    if as_json:
        listed = gateway.read(gateway.get("/v1/models"), _RawList)
        click.echo(msgspec.json.format(bytes(listed.data), indent=2))
        return
    models = gateway.models()
    if not models:
        click.echo(NO_MODEL, err=True)
        return
    print_table(stdout_console(), served_table(models, _on_disks(gateway), time.time()))


def _on_disks(gateway: GatewayClient) -> dict[str, ModelOnDisk]:
    """The models on disks, by id. Empty without the admin key, or if the disks are too slow."""
    try:
        return {name: model for model in models_on_disks(gateway) for name in model.ids}
    except CommandError:
        return {}


@click.command("list")
@json_option
@asks_gateway
def list_command(gateway: GatewayClient, *, as_json: bool) -> None:
    """List the models on the disks: in the Hugging Face cache and in configured folders.

    Complete models are served under the id that is shown. `bulkhead show` says why a model is not
    served.
    """
    models = models_on_disks(gateway)
    if as_json:
        print_json(models)
        return
    if not models:
        click.echo(
            "There is no model on the disks: `bulkhead run` finds one and pulls it.",
            err=True,
        )
        return
    print_table(stdout_console(), disk_table(models, time.time()))


@click.command("show")
@model_argument
@json_option
@asks_gateway
def show_command(gateway: GatewayClient, *, model: str, as_json: bool) -> None:
    """Show the properties of a model on a disk.

    MODEL is an id, a repository or a folder.
    """
    try:
        seen = model_on_disk(gateway, model)
    except NoSuchModelError:
        if names_gateway() or (folder := unlisted(model)) is None:
            raise
        seen = folder
    if as_json:
        print_json(seen)
        return
    context = None if seen.context_tokens is None else f"{seen.context_tokens:,} tokens"
    parts = f", of which {format_size(seen.part_bytes)} of an unfinished pull"
    renamed = f" (its plain name was that of {seen.name_holder} before)"
    rows = {
        "source": seen.source,
        "ids": (", ".join(seen.ids) or "none") + (renamed if seen.name_holder else ""),
        "aliases": ", ".join(seen.aliases) or None,
        "state": disk_state(seen),
        "problem": seen.problem,
        "path": seen.path,
        "size": format_size(seen.size_bytes) + (parts if seen.part_bytes else ""),
        "architecture": seen.architecture,
        "quantization": seen.quantization,
        "context": context,
        "chat template": "yes" if seen.has_template else "no",
        "can": ", ".join(seen.abilities) or None,
        "system": _by_id(seen, seen.system),
        "defaults": _by_id(seen, seen.defaults),
        "last used": _minute(seen.last_used_at),
        "check": None if seen.check is None else check_result(seen.check),
        "configured": ", ".join(seen.configured) or "no, found",
    }
    for name, value in rows.items():
        if value is not None:
            click.echo(f"{name:<14} {printable(value)}")


def _minute(at: float | None) -> str:
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _by_id(model: ModelOnDisk, texts: Mapping[str, str]) -> str | None:
    """The configured texts of a model's ids; None if there are none."""
    if len(model.ids) == 1:
        return next(iter(texts.values()), None)
    return "; ".join(f"{model_id}: {text}" for model_id, text in texts.items()) or None


@click.command("rm")
@model_argument
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@json_option
@asks_gateway
def rm_command(gateway: GatewayClient, *, model: str, yes: bool, as_json: bool) -> None:
    """Remove a model from the disk, or the files of an unfinished pull.

    MODEL is an id, a repository or a folder. A model that is loaded, being pulled, or needed by
    another model is not removed.
    """
    planned = gateway.read(gateway.get(_path(model, "removals"), DISKS), Removed)
    if gateway.ends_with_command and (pid := lock_holder(local_settings(None)[1].path)):
        raise CommandError(
            f"A gateway runs (pid {pid}), which may have the model loaded: name the gateway with "
            "--url."
        )
    if not yes:
        question = (
            f"Remove {printable(planned.source)} and free {format_size(planned.reclaimed_bytes)}?"
        )
        if not click.confirm(question, err=True):
            raise click.exceptions.Exit(1)
    removed = gateway.read(gateway.send("DELETE", _path(planned.source)), Removed)
    if as_json:
        print_json(removed)
        return
    click.echo(
        f"{printable(removed.source)} is removed: {format_size(removed.reclaimed_bytes)} freed"
    )
