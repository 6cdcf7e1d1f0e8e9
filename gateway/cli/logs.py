"""bulkhead logs"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError, NoGatewayError, NoSuchModelError
from gateway.cli.local import local_settings
from gateway.cli.log_lines import LogPrinter
from gateway.cli.model_names import complete_model
from gateway.cli.options import names_gateway, reaches_gateway
from gateway.config.settings import Settings
from gateway.system.log_files import LogReader
from gateway.system.log_lines import since_stamp
from gateway.system.notation import nearest_model, suggestion

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
    "--since", callback=_check_since, help="Begin so long ago (10m, 2h), or at an ISO 8601 time."
)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    help=f"How many of the last lines to begin with [{_DEFAULT_LINES}, or all with --since].",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="The gateway's state folder, if it isn't the one that serve would use.",
)
@reaches_gateway
def command(
    gateway: GatewayClient,
    *,
    model: str | None,
    follow: bool,
    since: str | None,
    lines: int | None,
    as_json: bool,
    state_dir: Path | None,
) -> None:
    """Print the gateway's log, or what a model's workers have printed.

    It is read from the state folder, so the gateway needn't run. With --url, or if the folder has
    no such log, the gateway is asked.
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
    """The log's file, which may have to come yet; None if a gateway answers and knows better.

    Raises:
        NoSuchModelError: nobody knows the model.
        NoGatewayError: there is no log of a gateway, and none answers.
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
        return False  # Too long for a name: no model is called so.


def _model_id(model: str | None, settings: Settings) -> str | None:
    """The id that is meant by an id or alias."""
    aliases = {
        alias: model_id for model_id, each in settings.models.items() for alias in each.aliases
    }
    return model if model is None else aliases.get(model, model)


def print_file(
    path: Path, printer: LogPrinter, lines: int, since: str | None, *, follow: bool
) -> None:
    """The last lines of a log, and with `follow` the new ones, which may have to come yet."""
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
    query: dict[str, str | int] = {"lines": lines}
    if since is not None:
        query["since"] = since
    if not follow:
        for line in gateway.log(model, query).split("\n")[:-1]:
            printer.print(line)
        return
    with gateway.followed_log(model, query) as events:
        for event in events:
            if event.kind == "message":
                printer.print(event.data)
