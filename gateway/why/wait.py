"""How long the parts of a request's wait for its first token took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from gateway.requests.use import PhaseKind
from gateway.why.record import Facts, RequestRecord, StateChange

WaitPart: TypeAlias = Literal["queue", "memory", "start", "load", "drain", "prefill", "parked"]

# The parts of the wait for a worker, by the state that the model had.
_OF_STATE: Final[dict[str, WaitPart]] = {
    "waiting": "memory",
    "starting": "start",
    "loading": "load",
    "draining": "drain",
    "stopping": "drain",
    "backoff": "load",
    "ready": "queue",
}
# A request in the queue of a model may wait for a load as well: the state tells.
_OF_WORKER: Final[dict[PhaseKind, WaitPart]] = {"load": "start", "queue": "queue"}
_OF_PHASE: Final[dict[PhaseKind, WaitPart]] = {
    "prefill": "prefill",
    "parked": "parked",
    "resumed": "prefill",
}
_WORDS: Final[dict[WaitPart, str]] = {
    "queue": "waiting for other requests",
    "memory": "waiting for memory",
    "start": "starting a worker",
    "load": "loading the model",
    "drain": "ending the worker before",
    "prefill": "computing the prompt",
    "parked": "waiting for another worker",
}
_DECIMALS: Final = 3


class Wait(Struct, frozen=True):
    """The seconds until the first token, and their parts. `first_token_s` is null as long as there
    is no token.
    """

    first_token_s: float | None
    parts_s: dict[WaitPart, float]
    sentence: str


def wait_of(record: RequestRecord, facts: Facts, now: float) -> Wait:
    """The wait of a request. `now` is a Unix time."""
    first_token_s = record.trace.timing.first_token_s
    ended_at = now if first_token_s is None else record.at + first_token_s
    parts: dict[WaitPart, float] = {}
    for part, seconds in _parts(record, facts.states, ended_at):
        parts[part] = parts.get(part, 0.0) + seconds
    parts = {part: round(seconds, _DECIMALS) for part, seconds in parts.items() if seconds > 0}
    rounded = None if first_token_s is None else round(first_token_s, _DECIMALS)
    return Wait(rounded, parts, _sentence(parts, ended_at - record.at, over=rounded is not None))


def _parts(
    record: RequestRecord, states: Sequence[StateChange], ended_at: float
) -> Iterator[tuple[WaitPart, float]]:
    timing = record.trace.timing
    entered = [(kind, record.at + begin - timing.arrived_at) for kind, begin in timing.phases]
    ends = [*(begin for _, begin in entered[1:]), ended_at]
    for (kind, begin), end in zip(entered, ends, strict=True):
        end = min(end, ended_at)
        if kind in _OF_WORKER:
            yield from _by_state(states, begin, end, _OF_WORKER[kind])
        elif kind in _OF_PHASE and end > begin:
            yield _OF_PHASE[kind], end - begin


def _by_state(
    states: Sequence[StateChange], begin: float, end: float, part: WaitPart
) -> Iterator[tuple[WaitPart, float]]:
    """The time from `begin` to `end` by the states of the model, and before these as `part`."""
    for change in states:
        if change.at >= end:
            break
        if change.at > begin:
            yield part, change.at - begin
            begin = change.at
        part = _OF_STATE.get(change.state, "load")
    yield part, max(0.0, end - begin)


def _sentence(parts: dict[WaitPart, float], seconds: float, *, over: bool) -> str:
    if not parts:
        return "It has not waited for anything yet."
    longest = max(parts, key=lambda part: parts[part])
    whole = f"{seconds:.2f} s" if over else f"{seconds:.2f} s so far, without a token"
    return f"{whole}; {_WORDS[longest]} took most of it, {parts[longest]:.2f} s."
