"""bulkhead models, list, show and rm: the served models, and the models on the disks"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import click
import msgspec
from msgspec import Raw, Struct
from rich.table import Table

from gateway.cli.client import DISKS, GatewayClient, quoted
from gateway.cli.failure import CommandError, NobodyListensError, NoSuchModelError
from gateway.cli.options import (
    NO_MODEL,
    json_option,
    model_argument,
    names_gateway,
    reaches_gateway,
)
from gateway.cli.output import (
    UNKNOWN,
    ago,
    new_table,
    print_json,
    print_table,
    printable,
    size,
    stdout_console,
)
from gateway.config.layers import ConfigError
from gateway.config.model_folders import check_holds_model, find_folder, locate
from gateway.config.read import read_configuration
from gateway.config.settings import Flags
from gateway.http.wire.command_bodies import ModelBody
from gateway.library.catalogue import (
    EntryList,
    ModelOnDisk,
    Removed,
    Used,
    catalogue,
    check_own_folder,
    found_at,
    look_up,
    objection,
    put_aside,
    remove,
    unknown,
    with_configured,
)
from gateway.library.finder import Finder
from gateway.system.notation import format_size
from gateway.system.state_dir import StateDir, lock_holder
from gateway.system.state_file import read_state

T = TypeVar("T")


def _asked(gateway: GatewayClient) -> list[ModelOnDisk]:
    """The models on the disks of the gateway's machine."""
    return gateway.read(gateway.get("/admin/v1/library", DISKS), EntryList).models


class ModelsOnDisks:
    """The models on the disks of the gateway's machine. If no gateway runs and none was named, the
    disks of this machine are read.
    """

    def __init__(self, gateway: GatewayClient) -> None:
        self._gateway = gateway

    def entries(self) -> list[ModelOnDisk]:
        return self._either(_asked, lambda here: here.all)

    def entry(self, name: str) -> ModelOnDisk:
        """A model by its id, repository or folder, which may be any folder of this machine."""
        try:
            return self._either(
                lambda gateway: gateway.read(gateway.get(_path(name), DISKS), ModelOnDisk),
                lambda here: here.find(name),
            )
        except NoSuchModelError:
            if names_gateway() or (entry := _Here().in_folder(name)) is None:
                raise
            return entry

    def removal(self, name: str) -> Removed:
        """The effect that `remove` would have. Raises: CommandError: `remove` would fail."""
        return self._either(
            lambda gateway: gateway.read(gateway.get(_path(name, "removals"), DISKS), Removed),
            lambda here: here.removal(name),
        )

    def remove(self, name: str) -> Removed:
        return self._either(
            lambda gateway: gateway.read(gateway.send("DELETE", _path(name)), Removed),
            lambda here: here.remove(name),
        )

    def _either(self, ask: Callable[[GatewayClient], T], look: Callable[[_Here], T]) -> T:
        try:
            return ask(self._gateway)
        except NobodyListensError:
            if names_gateway():
                raise
        return look(_Here())


def _path(name: str, kind: str = "library") -> str:
    """The API's path for a model on a disk. The name may be a folder, and begin with a slash."""
    root = "/" if name.startswith("/") else ""
    return f"/admin/v1/{kind}/{root}{quoted(name.removeprefix('/'), name)}"


class _Here:
    """The models on the disks of this machine, without a gateway."""

    def __init__(self) -> None:
        finder = Finder()
        try:
            read = read_configuration(Flags(), os.environ)
        except ConfigError as error:
            raise CommandError(str(error)) from error
        settings = read.settings
        self._state_dir = StateDir.at(settings.gateway.state_dir)
        finder.recall(self._state_dir.names_path)
        self._configuration = finder.with_found(read)
        used = read_state(self._state_dir.used_path, Used) or Used({})
        found = with_configured(finder.find(settings), self._configuration)
        self.all = catalogue(found, self._configuration, {}, used.at)

    def find(self, name: str) -> ModelOnDisk:
        if (entry := look_up(self.all, name)) is None:
            raise NoSuchModelError(unknown(self.all, name))
        return entry

    def in_folder(self, name: str) -> ModelOnDisk | None:
        """The model that a worker would load by this name, which needn't be listed."""
        try:
            source = locate(name)
            check_holds_model(source)
            path = find_folder(source)
        except (ValueError, OSError):
            return None
        unlisted = catalogue([found_at(source, path)], self._configuration, {}, {})
        return look_up([*self.all, *unlisted], source)

    def removal(self, name: str) -> Removed:
        entry = self._removable(name)
        return Removed(entry.source, entry.freed_bytes)

    def remove(self, name: str) -> Removed:
        entry = self._removable(name)
        try:
            remove(put_aside(entry), entry)
        except OSError as error:
            raise CommandError(f"{entry.source} can't be removed: {error}") from error
        return Removed(entry.source, entry.freed_bytes)

    def _removable(self, name: str) -> ModelOnDisk:
        entry = self.find(name)
        if (pid := lock_holder(self._state_dir.path)) is not None:
            raise CommandError(
                f"A gateway runs (pid {pid}), which may have the model loaded: name the gateway "
                "with --url."
            )
        if (reason := objection(entry, self._configuration, {}, None)) is not None:
            raise CommandError(reason)
        try:
            check_own_folder(entry)
        except ValueError as error:
            raise CommandError(str(error)) from error
        return entry


class _RawList(Struct):
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
    print_table(stdout_console(), _table(models, _on_disks(gateway)))


def _on_disks(gateway: GatewayClient) -> dict[str, ModelOnDisk]:
    """The models on disks, by id. Empty without the admin key, or if the disks are too slow."""
    try:
        return {name: each for each in _asked(gateway) for name in each.ids}
    except CommandError:
        return {}


def _table(models: list[ModelBody], entries: dict[str, ModelOnDisk]) -> Table:
    table = new_table(2)
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
            # `model` has only uses since the gateway's start, `entry` has earlier uses, too.
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

    Complete models are served under the id that is shown. `bulkhead show` says why a model is not
    served.
    """
    entries = ModelsOnDisks(gateway).entries()
    if as_json:
        print_json(entries)
        return
    if not entries:
        click.echo(
            "There is no model on the disks: `bulkhead run` finds and pulls one.",
            err=True,
        )
        return
    table = new_table(2)
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
    """Show the properties of a model on a disk.

    MODEL is an id, a repository or a folder.
    """
    entry = ModelsOnDisks(gateway).entry(model)
    if as_json:
        print_json(entry)
        return
    context = None if entry.context_tokens is None else f"{entry.context_tokens:,} tokens"
    parts = f", of which {format_size(entry.part_bytes)} of an unfinished pull"
    kept = f" (its plain name was that of {entry.name_kept_by} before)"
    rows = {
        "source": entry.source,
        "ids": (", ".join(entry.ids) or "none") + (kept if entry.name_kept_by else ""),
        "aliases": ", ".join(entry.aliases) or None,
        "state": state(entry),
        "problem": entry.problem,
        "path": entry.path,
        "size": format_size(entry.size_bytes) + (parts if entry.part_bytes else ""),
        "architecture": entry.architecture,
        "quantization": entry.quantization,
        "context": context,
        "chat template": "yes" if entry.has_template else "no",
        "can": ", ".join(entry.abilities) or None,
        "system": _by_id(entry, entry.system),
        "defaults": _by_id(entry, entry.defaults),
        "last used": used(entry),
        "configured": ", ".join(entry.configured) or "no, found",
    }
    for name, value in rows.items():
        if value is not None:
            click.echo(f"{name:<14} {printable(value)}")


def _by_id(entry: ModelOnDisk, texts: Mapping[str, str]) -> str | None:
    """What the ids of a model are configured with; None if none of them is."""
    if len(entry.ids) == 1:
        return next(iter(texts.values()), None)
    return "; ".join(f"{model_id}: {text}" for model_id, text in texts.items()) or None


@click.command("rm")
@model_argument
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@json_option
@reaches_gateway
def rm_command(gateway: GatewayClient, *, model: str, yes: bool, as_json: bool) -> None:
    """Remove a model from the disk, or the files of an unfinished pull.

    MODEL is an id, a repository or a folder. A model that is loaded, being pulled, or needed by
    another model is not removed.
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
        print_json(removed)
        return
    click.echo(f"{printable(removed.source)} is gone: {format_size(removed.reclaimed_bytes)} free")
