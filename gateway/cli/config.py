"""bulkhead config"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec
from msgspec import Struct

from gateway.cli import UncutGroup
from gateway.cli.client import GatewayClient
from gateway.cli.options import json_option, reaches_gateway, takes_flags
from gateway.cli.output import (
    new_table,
    print_json,
    printable,
    stderr_console,
    stdout_console,
)
from gateway.config.documents import example, schema
from gateway.config.layers import ConfigError, Mistake, ValueSource
from gateway.config.machine_rules import network_cautions
from gateway.config.read import Configuration, raise_misfits, read_configuration
from gateway.config.settings import Flags
from gateway.config.tables import KeyDefinition, Reloaded, keys_of, label, tables_of
from gateway.config.toml_locations import Place
from gateway.memory.fitting import Learned, budget_bytes
from gateway.memory.forecast import misfits
from gateway.system.state_dir import StateDir, default_state_dir


@click.command("reload")
@json_option
@reaches_gateway
def reload_command(gateway: GatewayClient, *, as_json: bool) -> None:
    """Let the gateway read its configuration again.

    Only changed models are touched. A file with mistakes changes nothing.
    """
    content = gateway.send("POST", "/admin/v1/reload")
    if as_json:
        click.echo(msgspec.json.format(content, indent=2))
        return
    reloaded = gateway.read(content, Reloaded)
    lines = [
        *(f"added {model_id}" for model_id in reloaded.added),
        *(f"removed {model_id}" for model_id in reloaded.removed),
        *(f"changed {name}: {', '.join(keys)}" for name, keys in reloaded.changed.items()),
        *(f"changed {key}" for key in reloaded.applied),
        *(f"{key} takes a restart of the gateway" for key in reloaded.needs_restart),
        *reloaded.names,
        *(f"{name} stays failed: `bulkhead load {name}` tries again" for name in reloaded.failed),
    ]
    for line in lines or ["nothing has changed"]:
        click.echo(printable(line))


_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Origin(Struct):
    """The source of a value, as JSON. A field that this kind of source doesn't have is null."""

    source: str
    file: str | None
    line: int | None
    name: str | None


class PrintedMistake(Origin):
    key: str
    message: str


class PrintedValue(Origin):
    key: str
    value: Any


@click.group("config", cls=UncutGroup)
def config_command() -> None:
    """Check, show, write and reload configuration files."""


config_command.add_command(reload_command)


@config_command.command("check")
@_json_option
@takes_flags
def check(flags: Flags, *, as_json: bool) -> None:
    """Print every mistake with its file, line and key.

    Takes the options of serve. Ends with status 1 if there are mistakes.
    """
    try:
        configuration = read_configuration(flags, os.environ)
        _check_groups(configuration)
    except ConfigError as error:
        _print_mistakes(error.mistakes, as_json=as_json)
        sys.exit(1)
    if configuration.absent:
        _print_mistakes([*configuration.absent.values()], as_json=as_json)
        if not as_json:
            _say("`bulkhead serve` starts all the same, and serves the other models.")
        sys.exit(1)
    cautions = list(network_cautions(configuration.settings.gateway))
    if as_json:
        file = None if configuration.file is None else str(configuration.file)
        models = list(configuration.located)
        print_json({"file": file, "mistakes": [], "cautions": cautions, "models": models})
    else:
        _say(_summary(configuration))
        for caution in cautions:
            _say(f"Careful: {caution}")


def _check_groups(configuration: Configuration) -> None:
    """Raises: ConfigError: the budget has no room for a group."""
    settings = configuration.settings
    if settings.groups:
        state_dir = StateDir.of(settings.gateway.state_dir)
        learned = Learned(state_dir.learned_path)
        raise_misfits(configuration, misfits(settings, budget_bytes(settings.memory), learned))


@config_command.command("show")
@_json_option
@takes_flags
def show(flags: Flags, *, as_json: bool) -> None:
    """Show every value in force, and its source.

    Takes the options of serve.
    """
    try:
        configuration = read_configuration(flags, os.environ)
    except ConfigError as error:
        _print_mistakes(error.mistakes, as_json=as_json, err=True)
        sys.exit(1)
    if as_json:
        print_json(
            [
                PrintedValue(
                    **_origin(configuration.source(place)),
                    key=label(place),
                    value=_effective(place, value),
                )
                for place, _, value in _values(configuration)
            ]
        )
    else:
        _print_values(configuration)


@config_command.command("example")
def print_example() -> None:
    """Print a complete file with every key explained."""
    click.echo(example(), nl=False)


@config_command.command("schema")
def print_schema() -> None:
    """Print a JSON schema, for editors that know TOML."""
    print_json(schema())


def _values(configuration: Configuration) -> Iterator[tuple[Place, KeyDefinition, Any]]:
    """The place, the definition and the value of every key."""
    for table, section in tables_of(configuration.settings):
        for name, definition in keys_of(type(section)).items():
            yield (*table, name), definition, getattr(section, name)


def _print_values(configuration: Configuration) -> None:
    console = stdout_console()
    if configuration.file is not None:
        console.print(printable(f"File {configuration.file}"))
    table = new_table(1)
    for heading in ("key", "value", "source"):
        table.add_column(heading, overflow="fold")
    for place, definition, value in _values(configuration):
        table.add_row(
            printable(label(place)),
            printable(definition.shown(_effective(place, value))),
            printable(_short(configuration.source(place), configuration)),
        )
    console.print(table)


def _effective(place: Place, value: Any) -> Any:
    if place == ("gateway", "state_dir") and value is None:
        return str(default_state_dir())
    return value


def _short(source: ValueSource, configuration: Configuration) -> str:
    """The text of a source. The file's folder is left out: the line above the table has it."""
    if source.kind == "file" and configuration.file is not None:
        return f"{configuration.file.name}:{source.line}"
    return str(source)


def _print_mistakes(mistakes: Sequence[Mistake], *, as_json: bool, err: bool = False) -> None:
    if as_json:
        printed = [
            PrintedMistake(**_origin(mistake.source), key=mistake.key, message=mistake.message)
            for mistake in mistakes
        ]
        print_json({"mistakes": printed})
        return
    for mistake in mistakes:
        _say(str(mistake), err=err)
    _say(f"{len(mistakes)} mistake{'' if len(mistakes) == 1 else 's'}.", err=err)


def _origin(source: ValueSource) -> dict[str, Any]:
    in_file = source.kind == "file"
    return {
        "source": source.kind,
        "file": source.name if in_file else None,
        "line": source.line,
        "name": None if in_file else source.name or None,
    }


def _summary(configuration: Configuration) -> str:
    file = (
        "No configuration file" if configuration.file is None else f"{configuration.file} is good"
    )
    if not configuration.located:
        return f"{file}: no models of its own; serve offers those that `bulkhead list` finds."
    models = list(configuration.located)
    return f"{file}: {len(models)} model{'' if len(models) == 1 else 's'} ({', '.join(models)})."


def _say(text: str, *, err: bool = False) -> None:
    """Print the text as one line, which a terminal shows broken between words."""
    console = stderr_console() if err else stdout_console()
    console.print(printable(text.replace("\n", " ")), soft_wrap=not console.is_terminal)
