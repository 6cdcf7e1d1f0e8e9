"""bulkhead estimate"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import click
from msgspec import to_builtins
from msgspec.structs import replace

from gateway.cli.child_gateway import temporary_gateway
from gateway.cli.client import DISKS, GatewayClient, Query, quoted
from gateway.cli.completion import complete_model, model_names
from gateway.cli.failure import CommandError, NoGatewayError, NoSuchModelError
from gateway.cli.gateway_access import address_of, find_gateway
from gateway.cli.models import entry
from gateway.cli.output import print_json, printable
from gateway.config.model_folders import NotThereError, check_holds_model, locate
from gateway.config.read import DraftConfiguration, read_draft
from gateway.config.settings import Flags, Settings
from gateway.http.wire.command_bodies import Status
from gateway.memory.estimate import MOST_ROWS
from gateway.memory.fitting import Outline
from gateway.memory.forecast import Forecast
from gateway.system.notation import format_size, nearest_model, suggestion
from gateway.system.state_dir import StateDir

_WIDTH: Final = 14
# The id under which a temporary gateway serves a folder or repository that has no table.
_UNCONFIGURED: Final = "a-folder"
_NO_LAYERS: Final = (
    "its config.json doesn't tell the number and sizes of its layers, or its weights can't be read"
)


class _Running(NamedTuple):
    """The gateway that runs with the state folder. `answer` is None if it can't estimate the model.
    `serves`: it has the model. `of_upstream`: it has the model of an upstream.
    """

    url: str
    reading: Status
    answer: _Estimate | None = None
    serves: bool = False
    of_upstream: bool = False


class _Estimate(NamedTuple):
    outline: Outline
    grouped: bool
    forecast: str | None
    failure: str | None
    gateway: str | None


@click.command("estimate")
@click.argument("model", shell_complete=complete_model)
@click.option("--context", "context_tokens", type=click.IntRange(1), help="Tokens of context.")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file [BULKHEAD_CONFIG].")
@click.option("--state-dir", type=click.Path(path_type=Path), help="[BULKHEAD_STATE_DIR]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def estimate_command(
    model: str,
    context_tokens: int | None,
    config: Path | None,
    state_dir: Path | None,
    *,
    as_json: bool,
) -> None:
    """Estimate the memory of a model, without loading it.

    MODEL is an id or alias, a folder, or a repository in the Hugging Face cache. The gateway that
    uses this state folder answers for its own models. For other models, and with --config, this
    command calculates.

    The output has the parts, the measured size if the model has run before, whether the model fits
    into the budget beside pinned models, the number of sequences that fit at once, and the models
    that a load would also load or evict.
    """
    flags = Flags(config=config, state_dir=state_dir)
    draft = read_draft(flags, os.environ)
    running = _running(model, context_tokens, draft.settings)
    if running is not None and config is None and running.answer is not None:
        answer = running.answer
    else:
        answer = _by_temporary(model, context_tokens, flags, draft.settings, running)
    if as_json:
        print_json(_printed(model, answer))
    else:
        _print(model, answer)
    if running is not None and (difference := _difference(running, draft, answer)) is not None:
        click.echo(printable(difference), err=True)


def _running(model: str, context_tokens: int | None, settings: Settings) -> _Running | None:
    state_dir = StateDir.of(settings.gateway.state_dir)
    if address_of(state_dir) is None:
        return None
    access = find_gateway(None, os.environ.get("BULKHEAD_ADMIN_KEY"), settings, state_dir)
    with access.client() as gateway:
        try:
            reading = gateway.status()
        except CommandError:
            return None
        try:
            answer = _ask(gateway, model, context_tokens, reading, model)
        except NoSuchModelError:
            upstreams = [entry for entry in gateway.models() if entry.is_upstreams]
            of_upstream = any(model in (entry.id, *entry.aliases) for entry in upstreams)
            return _Running(access.url, reading, of_upstream=of_upstream)
        except NoGatewayError:
            return _Running(access.url, reading)
        return _Running(access.url, reading, answer, serves=True)


def _ask(
    gateway: GatewayClient,
    model: str,
    context_tokens: int | None,
    reading: Status,
    typed: str,
) -> _Estimate | None:
    """The gateway's estimate of the model that the user typed as `typed`; None if the gateway
    doesn't understand the model's files.

    Raises:
        NoSuchModelError: the gateway hasn't the model.
    """
    path = f"/admin/v1/models/{quoted(model)}/estimate"
    query: Query = {} if context_tokens is None else {"context_tokens": context_tokens}
    forecast = gateway.read(gateway.get(path, DISKS, query), Forecast)
    if forecast.outline is None:
        return None
    status = reading.model(forecast.model)
    failure = None if status is None else status.failure
    if failure is None and (problem := _problem(gateway, forecast.model)) is not None:
        failure = f"{typed!r} can't be loaded: {problem}"
    return _Estimate(
        forecast.outline,
        bool(reading.groups),
        forecast.about,
        failure,
        gateway.url,
    )


def _problem(gateway: GatewayClient, model_id: str) -> str | None:
    """Why the model can't be loaded, by its files; None if they show no reason."""
    try:
        return entry(gateway, model_id).problem
    except CommandError:
        return None


def _by_temporary(
    model: str,
    context_tokens: int | None,
    flags: Flags,
    settings: Settings,
    running: _Running | None,
) -> _Estimate:
    """The estimate of a temporary gateway, by the present configuration. A folder or repository
    that has no table gets one.
    """
    source = _unconfigured(model, settings)
    if source is not None:
        flags = replace(flags, models=(f"{source}={_UNCONFIGURED}",))
    name = model if source is None else _UNCONFIGURED
    with temporary_gateway(flags, counts_pinned=True) as gateway:
        try:
            answer = _ask(gateway, name, context_tokens, gateway.status(), model)
            if answer is None:
                problem = _problem(gateway, name)
                why = _NO_LAYERS if problem is None else f"{_NO_LAYERS} ({problem})"
                raise CommandError(f"There is no estimate for {model}: {why}.")
        except NoSuchModelError as error:
            why = _served_elsewhere(running) or _unknown(gateway, model, running)
            raise NoSuchModelError(f"There is no estimate for {model}: {why}") from error
    beside = None if running is None or source is not None else running.answer
    return answer._replace(
        forecast=None if beside is None else beside.forecast,
        failure=answer.failure if beside is None else beside.failure or answer.failure,
        gateway=None,
    )


def _unconfigured(model: str, settings: Settings) -> str | None:
    """The folder or repository of this name that has no table; None: the name is an id, or of a
    model that a gateway finds.

    Raises:
        NoSuchModelError: the folder has no model.
    """
    if any(model in (model_id, *table.aliases) for model_id, table in settings.models.items()):
        return None
    try:
        source = locate(model)
    except ValueError:
        return None
    try:
        check_holds_model(source)
    except NotThereError as error:
        raise NoSuchModelError(f"There is no estimate for {model}: {error}") from error
    return source


def _served_elsewhere(running: _Running | None) -> str | None:
    """Why this command doesn't find a model that the running gateway has; None: it has none."""
    if running is not None and running.of_upstream:
        return "it is a model of an upstream: ask the machine that it runs on."
    if running is None or not running.serves or running.answer is not None:
        return None
    return (
        f"the gateway at {running.url} serves it and doesn't understand its files, which this "
        "command doesn't find: `bulkhead show` says where they are, and a folder is estimated, too."
    )


def _unknown(gateway: GatewayClient, model: str, running: _Running | None) -> str:
    """Why the name means no model, and which name may be meant."""
    names = set(model_names(gateway))
    names |= set() if running is None else {status.id for status in running.reading.models}
    try:
        why = locate(model)
    except ValueError as error:
        why = str(error)
    return f"{why}{suggestion(nearest_model(model, sorted(names)))}"


def _difference(running: _Running, draft: DraftConfiguration, answer: _Estimate) -> str | None:
    """A note that says by which configuration the estimate is; None if the gateway and this command
    have read the same one.
    """
    theirs = running.reading.config
    draft_file = None if draft.file is None else str(draft.file.absolute())
    if (theirs.file, theirs.digest) == (draft_file, draft.digest):
        return None
    read = theirs.file or "no file"
    draft_source = draft_file or "no file"
    if theirs.file == draft_file:
        draft_source = "the present contents of the file"
    if answer.gateway is not None:
        but = f", and not by {draft_source}" if draft_source != "no file" else ""
        return f"This is by the running gateway, which has read {read}{but}."
    return f"This is by {draft_source}, and not by the running gateway, which has read {read}."


def _printed(model: str, answer: _Estimate) -> dict[str, object]:
    """The estimate as JSON: the fields of `Outline` with the parts as a map, and three more.
    `forecast` is a running gateway's text about the effects of a load. `failure` is the reason why
    the model can't be loaded. `gateway` is the address of the running gateway that made the
    estimate; null if a temporary one did.
    """
    outline = to_builtins(answer.outline)
    del outline["kept_bytes"]
    parts = {part.name: part.bytes for part in answer.outline.parts}
    return {
        "model": model,
        **outline,
        "parts": parts,
        "forecast": answer.forecast,
        "failure": answer.failure,
        "gateway": answer.gateway,
    }


def _print(model: str, answer: _Estimate) -> None:
    outline = answer.outline
    # A command has no context that would be known here.
    of = f", {outline.context_tokens:,} tokens of context" if outline.context_tokens else ""
    click.echo(f"{model}{of}\n")
    for line in outline.parts:
        click.echo(f"  {line.name:<{_WIDTH}} {format_size(line.bytes):>8}  {line.detail}")
    click.echo(f"  {'floor':<{_WIDTH}} {format_size(outline.floor_bytes):>8}  needed for a load\n")
    measured = outline.measured_idle_bytes
    if not outline.context_tokens:
        pass
    elif measured is None:
        click.echo("Not measured yet: the model has not been loaded with this state folder.")
    else:
        calculated = outline.idle_bytes
        click.echo(
            f"After a load the process and the weights took {format_size(measured)}. The estimate "
            f"from the files was {format_size(calculated)}: {_off(calculated / measured - 1)}."
        )
    if answer.failure is not None:
        click.echo(printable(answer.failure))
    click.echo(_sentence(answer))
    if outline.company:
        together_bytes = outline.needed_bytes + sum(outline.company.values())
        click.echo(
            f"Loading it also loads {', '.join(outline.company)}: together "
            f"{format_size(together_bytes)}."
        )
    if answer.forecast is not None:
        click.echo(f"Now: {answer.forecast}")
    if outline.fitness != "doesn't fit" and outline.rows:
        rooms = [
            f"{rows:,}{' or more' if rows == MOST_ROWS else ''} of {tokens:,} tokens each"
            for tokens, rows in outline.rows.items()
        ]
        click.echo(f"Sequences that fit at once: {'; or '.join(rooms)}.")


def _off(share: float) -> str:
    """Words for the error of an estimate. `share` is the error as a share of the measured size."""
    percent = round(100 * share)
    return f"{abs(percent)}% too {'high' if percent > 0 else 'low'}" if percent else "the same"


def _sentence(answer: _Estimate) -> str:
    outline = answer.outline
    needed, possible = format_size(outline.needed_bytes), format_size(outline.possible_bytes)
    beside = ""
    if outline.reserved_bytes:
        whose = "pinned models and groups" if answer.grouped else "pinned models"
        beside = f" beside the {format_size(outline.reserved_bytes)} of {whose}"
    asks = f"its floor is {needed}, and {possible} is available{beside}."
    match outline.fitness:
        case "fits":
            return f"Its memory fits: {asks}"
        case "doesn't fit":
            return f"Its memory doesn't fit: {asks}"
        case _:
            tokens = f"{outline.granted_context_tokens:,} tokens"
            return f"Its memory fits with a shorter context of {tokens}: {asks}"
