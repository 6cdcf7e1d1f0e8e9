"""bulkhead bench"""

from __future__ import annotations

import contextlib
from typing import Final

import click
import msgspec
from msgspec import Struct
from rich.table import Table

from gateway.cli.client import GatewayClient
from gateway.cli.console import stdout_console
from gateway.cli.failure import CommandError, WrongUseError
from gateway.cli.measured_streams import Job, Level, measure
from gateway.cli.memory_table import UNKNOWN
from gateway.cli.model_names import complete_model
from gateway.cli.options import reaches_gateway
from gateway.cli.printable import printable
from gateway.cli.progress import Progress

_STREAMS: Final = "1,8,32"
# More connections than a client keeps by itself.
_MOST_STREAMS: Final = 100


class Printed(Struct, frozen=True):
    model: str
    levels: list[Level]


def _check_streams(
    _context: click.Context, _parameter: click.Parameter, text: str
) -> tuple[int, ...]:
    try:
        counts = tuple(int(each) for each in text.split(","))
    except ValueError:
        counts = ()
    if not counts or not all(1 <= each <= _MOST_STREAMS for each in counts):
        raise click.BadParameter(
            f"{text!r} is no list of numbers from 1 to {_MOST_STREAMS} such as {_STREAMS}."
        )
    return counts


@click.command("bench")
@click.argument("model", metavar="[MODEL]", required=False, shell_complete=complete_model)
@click.option(
    "--streams",
    default=_STREAMS,
    show_default=True,
    callback=_check_streams,
    help="How many at once, one after another.",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Length of each prompt, about.",
)
@click.option(
    "--tokens",
    type=click.IntRange(2),
    default=128,
    show_default=True,
    help="Length of each answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reaches_gateway
def command(
    gateway: GatewayClient,
    *,
    model: str | None,
    streams: tuple[int, ...],
    prompt_tokens: int,
    tokens: int,
    as_json: bool,
) -> None:
    """Measure how fast the gateway answers. MODEL may be left out if one model alone is loaded.

    A model that isn't loaded is loaded first, and that isn't counted. Every prompt is new, so that
    none is in the prompt cache. Shown for each number of streams: the time to the first token (the
    median and the slowest stream), the tokens/s of one stream after its first token, and the
    tokens/s of all streams together, with the time for their prompts.
    """
    model_id = _loaded_model(gateway) if model is None else gateway.model(model).id
    job = Job(model_id, prompt_tokens, tokens)
    with Progress(gateway, model_id):
        measure(gateway, Job(model_id, 1, 1), 1)
    _warn_of_others(gateway)
    levels = []
    console = stdout_console()
    for count in streams:
        working = f"{printable(model_id)}: {count} of {', '.join(map(str, streams))} streams"
        quiet = as_json or not console.is_terminal
        with contextlib.nullcontext() if quiet else console.status(working):
            levels.append(measure(gateway, job, count))
    if as_json:
        printed = msgspec.json.encode(Printed(model_id, levels))
        click.echo(msgspec.json.format(printed, indent=2))
        return
    prompts = f"prompts of {levels[0].prompt_tokens:,} tokens"
    click.echo(f"{printable(model_id)}: {prompts}, answers of {tokens:,}")
    console.print(_table(levels))


def _loaded_model(gateway: GatewayClient) -> str:
    models = gateway.models()
    loaded = [each.id for each in models if each.state == "ready"] or [each.id for each in models]
    if len(loaded) != 1:
        known = ", ".join(each.id for each in models) or "none"
        raise WrongUseError(f"Say which model to measure; there are: {known}.")
    return loaded[0]


def _warn_of_others(gateway: GatewayClient) -> None:
    # Who may not see the status measures all the same.
    with contextlib.suppress(CommandError):
        models = gateway.status().models
        if others := sum(each.active_requests + each.queue_depth for each in models):
            click.echo(f"Careful: {others} other requests run meanwhile.", err=True)


def _table(levels: list[Level]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("streams", "first token", "slowest", "tokens/s of each", "in all"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in levels:
        rate = each.stream_tokens_per_s
        table.add_row(
            str(each.streams),
            _seconds(each.first_token_s),
            _seconds(each.worst_first_token_s),
            UNKNOWN if rate is None else f"{rate:.1f}",
            f"{each.tokens_per_s:.1f}",
        )
    return table


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
