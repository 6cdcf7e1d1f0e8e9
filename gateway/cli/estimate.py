"""bulkhead estimate"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import click
from msgspec import Struct

from gateway.cli.client import DISKS, Query, quoted
from gateway.cli.completion import complete_model
from gateway.cli.failure import CommandError, NoGatewayError, NoSuchModelError
from gateway.cli.gateway_access import address_of, find_gateway
from gateway.cli.output import print_json, printable
from gateway.config.layers import ConfigError
from gateway.config.model_folders import find_folder, locate
from gateway.config.model_settings import ModelSettings
from gateway.config.read import Configuration, DraftConfiguration, Located, read_draft
from gateway.config.settings import Flags, Settings
from gateway.http.wire.command_bodies import Status
from gateway.library.description import describe
from gateway.library.finder import Finder
from gateway.memory.commands import estimate_of_command, outline_of_command
from gateway.memory.estimate import MOST_ROWS
from gateway.memory.fitting import Learned, Outline, Verdict, budget_bytes, outline_of, whole
from gateway.memory.forecast import Forecast, possible_beside
from gateway.memory.leak_check import read_stranded
from gateway.memory.weights import EstimateError, options_in
from gateway.system.notation import format_size, nearest_model, suggestion
from gateway.system.state_dir import StateDir

_WIDTH: Final = 14


class EstimateReport(Struct):
    """The estimate as JSON. A load with the whole context takes `floor_bytes`, the sum of `parts`;
    a load with `granted_context_tokens` takes `needed_bytes`. Pinned models and groups leave
    `possible_bytes` to the model. `rows` maps lengths in tokens to the number of sequences that fit
    at once. `company` maps the models that are loaded together with this one to their floors.

    `forecast` is a running gateway's text about the effects of a load. `failure` is the reason why
    the model can't be loaded. `gateway` is the address of the gateway that made the estimate; null
    if this command made it, by its own configuration.
    """

    model: str
    context_tokens: int
    parts: dict[str, int]
    floor_bytes: int
    idle_bytes: int
    measured_idle_bytes: int | None
    token_bytes: int
    rows: dict[int, int]
    verdict: Verdict
    needed_bytes: int
    possible_bytes: int
    granted_context_tokens: int
    company: dict[str, int]
    forecast: str | None
    failure: str | None
    gateway: str | None


class _Running(NamedTuple):
    """The gateway that runs with the state folder. `about`, `failure` and `outline` are its answer
    about the model; all are None if the gateway has no answer. `passes_on`: it has the model of an
    upstream.
    """

    url: str
    reading: Status
    about: str | None = None
    failure: str | None = None
    outline: Outline | None = None
    passes_on: bool = False


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
    draft = read_draft(Flags(config=config, state_dir=state_dir), os.environ)
    settings = draft.settings
    own = StateDir.at(settings.gateway.state_dir)
    running = _running(model, context_tokens, settings, own)
    if running is not None and config is None and running.outline is not None:
        grouped = bool(running.reading.groups)
        answer = _Estimate(running.outline, grouped, running.about, running.failure, running.url)
    elif draft.mistakes:
        raise CommandError(str(ConfigError(draft.mistakes)))
    else:
        answer = _calculated(model, context_tokens, settings, own, running)
    if answer.failure is None and (problem := _problem(model, settings)) is not None:
        answer = answer._replace(failure=f"{model!r} can't be loaded: {problem}")
    if as_json:
        print_json(_printed(model, answer))
    else:
        _print(model, answer)
    if running is not None and (told := _difference(running, draft, answer)) is not None:
        click.echo(printable(told), err=True)


def _running(
    model: str, context_tokens: int | None, settings: Settings, state_dir: StateDir
) -> _Running | None:
    if address_of(state_dir) is None:
        return None
    found = find_gateway(None, os.environ.get("BULKHEAD_ADMIN_KEY"), settings, state_dir)
    with found.client() as gateway:
        try:
            reading = gateway.status()
        except CommandError:
            return None
        try:
            path = f"/admin/v1/models/{quoted(model)}/estimate"
            query: Query = {} if context_tokens is None else {"context_tokens": context_tokens}
            forecast = gateway.read(gateway.get(path, DISKS, query), Forecast)
        except NoSuchModelError:
            entries = [entry for entry in gateway.models() if entry.is_upstreams]
            passes_on = any(model in (entry.id, *entry.aliases) for entry in entries)
            return _Running(found.url, reading, passes_on=passes_on)
        except NoGatewayError:
            return _Running(found.url, reading)
        served = reading.model(forecast.model)
        failure = None if served is None else served.failure
        return _Running(found.url, reading, forecast.about, failure, forecast.outline)


def _difference(running: _Running, draft: DraftConfiguration, answer: _Estimate) -> str | None:
    """A note that says by which configuration the estimate is; None if the gateway and this command
    have read the same one.
    """
    theirs = running.reading.config
    own = None if draft.file is None else str(draft.file.absolute())
    if (theirs.file, theirs.digest) == (own, draft.digest):
        return None
    read = theirs.file or "no file"
    here = own or "no file"
    if theirs.file == own:
        here = "the present contents of the file"
    if answer.gateway is not None:
        but = f", and not by {here}" if here != "no file" else ""
        return f"This is by the running gateway, which has read {read}{but}."
    return f"This is by {here}, and not by the running gateway, which has read {read}."


def _calculated(
    model: str,
    context_tokens: int | None,
    settings: Settings,
    state_dir: StateDir,
    running: _Running | None,
) -> _Estimate:
    configured = _configured(model, settings, state_dir)
    if configured.command:
        return _of_command(model, configured, settings, state_dir, running)
    tokens = context_tokens or configured.context_tokens
    try:
        folder = find_folder(locate(configured.path))
    except (ValueError, OSError) as error:
        why = _served_elsewhere(running) or f"{error}{_meant(model, settings, running)}"
        raise NoSuchModelError(f"There is no estimate for {model}: {why}") from error
    try:
        outline = _outline(folder, tokens, configured, settings, state_dir)
    except (OSError, ValueError, EstimateError) as error:
        raise CommandError(f"There is no estimate for {model}: {error}") from error
    if outline is None:
        raise CommandError(
            f"There is no estimate for {model}: {folder / 'config.json'} doesn't tell the number "
            "and sizes of its layers, from which the cache follows."
        )
    known = configured.path != model or model in settings.models
    about = running.about if running is not None and known else None
    failure = running.failure if running is not None and known else None
    return _Estimate(outline, bool(settings.groups), about, failure, None)


def _served_elsewhere(running: _Running | None) -> str | None:
    """Why this command doesn't find a model that the gateway serves; None: it serves none."""
    if running is not None and running.passes_on:
        return "it is a model of an upstream: ask the machine that it runs on."
    if running is None or running.about is None or running.outline is not None:
        return None
    return (
        f"the gateway at {running.url} serves it and doesn't understand its files, which this "
        "command doesn't find: `bulkhead show` says where they are, and a folder is estimated, too."
    )


def _meant(model: str, settings: Settings, running: _Running | None) -> str:
    names = {name for key, table in settings.models.items() for name in (key, *table.aliases)}
    names |= set() if running is None else {status.id for status in running.reading.models}
    return suggestion(nearest_model(model, sorted(names - {model})))


def _of_command(
    model: str,
    configured: ModelSettings,
    settings: Settings,
    state_dir: StateDir,
    running: _Running | None,
) -> _Estimate:
    learned = Learned(state_dir.learned_path)
    try:
        found = estimate_of_command(configured, learned)
    except OSError as error:
        raise CommandError(f"There is no estimate for {model}: {error}") from error
    usable_bytes = budget_bytes(settings.memory) - read_stranded(state_dir.stranded_path).bytes
    possible = possible_beside(configured, settings, usable_bytes, learned)
    outline = outline_of_command(found, possible.bytes, possible.kept_bytes, possible.companions)
    about = None if running is None else running.about
    failure = None if running is None else running.failure
    return _Estimate(outline, bool(settings.groups), about, failure, None)


def _problem(model: str, settings: Settings) -> str | None:
    """Why the model can't be loaded, by its files; None if they show no reason."""
    try:
        configured = _table(model, settings) or ModelSettings(path=model)
        if configured.command:
            return None
        return describe(find_folder(locate(configured.path))).problem
    except (ValueError, OSError):
        return None


def _configured(model: str, settings: Settings, state_dir: StateDir) -> ModelSettings:
    """The table of a model. A model without one is a folder, a repository, or one that a gateway
    finds on the disks and serves by this name.
    """
    if (table := _table(model, settings)) is not None:
        return table
    try:
        locate(model)
    except ValueError:
        return _found(model, settings, state_dir) or ModelSettings(path=model)
    return ModelSettings(path=model)


def _table(model: str, settings: Settings) -> ModelSettings | None:
    for model_id, table in settings.models.items():
        if model == model_id or model in table.aliases:
            return table
    return None


def _found(model: str, settings: Settings, state_dir: StateDir) -> ModelSettings | None:
    finder = Finder()
    finder.recall(state_dir.names_path)
    located = {model_id: Located(table.path) for model_id, table in settings.models.items()}
    own = Configuration(
        settings=settings, file=None, digest=None, located=located, absent={}, sources={}
    )
    return _table(model, finder.with_found(own).settings)


def _outline(
    folder: Path, tokens: int, configured: ModelSettings, settings: Settings, state_dir: StateDir
) -> Outline | None:
    learned = Learned(state_dir.learned_path)
    ordinary_tokens = settings.memory.ordinary_tokens
    _, found = whole(
        folder, tokens, ordinary_tokens, configured.python, learned, options_in(configured)
    )
    usable_bytes = budget_bytes(settings.memory) - read_stranded(state_dir.stranded_path).bytes
    possible = possible_beside(configured, settings, usable_bytes, learned)
    return outline_of(found, possible.bytes, possible.kept_bytes, possible.companions)


def _printed(model: str, answer: _Estimate) -> EstimateReport:
    found = answer.outline
    return EstimateReport(
        model=model,
        context_tokens=found.context_tokens,
        parts={each.name: each.bytes for each in found.parts},
        floor_bytes=found.floor_bytes,
        idle_bytes=found.idle_bytes,
        measured_idle_bytes=found.measured_idle_bytes,
        token_bytes=found.token_bytes,
        rows=found.rows,
        verdict=found.verdict,
        needed_bytes=found.needed_bytes,
        possible_bytes=found.possible_bytes,
        granted_context_tokens=found.granted_context_tokens,
        company=found.company,
        forecast=answer.forecast,
        failure=answer.failure,
        gateway=answer.gateway,
    )


def _print(model: str, answer: _Estimate) -> None:
    found = answer.outline
    # A command has no context that would be known here.
    of = f", {found.context_tokens:,} tokens of context" if found.context_tokens else ""
    click.echo(f"{model}{of}\n")
    for line in found.parts:
        click.echo(f"  {line.name:<{_WIDTH}} {format_size(line.bytes):>8}  {line.detail}")
    click.echo(f"  {'floor':<{_WIDTH}} {format_size(found.floor_bytes):>8}  needed for a load\n")
    measured = found.measured_idle_bytes
    if not found.context_tokens:
        pass
    elif measured is None:
        click.echo("Not measured yet: the model has not been loaded with this state folder.")
    else:
        calculated = found.idle_bytes
        click.echo(
            f"After a load the process and the weights took {format_size(measured)}. The estimate "
            f"from the files was {format_size(calculated)}: {_off(calculated / measured - 1)}."
        )
    if answer.failure is not None:
        click.echo(printable(answer.failure))
    click.echo(_sentence(answer))
    if found.company:
        together_bytes = found.needed_bytes + sum(found.company.values())
        click.echo(
            f"Loading it also loads {', '.join(found.company)}: together "
            f"{format_size(together_bytes)}."
        )
    if answer.forecast is not None:
        click.echo(f"Now: {answer.forecast}")
    if found.verdict != "doesn't fit" and found.rows:
        rooms = [
            f"{rows:,}{' or more' if rows == MOST_ROWS else ''} of {tokens:,} tokens each"
            for tokens, rows in found.rows.items()
        ]
        click.echo(f"Sequences that fit at once: {'; or '.join(rooms)}.")


def _off(share: float) -> str:
    """Words for the error of an estimate. `share` is the error as a share of the measured size."""
    percent = round(100 * share)
    return f"{abs(percent)}% too {'high' if percent > 0 else 'low'}" if percent else "the same"


def _sentence(answer: _Estimate) -> str:
    found = answer.outline
    needed, possible = format_size(found.needed_bytes), format_size(found.possible_bytes)
    beside = ""
    if found.kept_bytes:
        whose = "pinned models and groups" if answer.grouped else "pinned models"
        beside = f" beside the {format_size(found.kept_bytes)} of {whose}"
    asks = f"its floor is {needed}, and {possible} is available{beside}."
    match found.verdict:
        case "fits":
            return f"Its memory fits: {asks}"
        case "doesn't fit":
            return f"Its memory doesn't fit: {asks}"
        case _:
            tokens = f"{found.granted_context_tokens:,} tokens"
            return f"Its memory fits with a shorter context of {tokens}: {asks}"
