"""bulkhead logs and events"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.text import Text

from gateway.cli.client import GatewayClient, ServerSentEvent, quoted
from gateway.cli.completion import complete_model
from gateway.cli.failure import CommandError, NoGatewayError, NoSuchModelError
from gateway.cli.gateway_access import local_settings
from gateway.cli.options import names_gateway, reaches_gateway, state_dir_option
from gateway.cli.output import printable, stdout_console
from gateway.config.settings import Settings
from gateway.system.log_files import LogReader, stamp_of
from gateway.system.log_lines import as_json as json_line
from gateway.system.log_lines import escaped, human, local_time, parsed, since_stamp
from gateway.system.notation import nearest_model, suggestion

_TAB: Final = 8
_STYLES: Final = {"warning": "yellow", "error": "red", "critical": "bold red"}


class LogPrinter:
    """Prints log lines: of the workers of `model`, or of the gateway if `model` is None."""

    def __init__(self, model: str | None, *, as_json: bool) -> None:
        self._model = model
        self._as_json = as_json
        self._console = None if as_json or not sys.stdout.isatty() else stdout_console()

    def print(self, line: str) -> None:
        entry = parsed(line) if self._model is None else None
        if self._as_json:
            text = json_line(self._worker_entry(line) if entry is None else entry)
        else:
            text = _worker_text(line) if entry is None else human(entry)
        if self._console is None:
            click.echo(text)
        else:
            style = _STYLES.get(str((entry or {}).get("level")), "")
            self._console.print(Text(text, style, overflow="fold"))

    def _worker_entry(self, line: str) -> dict[str, str | None]:
        at, text = _split(line)
        return {"time": at, "model": self._model, "text": text}


def _worker_text(line: str) -> str:
    """A worker's line without its colours and control characters."""
    at, text = _split(line)
    text = escaped(click.unstyle(text).expandtabs(_TAB))
    return text if at is None else f"{local_time(at)} {text}"


def _split(line: str) -> tuple[str | None, str]:
    """The time of a worker's line, and the text that the worker printed."""
    at = stamp_of(line)
    return at, line if at is None else line.removeprefix(at).removeprefix(" ")


_DEFAULT_LINES: Final = 200
_ALL_LINES: Final = 999_999_999
_POLL_S: Final = 0.2


def _check_since(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> str | None:
    try:
        return None if text is None else since_stamp(text, time.time())
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command("logs")
@click.argument("model", metavar="[MODEL]", required=False, shell_complete=complete_model)
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option(
    "--since", callback=_check_since, help="Begin at a time: 10m or 2h ago, or an ISO 8601 time."
)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    help=f"How many of the last lines to begin with [{_DEFAULT_LINES}, or all with --since].",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@state_dir_option
@reaches_gateway
def logs_command(
    gateway: GatewayClient,
    *,
    model: str | None,
    follow: bool,
    since: str | None,
    lines: int | None,
    as_json: bool,
    state_dir: Path | None,
) -> None:
    """Print the gateway's log, or with MODEL the output of that model's workers.

    The log is read from the state folder, so the gateway needn't run. With --url, or if the folder
    has no such log, the gateway is asked.
    """
    if lines is None:
        lines = _DEFAULT_LINES if since is None else _ALL_LINES
    printer = LogPrinter(model, as_json=as_json)
    path = None if names_gateway() and state_dir is None else _log_path(model, state_dir, gateway)
    if path is None:
        _print_answer(gateway, printer, model, lines, since, follow=follow)
        return
    print_file(path, printer, lines, since, follow=follow)


def _log_path(model: str | None, state_dir: Path | None, gateway: GatewayClient) -> Path | None:
    """The log's file, which may not exist yet. None: a gateway answers, and must be asked.

    Raises:
        NoSuchModelError: the model has no log, and the configuration doesn't know it.
        NoGatewayError: the state folder has no log of a gateway, and no gateway answers.
    """
    settings, folder = local_settings(state_dir)
    model_id = _model_id(model, settings)
    path = folder.gateway_log_path if model_id is None else folder.log_path(model_id)
    if _exists(path):
        return path
    unanswered = ""
    if state_dir is None:
        try:
            gateway.get("/livez")
            return None
        except NoGatewayError as error:
            unanswered = f" {error.message}"
    if model_id in settings.models:
        return path
    if model is None:
        raise NoGatewayError(f"There is no gateway's log in {folder.logs}.{unanswered}")
    raise NoSuchModelError(
        f"There is no log of a model {model!r} in {folder.logs}, and the configuration doesn't "
        f"know it.{suggestion(nearest_model(model, settings.models))}"
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # The name is too long for a file, so no model has it.


def _model_id(model: str | None, settings: Settings) -> str | None:
    """The id of the model with this id or alias; an unknown name stays as it is."""
    aliases = {
        alias: model_id
        for model_id, model_settings in settings.models.items()
        for alias in model_settings.aliases
    }
    return model if model is None else aliases.get(model, model)


def print_file(
    path: Path, printer: LogPrinter, lines: int, since: str | None, *, follow: bool
) -> None:
    """Print the last lines of a log. With `follow`, go on with new lines until Ctrl-C."""
    for line in _lines(path, lines, since, follow=follow):
        printer.print(line)


def _lines(path: Path, lines: int, since: str | None, *, follow: bool) -> Iterator[str]:
    try:
        with LogReader(path) as reader:
            yield from reader.last(lines, since)
            while follow:
                new = reader.read()
                yield from new
                if not new:
                    time.sleep(_POLL_S)
    except OSError as error:
        raise CommandError(f"The log {path} can't be read: {error.strerror}.") from error


def _print_answer(
    gateway: GatewayClient,
    printer: LogPrinter,
    model: str | None,
    lines: int,
    since: str | None,
    *,
    follow: bool,
) -> None:
    # The path of the gateway's log, or of a model's log.
    path = "/admin/v1" + ("" if model is None else f"/models/{quoted(model)}") + "/logs"
    query: dict[str, str | int] = {"lines": lines}
    if since is not None:
        query["since"] = since
    if not follow:
        for line in gateway.get(path, query=query).decode("utf-8", "replace").split("\n")[:-1]:
            printer.print(line)
        return
    with gateway.stream("GET", path, query={"follow": 1, **query}) as events:
        for event in events:
            if event.kind == "message":
                printer.print(event.data)


# Fields that a line doesn't have as key=value: they stand before these pairs or are left out.
_PLACED: Final = ("id", "at", "event", "model")


@click.command("events")
@click.option("-f", "--follow", is_flag=True, help="Go on with new events until Ctrl-C.")
@click.option(
    "-n",
    "--recent",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help="How many of the last events to begin with.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.option("--model", shell_complete=complete_model, help="Only events of this model.")
@reaches_gateway
def events_command(
    gateway: GatewayClient, *, follow: bool, recent: int, as_json: bool, model: str | None
) -> None:
    """Print the events of models and workers, such as starts, ends and their causes."""
    # Events have ids of models, so an alias is resolved. An unknown model is an error.
    model = None if model is None else gateway.model(model).id
    with gateway.events(recent, follow=follow, model=model) as events:
        for event in events:
            if event.kind == "comment":
                continue
            fields = msgspec.json.decode(event.data)
            if model is None or fields.get("model") == model:
                click.echo(event.data if as_json else _line(event, fields))


def _line(event: ServerSentEvent, fields: dict[str, Any]) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(fields["at"]))
    pairs = " ".join(
        f"{key}={value}"
        for key, value in fields.items()
        if key not in _PLACED and value is not None
    )
    return printable(f"{at}  {fields['model'] or '-'}  {event.kind}  {pairs}").replace("\n", " ")
