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

from gateway.cli.child_gateway import ChildGateway
from gateway.cli.client import GatewayClient
from gateway.cli.failure import (
    CommandError,
    NobodyListensError,
    NoSuchModelError,
    WrongUseError,
)
from gateway.cli.gateway_access import local_settings
from gateway.cli.models import ModelsOnDisks
from gateway.cli.options import names_gateway
from gateway.cli.output import new_table, print_table, printable, size, stderr_console
from gateway.cli.own_gateway import is_running, own_gateway
from gateway.cli.pull import pull
from gateway.cli.search import about_well_known, find, rest_shown, table
from gateway.config.model_folders import find_folder, locate
from gateway.http.wire.command_bodies import ModelBody
from gateway.library.catalogue import ModelOnDisk, look_up
from gateway.library.pull_process import parse_reference
from gateway.library.search_process import matches, words_of

_FOLDER_MARKS: Final = ("/", "./", "../", "~")


class Served(Struct, frozen=True):
    """A model that a gateway serves, by its id or alias."""

    name: str


class Missing(Struct, frozen=True):
    """A repository that must be pulled first."""

    repository: str


class Unserved(Struct, frozen=True):
    """A folder with a model, or a repository in the cache, that isn't configured. A gateway that is
    started for it serves it.
    """

    source: str


Choice: TypeAlias = Served | Missing | Unserved


def served_name(model: ModelBody, name: str) -> str:
    """The name to ask for the model, which was found by `name`: its id. The model of an upstream
    keeps a name without the upstream's, which means every upstream that has the model.
    """
    return name if model.is_upstreams and name in model.aliases else model.id


class _Here(NamedTuple):
    """A model that needs no pull."""

    name: str
    known_as: str
    size_bytes: int | None
    abilities: tuple[str, ...] | None


def choose(gateway: GatewayClient, name: str, command: str) -> Choice:
    """The model that the name means; without a name, a model of this machine or a well-known one.
    `command` is what to type instead, if several models are meant and nobody can be asked.

    Raises:
        WrongUseError: several models are meant, and no terminal can be asked.
        NoSuchModelError: no model is meant.
    """
    if name.startswith(_FOLDER_MARKS) or (name and _has_model(Path(name))):
        folder = Path(name).expanduser().resolve()
        # A gateway that is named may run on another machine.
        if not _has_model(folder) and not names_gateway():
            raise NoSuchModelError(f"There is no model in {folder}: it has no config.json.")
        return Unserved(str(folder))
    on_disks = [each for each in ModelsOnDisks(gateway).entries() if each.ids]
    entries = [each for each in on_disks if not each.problem]
    if name and (exact := _exact(gateway, name, entries)) is not None:
        return exact
    if "/" in name:
        try:
            return Missing(str(parse_reference(name)))
        except ValueError as error:
            raise NoSuchModelError(str(error)) from error
    words = words_of(name)
    known = [*map(_on_disk, entries), *_elsewhere(gateway, on_disks)]
    here = [each for each in known if matches(words, each.known_as)]
    if here:
        chats = [each for each in here if "text" in (each.abilities or ("text",))] or here
        title = f"Several models are meant by {name!r}:" if name else "Models here:"
        return Served(chats[_pick(title, _here_table(chats), len(chats), command)].name)
    return _from_hub(gateway, name, command)


def _has_model(folder: Path) -> bool:
    return os.path.isfile(folder / "config.json")  # noqa: PTH113 - Path.is_file may raise.


def _exact(gateway: GatewayClient, name: str, entries: list[ModelOnDisk]) -> Choice | None:
    """The model with exactly this id, alias or source."""
    if (entry := look_up(entries, name)) is not None:
        return Served(entry.ids[0])
    try:
        return Served(served_name(gateway.model(name), name))
    except NoSuchModelError:
        return None
    except NobodyListensError:
        return _without_gateway(name)


def _without_gateway(name: str) -> Choice | None:
    """The model that a gateway of this configuration will have under exactly this name."""
    settings = local_settings(None)[0]
    for model_id, each in settings.models.items():
        if name in (model_id, *each.aliases):
            return Served(model_id)
    if name.partition("/")[0] in settings.upstreams:
        return Served(name)
    try:
        source = locate(name)
        find_folder(source)
    except (ValueError, OSError):
        return None
    return Unserved(source)


def _on_disk(entry: ModelOnDisk) -> _Here:
    known_as = f"{entry.name} {entry.source}"
    return _Here(entry.name, known_as, entry.size_bytes, entry.abilities)


def _elsewhere(gateway: GatewayClient, on_disks: list[ModelOnDisk]) -> list[_Here]:
    """The models that are commands, and if a gateway runs those of upstreams."""
    try:
        models = gateway.models()
    except NobodyListensError:
        return [
            _Here(model_id, " ".join((model_id, *each.aliases)), None, None)
            for model_id, each in local_settings(None)[0].models.items()
            if each.command
        ]
    known = {name for each in on_disks for name in each.ids}
    return [
        _Here(each.id, " ".join((each.id, *each.aliases)), None, each.abilities)
        for each in models
        if each.is_upstreams or each.id not in known
    ]


def _from_hub(gateway: GatewayClient, name: str, command: str) -> Choice:
    with rest_shown(gateway):
        found = find(gateway, name)
    usable = [each for each in found.results if each.can_chat]
    if not usable:
        if not found.results:
            raise NoSuchModelError(
                f"No model is meant by {name!r}, neither on this machine nor on the hub: try fewer "
                "words, as with `bulkhead search WORDS`."
            )
        print_table(stderr_console(), table(found.results))
        raise CommandError("None of these models can chat and fits into this machine's memory.")
    choices = table(usable, numbered=True)
    if found.dated is None:
        title = f"The hub has several models for {name!r}:"
        number = _pick(title, choices, len(usable), command)
    else:
        title = f"There is no model on this machine. {about_well_known(found)}"
        # The user wanted no model in particular, so Enter alone must not begin a download.
        number = _pick(title, choices, len(usable), command, default=None)
    return Missing(usable[number].repository)


def _here_table(entries: Sequence[_Here]) -> Table:
    made = new_table(2)
    made.add_column("", justify="right", no_wrap=True)
    made.add_column("model", overflow="fold")
    made.add_column("size", justify="right", no_wrap=True)
    for number, each in enumerate(entries, 1):
        made.add_row(str(number), printable(each.name), size(each.size_bytes))
    return made


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


@contextlib.contextmanager
def serving(
    gateway: GatewayClient, choice: Choice
) -> Iterator[tuple[GatewayClient, ChildGateway | None]]:
    """The gateway that runs; if none does and none was named, one that ends with the context, and
    its process.
    """
    if is_running(gateway):
        yield gateway, None
        return
    flags = ["--model", choice.source] if isinstance(choice, Unserved) else []
    with own_gateway(*local_settings(None), *flags) as running:
        yield running


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
        case Unserved():
            return _id_of(gateway, choice.source)


def _id_of(gateway: GatewayClient, source: str) -> str:
    for entry in ModelsOnDisks(gateway).entries():
        if entry.ids and source in (entry.folder, entry.source):
            return entry.ids[0]
    raise NoSuchModelError(
        f"The gateway doesn't serve {source}: give it a table in the configuration "
        f'([models.NAME] path = "{source}"), and run `bulkhead config reload`.'
    )
