"""bulkhead estimate"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import click
import msgspec
from msgspec import Struct

from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError, NoSuchModelError
from gateway.cli.local import access
from gateway.cli.model_names import complete_model
from gateway.config.models import find_folder, locate
from gateway.config.read import read_settings
from gateway.config.settings import ConfigError, Flags, ModelSettings, Settings
from gateway.config.sizes import format_size
from gateway.memory.budget import budget_bytes
from gateway.memory.estimate.beside import possible_beside
from gateway.memory.estimate.estimate import Estimate
from gateway.memory.estimate.fitting import Fit, fit, whole
from gateway.memory.estimate.learned import Learned
from gateway.memory.estimate.options import options_in
from gateway.memory.estimate.weights import EstimateError
from gateway.memory.stranded.record import read_stranded
from gateway.nearest import nearest_model, suggestion
from gateway.state.address import running_address
from gateway.state.state_dir import StateDir, default_state_dir

_WIDTH: Final = 14
_LENGTHS: Final = (2_000, 8_000, 32_000)

Verdict: TypeAlias = Literal["fits", "fits with a shorter context", "doesn't fit"]


class Printed(Struct):
    """The JSON form; sizes in bytes. `floor_bytes`, the sum of the parts, must be had for a load;
    `possible_bytes` can be had beside what is pinned. `rows` are sequences by their tokens.
    `company` are the floors of models that are loaded with it; `forecast` is what a running gateway
    says that its load would bring about.
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


class _Answer(NamedTuple):
    estimate: Estimate
    fit: Fit
    kept_bytes: int
    company: dict[str, int]
    grouped: bool
    forecast: str | None

    @property
    def verdict(self) -> Verdict:
        if not self.fit.fits:
            return "doesn't fit"
        return "fits with a shorter context" if self.fit.is_cut else "fits"

    @property
    def rows(self) -> dict[int, int]:
        """How many sequences of so many tokens have room."""
        possible_bytes = self.fit.possible_bytes
        lengths = [each for each in _LENGTHS if each <= self.fit.context_tokens]
        return {each: self.estimate.rows(possible_bytes, each) for each in lengths}


@click.command("estimate")
@click.argument("model", shell_complete=complete_model)
@click.option("--context", "context_tokens", type=click.IntRange(1), help="Tokens of context.")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file [BULKHEAD_CONFIG].")
@click.option("--state-dir", type=click.Path(path_type=Path), help="[BULKHEAD_STATE_DIR]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model: str,
    context_tokens: int | None,
    config: Path | None,
    state_dir: Path | None,
    *,
    as_json: bool,
) -> None:
    """Say what a model will take, line by line, without loading it.

    MODEL is an id or alias of the configuration, a folder, or a repository in the Hugging Face
    cache. If it has run before on this state folder, what it really took is shown beside the sum.
    Then come whether it fits into the budget, beside what is pinned, and how many sequences have
    room at once. Of a model in groups, what is loaded with it; and of one that is configured, what
    a load would evict now, if a gateway runs on this state folder.
    """
    try:
        settings = read_settings(Flags(config=config, state_dir=state_dir), os.environ)
    except ConfigError as error:
        raise CommandError(str(error)) from error
    configured = _configured(model, settings)
    tokens = context_tokens or configured.context_tokens
    try:
        folder = find_folder(locate(configured.path))
    except (ValueError, OSError) as error:
        names = (name for key, each in settings.models.items() for name in (key, *each.aliases))
        meant = suggestion(nearest_model(model, names))
        raise NoSuchModelError(f"Nothing can be said of {model}: {error}{meant}") from error
    try:
        answer = _answer(folder, tokens, configured, settings)
    except (OSError, ValueError, EstimateError) as error:
        raise CommandError(f"Nothing can be said of {model}: {error}") from error
    if not answer.estimate.shape.sequence_bytes(tokens):
        raise CommandError(
            f"Nothing can be said of {model}: {folder / 'config.json'} doesn't tell the number and "
            "sizes of its layers, from which the cache follows."
        )
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_printed(model, answer)), indent=2))
    else:
        _print(model, answer)


def _configured(model: str, settings: Settings) -> ModelSettings:
    for model_id, each in settings.models.items():
        if model == model_id or model in each.aliases:
            return each
    return ModelSettings(path=model)


def _answer(folder: Path, tokens: int, configured: ModelSettings, settings: Settings) -> _Answer:
    state_dir = StateDir(Path(settings.gateway.state_dir or default_state_dir()))
    learned = Learned(state_dir.learned_path)
    ordinary_tokens = settings.memory.ordinary_tokens
    _, found = whole(
        folder, tokens, ordinary_tokens, configured.python, learned, options_in(configured)
    )
    usable_bytes = budget_bytes(settings.memory) - read_stranded(state_dir.stranded_path).bytes
    possible = possible_beside(configured, settings, usable_bytes, learned)
    model_id = next((name for name, each in settings.models.items() if each is configured), None)
    return _Answer(
        found,
        fit(found, possible.bytes),
        possible.kept_bytes,
        possible.company,
        bool(settings.groups),
        None if model_id is None else _forecast(model_id, state_dir),
    )


def _forecast(model_id: str, state_dir: StateDir) -> str | None:
    """What the gateway of this state folder says, if one runs and knows the model."""
    if running_address(state_dir) is None:
        return None
    found = access(None, os.environ.get("BULKHEAD_ADMIN_KEY"), state_dir)
    with GatewayClient(found.url, found.key, found.trust) as gateway:
        try:
            return gateway.forecast(model_id).about
        except CommandError:
            return None


def _printed(model: str, answer: _Answer) -> Printed:
    result = answer.estimate
    return Printed(
        model=model,
        context_tokens=result.context_tokens,
        parts={each.name: each.bytes for each in result.lines},
        floor_bytes=result.floor_bytes,
        idle_bytes=result.calculated_fixed_bytes,
        measured_idle_bytes=result.measured_fixed_bytes,
        token_bytes=result.token_bytes,
        rows=answer.rows,
        verdict=answer.verdict,
        needed_bytes=answer.fit.needed_bytes,
        possible_bytes=answer.fit.possible_bytes,
        granted_context_tokens=answer.fit.context_tokens,
        company=answer.company,
        forecast=answer.forecast,
    )


def _print(model: str, answer: _Answer) -> None:
    result = answer.estimate
    click.echo(f"{model}, {result.context_tokens:,} tokens of context\n")
    for line in result.lines:
        click.echo(f"  {line.name:<{_WIDTH}} {format_size(line.bytes):>8}  {line.detail}")
    click.echo(
        f"  {'floor':<{_WIDTH}} {format_size(result.floor_bytes):>8}  to be had for a load\n"
    )
    if (measured := result.measured_fixed_bytes) is None:
        click.echo("It has not been measured yet on this state folder.")
    else:
        calculated = result.calculated_fixed_bytes
        click.echo(
            f"Measured after a load: {format_size(measured)}; process with weights, "
            f"{format_size(calculated)}, is off by {calculated / measured - 1:+.0%}."
        )
    click.echo(_sentence(answer))
    if answer.company:
        together_bytes = answer.fit.needed_bytes + sum(answer.company.values())
        click.echo(
            f"Loading it also loads {', '.join(answer.company)}: together "
            f"{format_size(together_bytes)}."
        )
    if answer.forecast is not None:
        click.echo(f"Now: {answer.forecast}")
    if answer.fit.fits and answer.rows:
        rows = ", ".join(f"{rows:,} of {tokens:,}" for tokens, rows in answer.rows.items())
        click.echo(f"Sequences that have room at once, by their tokens: {rows}.")


def _sentence(answer: _Answer) -> str:
    found = answer.fit
    needed, possible = format_size(found.needed_bytes), format_size(found.possible_bytes)
    beside = ""
    if answer.kept_bytes:
        whose = "what is pinned or kept for groups" if answer.grouped else "what is pinned"
        beside = f" beside the {format_size(answer.kept_bytes)} of {whose}"
    asks = f"its floor is {needed}, and {possible} can be had{beside}."
    match answer.verdict:
        case "fits":
            return f"It fits: {asks}"
        case "doesn't fit":
            return f"It doesn't fit: {asks}"
        case _:
            return f"It fits with a shorter context of {found.context_tokens:,} tokens: {asks}"
