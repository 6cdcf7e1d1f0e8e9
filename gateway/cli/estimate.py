"""bulkhead estimate"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click
import msgspec
from msgspec import Struct

from gateway.cli.failure import CommandError, NoSuchModelError
from gateway.config.models import find_folder, locate
from gateway.config.read import read_settings
from gateway.config.settings import ConfigError, Flags, ModelSettings, Settings
from gateway.config.sizes import format_size
from gateway.memory.estimate.estimate import Estimate, estimate, model_key
from gateway.memory.estimate.learned import Learned
from gateway.memory.estimate.weights import EstimateError
from gateway.state_dir import StateDir, default_state_dir

_WIDTH: Final = 14


class Printed(Struct):
    """The JSON form; sizes in bytes."""

    model: str
    context_tokens: int
    parts: dict[str, int]
    idle_bytes: int
    full_bytes: int
    measured_idle_bytes: int | None
    measured_full_bytes: int | None


@click.command("estimate")
@click.argument("model")
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

    MODEL is an id of the configuration, a folder, or a repository in the Hugging Face cache. If it
    has run before on this state folder, what it really took is shown beside the sum.
    """
    try:
        settings = read_settings(Flags(config=config, state_dir=state_dir), os.environ)
    except ConfigError as error:
        raise CommandError(str(error)) from error
    configured = settings.models.get(model) or ModelSettings(path=model)
    tokens = context_tokens or configured.context_tokens
    try:
        folder = find_folder(locate(configured.path))
    except (ValueError, OSError) as error:
        raise NoSuchModelError(f"Nothing can be said of {model}: {error}") from error
    try:
        learned = Learned(_state_dir(settings).learned_path)
        result = estimate(folder, tokens, learned.get(model_key(folder, tokens, configured.python)))
    except (OSError, EstimateError) as error:
        raise CommandError(f"Nothing can be said of {model}: {error}") from error
    if result.cache_bytes == 0:
        raise CommandError(
            f"Nothing can be said of {model}: {folder / 'config.json'} doesn't tell the number and "
            "sizes of its layers, from which the cache follows."
        )
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_printed(model, result)), indent=2))
    else:
        _print(model, result)


def _state_dir(settings: Settings) -> StateDir:
    return StateDir(Path(settings.gateway.state_dir or default_state_dir()))


def _printed(model: str, result: Estimate) -> Printed:
    measured = result.measured
    return Printed(
        model=model,
        context_tokens=result.context_tokens,
        parts={each.name: each.bytes for each in result.lines},
        idle_bytes=result.calculated_idle_bytes,
        full_bytes=result.calculated_full_bytes,
        measured_idle_bytes=None if measured is None else measured.idle_bytes,
        measured_full_bytes=None if measured is None else measured.full_bytes,
    )


def _print(model: str, result: Estimate) -> None:
    click.echo(f"{model}, {result.context_tokens:,} tokens of context\n")
    for line in result.lines:
        click.echo(f"  {line.name:<{_WIDTH}} {format_size(line.bytes):>8}  {line.detail}")
    click.echo(f"  {'sum':<{_WIDTH}} {format_size(result.calculated_full_bytes):>8}")
    if result.measured is None:
        click.echo("\nIt has not been measured yet on this state folder.")
        return
    _compare("after its load", result.calculated_idle_bytes, result.measured.idle_bytes)
    if result.measured.full_bytes is not None:
        _compare("with a full context", result.calculated_full_bytes, result.measured.full_bytes)


def _compare(when: str, calculated_bytes: int, measured_bytes: int) -> None:
    off = calculated_bytes / measured_bytes - 1
    click.echo(
        f"\nMeasured {when}: {format_size(measured_bytes)}; the sum, "
        f"{format_size(calculated_bytes)}, is off by {off:+.0%}."
    )
