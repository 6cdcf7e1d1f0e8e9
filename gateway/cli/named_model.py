"""The model that a NAME on the command line means, and where it comes from."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import click
from msgspec import Struct
from rich.table import Table

from gateway.cli.child_gateway import ChildGateway, is_running, session_gateway
from gateway.cli.client import GatewayClient
from gateway.cli.failure import (
    CommandError,
    NoSuchModelError,
    WrongUseError,
)
from gateway.cli.gateway_access import local_settings
from gateway.cli.models import models_on_disks
from gateway.cli.options import names_gateway
from gateway.cli.output import Column, print_table, printable, size, stderr_console, table_of
from gateway.cli.pull import pull
from gateway.cli.search import about_well_known, find, rest_shown, table
from gateway.config.model_folders import DEMO_ID, find_folder, locate
from gateway.http.wire.command_bodies import ModelBody
from gateway.library.catalogue import ModelOnDisk, look_up
from gateway.library.findings import LONGEST_QUERY
from gateway.library.reference import matches, parse_reference, words_of

_FOLDER_MARKS: Final = ("/", "./", "../", "~")


class Served(Struct, frozen=True):
    """A model that a gateway serves, by its id or alias."""

    name: str


class Missing(Struct, frozen=True):
    """A repository that must be pulled first."""

    repository: str


class Folder(Struct, frozen=True):
    """A folder with a model. A gateway that is started for the folder serves it."""

    path: str


Choice: TypeAlias = Served | Missing | Folder


def served_name(model: ModelBody, name: str) -> str:
    """The name to ask for the model that `name` means: its id. The model of an upstream keeps a
    name without the upstream's, which means every upstream that has the model.
    """
    return name if model.is_upstreams and name in model.aliases else model.id


class _Known(NamedTuple):
    """A model that needs no pull."""

    name: str
    known_as: str
    size_bytes: int | None
    abilities: tuple[str, ...] | None


@contextlib.contextmanager
def serving(
    gateway: GatewayClient, name: str
) -> Iterator[tuple[GatewayClient, ChildGateway | None]]:
    """The gateway that runs; if none does and none was named, one that ends with the context, and
    its process. That one also serves a folder or an unconfigured model of this name.
    """
    if is_running(gateway):
        yield gateway, None
        return
    source = _unconfigured(name)
    with session_gateway(*([] if source is None else ["--model", source])) as running:
        yield running


def _unconfigured(name: str) -> str | None:
    """The folder or repository of this name that a gateway serves only if it is asked to."""
    if (folder := _named_folder(name)) is not None:
        return str(folder)
    settings = local_settings(None)[0]
    if any(name in (model_id, *model.aliases) for model_id, model in settings.models.items()):
        return None
    try:
        source = locate(name)
        find_folder(source)
    except (ValueError, OSError):
        return None
    return name if name in (source, DEMO_ID) else None


def _named_folder(name: str) -> Path | None:
    """The folder with a model that the name means; None: it means no folder.

    Raises:
        NoSuchModelError: the name is a path, and has no model.
    """
    if not (name.startswith(_FOLDER_MARKS) or (name and _has_model(Path(name)))):
        return None
    folder = Path(name).expanduser().resolve()
    # A gateway that is named may run on another machine.
    if not _has_model(folder) and not names_gateway():
        raise NoSuchModelError(f"There is no model in {folder}: it has no config.json.")
    return folder


def _has_model(folder: Path) -> bool:
    return os.path.isfile(folder / "config.json")  # noqa: PTH113 - Path.is_file may raise.


def choose(gateway: GatewayClient, name: str, command: str) -> Choice:
    """The model that the name means; without a name, a model of this machine or a well-known one.
    `command` is what to type instead, if several models are meant and nobody can be asked.

    Raises:
        WrongUseError: several models are meant, and no terminal can be asked.
        NoSuchModelError: no model is meant.
    """
    if (folder := _named_folder(name)) is not None:
        return Folder(str(folder))
    on_disks = [model for model in models_on_disks(gateway) if model.ids]
    usable = [model for model in on_disks if not model.problem]
    if name and (exact := _exact(gateway, name, usable)) is not None:
        return exact
    if "/" in name:
        try:
            return Missing(str(parse_reference(name)))
        except ValueError as error:
            raise NoSuchModelError(str(error)) from error
    words = words_of(name)
    known = [*map(_on_disk, usable), *_elsewhere(gateway, on_disks)]
    meant = [model for model in known if matches(words, model.known_as)]
    if meant:
        chats = [model for model in meant if "text" in (model.abilities or ("text",))] or meant
        title = f"Several models are meant by {name!r}:" if name else "Models here:"
        return Served(chats[_pick(title, _known_table(chats), len(chats), command)].name)
    return _from_hub(gateway, name, command)


def _exact(gateway: GatewayClient, name: str, usable: list[ModelOnDisk]) -> Choice | None:
    """The model with exactly this id, alias or source."""
    if (model := look_up(usable, name)) is not None:
        return Served(model.ids[0])
    try:
        return Served(served_name(gateway.model(name), name))
    except NoSuchModelError:
        return None


def _on_disk(model: ModelOnDisk) -> _Known:
    return _Known(model.name, f"{model.name} {model.source}", model.size_bytes, model.abilities)


def _elsewhere(gateway: GatewayClient, on_disks: list[ModelOnDisk]) -> list[_Known]:
    """The models that are commands, and those of upstreams."""
    listed = {name for model in on_disks for name in model.ids}
    return [
        _Known(model.id, " ".join((model.id, *model.aliases)), None, model.abilities)
        for model in gateway.models()
        if model.is_upstreams or model.id not in listed
    ]


def _from_hub(gateway: GatewayClient, name: str, command: str) -> Choice:
    if len(name) > LONGEST_QUERY:
        raise NoSuchModelError(f"No model's name has {len(name):,} characters.")
    with rest_shown(gateway):
        findings = find(gateway, name)
    usable = [finding for finding in findings.results if finding.can_chat]
    if not usable:
        if not findings.results:
            raise NoSuchModelError(
                f"No model is meant by {name!r}, neither on this machine nor on the hub: try fewer "
                "words, as with `bulkhead search WORDS`."
            )
        print_table(stderr_console(), table(findings.results))
        raise CommandError("None of these models can chat and fits into this machine's memory.")
    choices = table(usable, numbered=True)
    if findings.dated is None:
        title = f"The hub has several models for {name!r}:"
        number = _pick(title, choices, len(usable), command)
    else:
        title = f"There is no model on this machine. {about_well_known(findings)}"
        # The user wanted no model in particular, so Enter alone must not begin a download.
        number = _pick(title, choices, len(usable), command, default=None)
    return Missing(usable[number].repository)


def _known_table(models: Sequence[_Known]) -> Table:
    columns: list[Column[tuple[int, _Known]]] = [
        Column("", lambda row: str(row[0])),
        Column("model", lambda row: printable(row[1].name), "name"),
        Column("size", lambda row: size(row[1].size_bytes)),
    ]
    return table_of(enumerate(models, 1), columns)


def _pick(title: str, choices: Table, count: int, command: str, *, default: int | None = 1) -> int:
    """The index of the choice that the user makes; 0 if there is one choice. `default` is the
    number that Enter alone means; None: it means none.

    Raises:
        WrongUseError: there are several choices, and no terminal.
    """
    if count == 1:
        return 0
    click.echo(printable(title), err=True)
    print_table(stderr_console(), choices)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise WrongUseError(f"Name one of them: {command}.")
    number: int = click.prompt(
        "Which one", type=click.IntRange(1, count), default=default, err=True, prompt_suffix="? "
    )
    return number - 1


def present(gateway: GatewayClient, choice: Choice, *, force: bool = False) -> str:
    """The name by which the gateway serves the model, which is pulled first if it is missing.

    Raises: CommandError: the gateway doesn't serve it, or the pull failed.
    """
    match choice:
        case Served():
            return choice.name
        case Missing():
            reading = pull(gateway, choice.repository, force=force)
            if reading.offered_as is None:
                raise CommandError(
                    f"{choice.repository} is there, and this gateway doesn't serve it: `bulkhead "
                    f"show {choice.repository}` says why."
                )
            return reading.offered_as
        case Folder():
            return _id_of(gateway, choice.path)


def _id_of(gateway: GatewayClient, path: str) -> str:
    for model in models_on_disks(gateway):
        if model.ids and path in (model.folder, model.source):
            return model.ids[0]
    raise NoSuchModelError(
        f"The gateway doesn't serve {path}: give it a table in the configuration "
        f'([models.NAME] path = "{path}"), and run `bulkhead config reload`.'
    )
