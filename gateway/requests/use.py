"""How a model is used: counts and times of its requests, and how long they keep it loaded."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from gateway.system.clock import present_clock
from gateway.system.tasks import Histogram
from protocol.answers import Guesses


class UseState(Struct, frozen=True):
    """The use of a model, as the next gateway takes it over."""

    last_at: float | None
    last: float
    keep_alive_s: float | None


class Use:
    """The last use of a model: its time in seconds, as `last_at` in Unix time, and as `last` on the
    `PresentClock`. `keep_alive_s` is that of the last request.
    """

    def __init__(self) -> None:
        self.last_at: float | None = None
        self.last = 0.0
        self.keep_alive_s: float | None = None
        self._clock = present_clock()

    def record(self, keep_alive_s: float | None) -> None:
        self.keep_alive_s = keep_alive_s
        self.last_at = time.time()
        self.last = self._clock.now()

    @property
    def state(self) -> UseState:
        return UseState(self.last_at, self.last, self.keep_alive_s)

    def restore(self, state: UseState) -> None:
        """Go on from the state of an earlier gateway."""
        self.last_at = state.last_at
        self.last = state.last
        self.keep_alive_s = state.keep_alive_s


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def parse_keep_alive(value: float | str) -> float:
    """Seconds, as ollama reads them from a number of seconds, or from a text such as "5m" or
    "1h30m". A negative value gives infinity.

    Raises:
        ValueError: the value is no time; the text is a sentence for the client.
    """
    seconds = _parse_text(value) if isinstance(value, str) else float(value)
    if math.isnan(seconds):
        raise ValueError("keep_alive is no number")
    return math.inf if seconds < 0 else seconds


def _parse_text(text: str) -> float:
    unsigned = text.strip().removeprefix("-")
    sign = -1.0 if text.strip().startswith("-") else 1.0
    if re.fullmatch(r"\d{1,12}(\.\d{1,12})?", unsigned):
        return sign * float(unsigned)
    parts = _PART.findall(unsigned)
    if not parts or "".join(number + unit for number, unit in parts) != unsigned:
        raise ValueError(
            f"keep_alive is {text[:40]!r}: send seconds, or a text such as 30s, 5m or 1h30m; 0 "
            "unloads the model at once, a negative one keeps it"
        )
    return sign * sum(float(number) * _UNITS[unit] for number, unit in parts)


# What a request does: it waits for its model or for its turn, has its prompt read, gets tokens,
# waits again because its worker is gone or others come first, is read again, or is with the server
# that answers it.
PhaseKind: TypeAlias = Literal["load", "queue", "prefill", "tokens", "parked", "resumed", "answer"]
# The last phase goes on if there are more, as of a request that often makes way.
_MOST_PHASES: Final = 64


class Timing(Struct):
    """Times of a request, in seconds. `queue_s` is the time from its arrival until a worker had it,
    and `first_token_s` is the time from its arrival until its first token. `phases` has the moment
    at which each phase began. All moments are on the caller's clock.
    """

    arrived_at: float
    queue_s: float | None = None
    first_token_s: float | None = None
    last_token_at: float | None = None
    phases: list[tuple[PhaseKind, float]] = []

    def enter(self, kind: PhaseKind, now: float) -> None:
        """Begin a phase, unless it is the present one."""
        present = self.phases[-1][0] if self.phases else None
        if kind != present and len(self.phases) < _MOST_PHASES:
            self.phases.append((kind, now))

    def sent(self, now: float) -> None:
        """Record that a worker has the request."""
        again = any(kind == "parked" for kind, _ in self.phases)
        self.enter("resumed" if again else "prefill", now)


# Bounds of histograms, in seconds. A prompt that is found in the cache takes milliseconds, a long
# prompt minutes.
FIRST_TOKEN_S: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
    *(2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0),
)
BETWEEN_TOKENS_S: Final = (
    *(0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
QUEUE_S: Final = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
# The most times to the first token that are kept until they are taken, which is every few seconds.
_LATEST: Final = 1000
LOAD_S: Final = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


class ModelMeter:
    """Counts of one model's requests. Only `parked` and `resumed` include probes. `prompt_tokens`
    counts the tokens of prompts whose answer has begun. `parked` counts how often a request was
    parked, and `resumed` how often a request was sent again. `guesses` counts the guesses that were
    checked for the generated tokens. `looped_answers` repeated the same tokens until they were cut
    off, the `repetition_stops` among them because of that. `latest_s` has the last times to a first
    token, in seconds, until somebody takes them away.
    """

    def __init__(self) -> None:
        self.first_token_s = Histogram(FIRST_TOKEN_S)
        self.latest_s: deque[float] = deque(maxlen=_LATEST)
        self.between_tokens_s = Histogram(BETWEEN_TOKENS_S)
        self.queue_s = Histogram(QUEUE_S)
        self.load_s = Histogram(LOAD_S)
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.guesses = Guesses()
        self.parked = 0
        self.resumed = 0
        self.looped_answers = 0
        self.repetition_stops = 0

    def sent(self, timing: Timing, now: float) -> None:
        """Note that a worker has a request."""
        if timing.queue_s is None:
            timing.queue_s = now - timing.arrived_at
            self.queue_s.observe(timing.queue_s)

    def tokens(self, timing: Timing, count: int, now: float) -> None:
        """Note `count` tokens that have come at once. They share the time since the tokens before
        them.
        """
        self.generated_tokens += count
        timing.enter("tokens", now)
        if timing.last_token_at is None:
            timing.first_token_s = now - timing.arrived_at
            self.first_token_s.observe(timing.first_token_s)
            self.latest_s.append(timing.first_token_s)
        else:
            self.between_tokens_s.observe((now - timing.last_token_at) / count, count)
        timing.last_token_at = now
