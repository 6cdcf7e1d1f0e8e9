"""How fast a gateway answers several streams at once, as its clients see it."""

from __future__ import annotations

import secrets
import statistics
import threading
import time
from typing import Final

from msgspec import Struct

from gateway.cli.bodies import CompletionChunk, ErrorEnvelope, UsageReading
from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError

# Ordinary words, most of which are one token to most models.
_WORDS: Final = (
    "the",
    "ship",
    "has",
    "many",
    "rooms",
    "and",
    "each",
    "keeps",
    "the",
    "water",
    "out",
)


class Job(Struct, frozen=True):
    """What each stream asks for. A prompt has about so many tokens; an answer exactly."""

    model: str
    prompt_tokens: int
    tokens: int


class Level(Struct, frozen=True):
    """What so many streams got. `prompt_tokens` is the mean of the prompts, as the model counts.

    Times to the first token count from when all were sent. `stream_tokens_per_s` is the median of
    the streams behind their first token, `tokens_per_s` that of all together, with the time that
    their prompts took.
    """

    streams: int
    prompt_tokens: int
    tokens: int
    first_token_s: float
    worst_first_token_s: float
    stream_tokens_per_s: float | None
    tokens_per_s: float


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


class _Stream:
    """One of them, on a thread of its own."""

    def __init__(self, gateway: GatewayClient, job: Job) -> None:
        self._gateway = gateway
        # No prompt begins like another one: what is computed once would be for all.
        words = " ".join(_WORDS[each % len(_WORDS)] for each in range(job.prompt_tokens))
        self._request = _Request(job.model, f"{secrets.token_hex(8)} {words}", job.tokens)
        self.failure: Exception | None = None
        self.first_at = self.last_at = 0.0
        self.usage: UsageReading | None = None
        # A daemon: Ctrl-C waits for nobody.
        self.thread = threading.Thread(target=self._run, name="stream", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._read()
        except Exception as error:
            # Raised by whoever waits for the thread.
            self.failure = error

    def _read(self) -> None:
        with self._gateway.completion(self._request) as events:
            for event in events:
                if event.kind == "comment":
                    continue
                if event.kind == "error":
                    envelope = self._gateway.read(event.data, ErrorEnvelope)
                    raise CommandError(envelope.error.message)
                if event.data == "[DONE]":
                    return
                chunk = self._gateway.read(event.data, CompletionChunk)
                if chunk.choices:
                    self.last_at = time.monotonic()
                    self.first_at = self.first_at or self.last_at
                self.usage = chunk.usage or self.usage
        raise CommandError("An answer broke off before its end.")


def measure(gateway: GatewayClient, job: Job, streams: int) -> Level:
    """Raises: CommandError, if one of the streams gets no answer."""
    began_at = time.monotonic()
    running = [_Stream(gateway, job) for _ in range(streams)]
    for each in running:
        # Each read of a stream has a deadline.
        each.thread.join()
        if each.failure is not None:
            raise each.failure
    usages = [each.usage for each in running if each.usage is not None]
    if len(usages) < streams:
        raise CommandError("What answers doesn't count tokens; is it a Bulkhead gateway?")
    tokens = sum(each.completion_tokens for each in usages)
    first_s = [each.first_at - began_at for each in running]
    rates = [
        (usage.completion_tokens - 1) / (each.last_at - each.first_at)
        for each, usage in zip(running, usages, strict=True)
        if each.last_at > each.first_at
    ]
    return Level(
        streams=streams,
        prompt_tokens=round(statistics.mean(each.prompt_tokens for each in usages)),
        tokens=tokens,
        first_token_s=statistics.median(first_s),
        worst_first_token_s=max(first_s),
        stream_tokens_per_s=statistics.median(rates) if rates else None,
        tokens_per_s=tokens / (max(each.last_at for each in running) - began_at),
    )
