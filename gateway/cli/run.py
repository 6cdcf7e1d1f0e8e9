"""bulkhead run"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import click
from msgspec import Struct
from rich.table import Table
from rich.text import Text

from gateway.cli.chat import chat
from gateway.cli.client import GatewayClient
from gateway.cli.completion import complete_model
from gateway.cli.conversation import Conversation, Parameters
from gateway.cli.failure import (
    CommandError,
    NobodyListensError,
    NoSuchModelError,
    WrongUseError,
)
from gateway.cli.gateway_access import local_settings
from gateway.cli.models import ModelsOnDisks
from gateway.cli.options import names_gateway, reaches_gateway
from gateway.cli.output import new_table, print_table, printable, size, stderr_console
from gateway.cli.own_gateway import is_running, own_gateway
from gateway.cli.pull import pull
from gateway.cli.search import about_well_known, find, table
from gateway.http.command_bodies import OrderOptions
from gateway.library.catalogue import ModelOnDisk, look_up
from gateway.library.pull_process import parse_reference
from gateway.library.search_process import matches, words_of

_FOLDER_MARKS: Final = ("/", "./", "../", "~")


class _Served(Struct, frozen=True):
    """A model that a gateway serves, by its id or alias."""

    model_id: str


class _Missing(Struct, frozen=True):
    """A repository that must be pulled first."""

    repository: str


class _Folder(Struct, frozen=True):
    """A folder with a model. A gateway that is started for it serves it."""

    path: Path


_Choice: TypeAlias = _Served | _Missing | _Folder


@click.command("run")
@click.argument("name", nargs=-1, metavar="[NAME]...", shell_complete=complete_model)
@click.option("--system", metavar="TEXT", help="System message: instructions for the model.")
@click.option("--force", is_flag=True, help="Pull even a model that won't fit into memory.")
@reaches_gateway
def run_command(
    gateway: GatewayClient, *, name: tuple[str, ...], system: str | None, force: bool
) -> None:
    """Chat with a model; pull and load it first if it is missing.

    NAME is an id, a repository, a folder, or parts of a name, such as qwen3 4b. Models on this
    machine come before those of the hub. If several are meant, a terminal asks; otherwise they are
    listed, with exit status 2. Without NAME, the models of this machine are meant, or well-known
    ones if it has none.

    If no gateway runs, one is started for this chat, and ends with it. The chat is that of
    `bulkhead chat`.
    """
    choice = _chosen(gateway, " ".join(name))
    with _serving(gateway, choice) as serving:
        model_id = _ready(serving, choice, force=force)
        chat(serving, Conversation(serving, model_id, system, Parameters()))


def _chosen(gateway: GatewayClient, name: str) -> _Choice:
    """The model that the name means; without a name, a model of this machine or a well-known one.

    Raises:
        WrongUseError: several models are meant, and no terminal can be asked.
        NoSuchModelError: no model is meant.
    """
    if name.startswith(_FOLDER_MARKS) or (name and _has_model(Path(name))):
        folder = Path(name).expanduser().resolve()
        # A gateway that is named may run on another machine.
        if not _has_model(folder) and not names_gateway():
            raise NoSuchModelError(f"There is no model in {folder}: it has no config.json.")
        return _Folder(folder)
    entries = [each for each in ModelsOnDisks(gateway).entries() if each.ids and not each.problem]
    if name and (exact := _exact(gateway, name, entries)) is not None:
        return exact
    if "/" in name:
        try:
            return _Missing(str(parse_reference(name)))
        except ValueError as error:
            raise NoSuchModelError(str(error)) from error
    words = words_of(name)
    here = [each for each in entries if matches(words, f"{each.name} {each.source}")]
    if here:
        chats = [each for each in here if "text" in each.abilities] or here
        title = f"Several models of this machine are meant by {name!r}:" if name else "Models here:"
        return _Served(chats[_pick(title, _here_table(chats), len(chats))].ids[0])
    return _from_hub(gateway, name)


def _has_model(folder: Path) -> bool:
    return os.path.isfile(folder / "config.json")  # noqa: PTH113 - Path.is_file may raise.


def _exact(gateway: GatewayClient, name: str, entries: list[ModelOnDisk]) -> _Served | None:
    """The model with exactly this id, alias or source."""
    if (entry := look_up(entries, name)) is not None:
        return _Served(entry.ids[0])
    try:
        return _Served(gateway.model(name).id)
    except NoSuchModelError:
        return None
    except NobodyListensError:
        models = local_settings(None)[0].models
        aliased = (key for key, each in models.items() if name in (key, *each.aliases))
        return next(map(_Served, aliased), None)


def _from_hub(gateway: GatewayClient, name: str) -> _Choice:
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
        number = _pick(f"The hub has several models for {name!r}:", choices, len(usable))
    else:
        title = f"There is no model on this machine. {about_well_known(found)}"
        # The user wanted no model in particular, so Enter alone must not begin a download.
        number = _pick(title, choices, len(usable), default=None)
    chosen = usable[number]
    return _Missing(chosen.repository)


def _here_table(entries: Sequence[ModelOnDisk]) -> Table:
    made = new_table(2)
    made.add_column("", justify="right", no_wrap=True)
    made.add_column("model", overflow="fold")
    made.add_column("size", justify="right", no_wrap=True)
    for number, each in enumerate(entries, 1):
        made.add_row(str(number), printable(each.name), size(each.size_bytes))
    return made


def _pick(title: str, choices: Table, count: int, *, default: int | None = 1) -> int:
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
        raise WrongUseError("Name one of them: bulkhead run NAME.")
    number: int = click.prompt(
        "Which one", type=click.IntRange(1, count), default=default, err=True, prompt_suffix="? "
    )
    return number - 1


@contextlib.contextmanager
def _serving(gateway: GatewayClient, choice: _Choice) -> Iterator[GatewayClient]:
    """The gateway that runs; if none does and none was named, one that ends with the context."""
    if is_running(gateway):
        yield gateway
        return
    flags = ["--model", str(choice.path)] if isinstance(choice, _Folder) else []
    with own_gateway(*local_settings(None), *flags) as (client, _):
        yield client


def _ready(gateway: GatewayClient, choice: _Choice, *, force: bool) -> str:
    """Pull the model if it is missing, and load it. Return its id. Raises: CommandError."""
    match choice:
        case _Served():
            model_id = choice.model_id
        case _Missing():
            reading = pull(gateway, choice.repository, force=force)
            if reading.offered_as is None:
                raise CommandError(
                    f"{choice.repository} is there, and this gateway doesn't serve it: `bulkhead "
                    f"show {choice.repository}` says why."
                )
            model_id = reading.offered_as
        case _Folder():
            model_id = _id_of(gateway, choice.path)
    console = stderr_console()
    with console.status(Text(f"{printable(model_id)}: loading")):
        return gateway.order("load", model_id, OrderOptions()).id


def _id_of(gateway: GatewayClient, folder: Path) -> str:
    for entry in ModelsOnDisks(gateway).entries():
        if entry.ids and folder in (Path(entry.path).resolve(), Path(entry.source)):
            return entry.ids[0]
    raise NoSuchModelError(
        f"The gateway doesn't serve the folder {folder}: give it a table in the configuration "
        f'([models.NAME] path = "{folder}"), and run `bulkhead config reload`.'
    )
