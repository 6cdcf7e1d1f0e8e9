"""bulkhead bench"""

from __future__ import annotations

import contextlib
import secrets
import statistics
import threading
import time
from itertools import cycle, islice
from typing import Final

import click
from msgspec import Raw, Struct

from gateway.cli.client import STREAM, GatewayClient
from gateway.cli.completion import complete_model
from gateway.cli.failure import CommandError, WrongUseError
from gateway.cli.options import NO_MODEL, reaches_gateway
from gateway.cli.orders import Progress
from gateway.cli.output import UNKNOWN, Column, print_json, printable, stdout_console, table_of
from gateway.http.wire.command_bodies import OpenAIErrorEnvelope

# The words of the prompts. In most models most of these words are one token.
_WORDS: Final = "the ship has many rooms and each keeps the water out"
_STREAMS: Final = "1,8,32"
# httpx opens at most this number of connections at once.
_MOST_STREAMS: Final = 100


class Job(Struct, frozen=True):
    """The request of each stream: about `prompt_tokens` of prompt, exactly `tokens` of answer."""

    model: str
    prompt_tokens: int
    tokens: int


class Level(Struct, frozen=True):
    """The result of `streams` streams at once. `prompt_tokens` is the mean length of the prompts,
    by the model's count. `tokens` is the sum of the lengths of the answers.

    Times to the first token begin when the first request is sent: `first_token_s` is the median,
    `worst_first_token_s` the longest. `stream_tokens_per_s` is the median rate of one stream after
    its first token. `tokens_per_s` is the rate of all streams together, including the time of the
    prompts.
    """

    streams: int
    prompt_tokens: int
    tokens: int
    first_token_s: float
    worst_first_token_s: float
    stream_tokens_per_s: float | None
    tokens_per_s: float


_COLUMNS: Final = (
    Column[Level]("streams", lambda level: str(level.streams)),
    Column[Level]("first token", lambda level: _seconds(level.first_token_s)),
    Column[Level]("slowest", lambda level: _seconds(level.worst_first_token_s)),
    Column[Level]("tokens/s of each", lambda level: _rate(level.stream_tokens_per_s)),
    Column[Level]("in all", lambda level: _rate(level.tokens_per_s)),
)


class _StreamOptions(Struct, frozen=True):
    include_usage: bool = True


class _Request(Struct, frozen=True):
    model: str
    prompt: str
    max_tokens: int
    stream: bool = True
    ignore_eos: bool = True
    temperature: float = 0.0
    stream_options: _StreamOptions = _StreamOptions()


class _Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int


class _MeasuredChunk(Struct, frozen=True):
    choices: tuple[Raw, ...]
    usage: _Usage | None = None


class _MeasuredStream:
    """A request with a streamed answer, on its own thread."""

    def __init__(self, gateway: GatewayClient, job: Job) -> None:
        self._gateway = gateway
        # Each prompt begins differently, so that none is found in the prompt cache.
        words = " ".join(islice(cycle(_WORDS.split()), job.prompt_tokens))
        self._request = _Request(job.model, f"{secrets.token_hex(8)} {words}", job.tokens)
        self.failure: Exception | None = None
        self.first_at = self.last_at = 0.0
        self.usage: _Usage | None = None
        # A daemon thread: Ctrl-C doesn't wait for its end.
        self.thread = threading.Thread(target=self._run, name="stream", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._read()
        except Exception as error:
            # `measure` raises this error after it has joined the thread.
            self.failure = error

    def _read(self) -> None:
        with self._gateway.stream("POST", "/v1/completions", self._request, STREAM) as events:
            for event in events:
                if event.kind == "comment":
                    continue
                if event.kind == "error":
                    envelope = self._gateway.read(event.data, OpenAIErrorEnvelope)
                    raise CommandError(envelope.error.message)
                if event.data == "[DONE]":
                    return
                chunk = self._gateway.read(event.data, _MeasuredChunk)
                if chunk.choices:
                    self.last_at = time.monotonic()
                    self.first_at = self.first_at or self.last_at
                self.usage = chunk.usage or self.usage
        raise CommandError("An answer broke off before its end.")


def measure(gateway: GatewayClient, job: Job, streams: int) -> Level:
    """Measure `streams` streams at once. Raises: CommandError: a stream gets no whole answer."""
    began_at = time.monotonic()
    running = [_MeasuredStream(gateway, job) for _ in range(streams)]
    for stream in running:
        # The join needs no deadline, since each read of a stream has one.
        stream.thread.join()
        if stream.failure is not None:
            raise stream.failure
    usages = [stream.usage for stream in running if stream.usage is not None]
    if len(usages) < streams:
        raise CommandError("The server doesn't count tokens; is it a Bulkhead gateway?")
    tokens = sum(usage.completion_tokens for usage in usages)
    first_s = [stream.first_at - began_at for stream in running]
    rates = [
        (usage.completion_tokens - 1) / (stream.last_at - stream.first_at)
        for stream, usage in zip(running, usages, strict=True)
        if stream.last_at > stream.first_at
    ]
    return Level(
        streams=streams,
        prompt_tokens=round(statistics.mean(usage.prompt_tokens for usage in usages)),
        tokens=tokens,
        first_token_s=statistics.median(first_s),
        worst_first_token_s=max(first_s),
        stream_tokens_per_s=statistics.median(rates) if rates else None,
        tokens_per_s=tokens / (max(stream.last_at for stream in running) - began_at),
    )


class BenchReport(Struct, frozen=True):
    """The JSON of `bench`, with a level for each number of streams."""

    model: str
    levels: list[Level]


def _check_streams(
    _context: click.Context, _parameter: click.Parameter, text: str
) -> tuple[int, ...]:
    try:
        counts = tuple(int(word) for word in text.split(","))
    except ValueError:
        counts = ()
    if not counts or not all(1 <= count <= _MOST_STREAMS for count in counts):
        raise click.BadParameter(
            f"{text!r} is no list of numbers from 1 to {_MOST_STREAMS}, such as {_STREAMS}."
        )
    return counts


@click.command("bench")
@click.argument("model", metavar="[MODEL]", required=False, shell_complete=complete_model)
@click.option(
    "--streams",
    default=_STREAMS,
    show_default=True,
    callback=_check_streams,
    help="Numbers of streams at once, measured in turn.",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Approximate length of each prompt.",
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
def bench_command(
    gateway: GatewayClient,
    *,
    model: str | None,
    streams: tuple[int, ...],
    prompt_tokens: int,
    tokens: int,
    as_json: bool,
) -> None:
    """Measure how fast the gateway answers. MODEL may be left out if one model alone is loaded.

    The model is loaded first, and its load isn't measured. Every prompt is new, so that none is in
    the prompt cache. Each row has a number of streams, the time to the first token (the median and
    the slowest stream), the tokens/s of one stream after its first token, and the tokens/s of all
    streams together, with the time for their prompts.
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
        print_json(BenchReport(model_id, levels))
        return
    prompts = f"prompts of {levels[0].prompt_tokens:,} tokens"
    click.echo(f"{printable(model_id)}: {prompts}, answers of {tokens:,}")
    console.print(table_of(levels, _COLUMNS))


def _loaded_model(gateway: GatewayClient) -> str:
    models = gateway.models()
    if not models:
        raise WrongUseError(NO_MODEL)
    loaded = [model.id for model in models if model.state == "ready"] or [
        model.id for model in models
    ]
    if len(loaded) != 1:
        known = ", ".join(model.id for model in models)
        raise WrongUseError(f"Name the model to measure; there are: {known}.")
    return loaded[0]


def _warn_of_others(gateway: GatewayClient) -> None:
    # Only the status needs the admin key. Without the key `bench` goes on without this warning.
    with contextlib.suppress(CommandError):
        models = gateway.status().models
        if others := sum(model.active_requests + model.queue_depth for model in models):
            click.echo(f"Careful: {others} other requests run or wait meanwhile.", err=True)


def _rate(tokens_per_s: float | None) -> str:
    return UNKNOWN if tokens_per_s is None else f"{tokens_per_s:.1f}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
