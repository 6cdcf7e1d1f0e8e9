"""The requests that finished last, without their texts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, TypeAlias

from msgspec import Struct

from gateway.requests.use import PhaseKind, Timing
from protocol.answers import Usage

Moments: TypeAlias = Sequence[tuple[PhaseKind, float]]

_MOST: Final = 200


class PhaseStatus(Struct, frozen=True):
    """A part of a request's life, in seconds after its arrival."""

    kind: PhaseKind
    begin_s: float
    end_s: float


class FinishedRequest(Struct, frozen=True, kw_only=True):
    """A request that has finished. `outcome` is ok, client_left, passed_error, or the code of the
    `error`, which is the sentence that the client got. `model` is null if the request was refused
    before its model was found, and `status` if the client left before there was an answer. Tokens
    are null where they are not known. `ended_at` is a Unix time.

    A request for several answers has the sums of their tokens, and the `phases` of the first.
    """

    id: str
    path: str
    model: str | None
    key: str | None
    ended_at: float
    seconds: float
    status: int | None
    outcome: str
    error: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    queue_s: float | None
    first_token_s: float | None
    tokens_per_s: float | None
    phases: Sequence[PhaseStatus]


class FinishedRequests:
    """Keeps the last `most` finished requests, in memory. `count` is of all since the start."""

    def __init__(self, most: int = _MOST) -> None:
        self.count = 0
        self._kept: deque[FinishedRequest] = deque(maxlen=most)

    def add(self, finished: FinishedRequest) -> None:
        self.count += 1
        self._kept.append(finished)

    def recent(self, count: int) -> list[FinishedRequest]:
        """The last `count` of the kept requests, the latest first."""
        return list(islice(reversed(self._kept), count))


def phases(
    timings: Sequence[Timing], began_at: float, ended_at: float, *, passed: bool
) -> list[PhaseStatus]:
    """The life of the first answer, between moments on the clock of its timing. `passed`: another
    server has answered. A request without timings was passed on at once.
    """
    entered: Moments = [("answer", began_at)] if passed else []
    if timings:
        entered = timings[0].phases
    return [
        PhaseStatus(kind, round(at - began_at, 4), round(end_at - began_at, 4))
        for kind, at, end_at in _ended(entered, ended_at)
    ]


def tokens_per_s(usage: Usage | None, timings: Sequence[Timing]) -> float | None:
    """The rate of all answers together while tokens came. None: there were too few tokens."""
    if usage is None or not timings or timings[0].last_token_at is None:
        return None
    entered = _ended(timings[0].phases, timings[0].last_token_at)
    seconds = sum(max(0.0, end_at - at) for kind, at, end_at in entered if kind == "tokens")
    # The first token of an answer comes at the beginning of that time.
    tokens = usage.completion_tokens - len(timings)
    return round(tokens / seconds, 2) if tokens > 0 and seconds > 0 else None


def _ended(entered: Moments, ended_at: float) -> Iterator[tuple[PhaseKind, float, float]]:
    """Each phase, with its begin and its end."""
    ends = [*(at for _, at in entered[1:]), ended_at]
    return ((kind, at, end_at) for (kind, at), end_at in zip(entered, ends, strict=False))
