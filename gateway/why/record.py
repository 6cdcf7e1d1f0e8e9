"""A request as it is remembered, and what the gateway knows beside it."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

from gateway.requests.trace import MARK_TOKENS, Trace
from gateway.why.divergence import common_length
from gateway.why.sections import Sketch

_BESIDE_BYTES: Final = 2_000
# A mark has 8 bytes for 64 tokens, and a token at least a character.
_CHARACTERS_PER_BYTE: Final = MARK_TOKENS // 8


class RequestRecord(Struct, frozen=True, kw_only=True, eq=False):
    """A request of a client. `id` is its x-request-id, and `answer` the id of its answer if that
    has another. `owner` is the owner of its key, and `salt` the body's own. It came at `at`, a Unix
    time in seconds. The `trace` is filled while workers have the request.
    """

    id: str
    answer: str
    model: str
    owner: str
    key: str | None
    salt: str
    at: float
    sketch: Sketch
    trace: Trace

    @property
    def bytes_(self) -> int:
        """About what the record takes beside its sections, with the marks that will come."""
        characters = sum(section.length for section in self.sketch.sections)
        return _BESIDE_BYTES + len(self.sketch.arguments) + characters // _CHARACTERS_PER_BYTE

    @property
    def cached_tokens(self) -> int | None:
        """The tokens of the prompt that were found; None: the worker hasn't reported."""
        return None if self.trace.usage is None else self.trace.usage.cached_tokens

    @property
    def computed_at(self) -> float | None:
        """When the prompt was computed; None: it never was, or isn't yet."""
        first_token_s = self.trace.timing.first_token_s
        return None if first_token_s is None else self.at + first_token_s

    @property
    def sent_at(self) -> float | None:
        """When a worker got the request first."""
        queue_s = self.trace.timing.queue_s
        return None if queue_s is None else self.at + queue_s

    def shared_tokens(self, other: RequestRecord) -> int:
        """How many tokens both prompts begin with, in whole blocks."""
        return MARK_TOKENS * common_length(self.trace.marks, other.trace.marks)


CacheEventKind: TypeAlias = Literal["quarantined", "cleared", "ended"]


class CacheEvent(Struct, frozen=True):
    """What happened to a model's cached prompts at `at`, a Unix time; `reason` says why."""

    at: float
    kind: CacheEventKind
    reason: str


class StateChange(Struct, frozen=True):
    """The model's state from `at` on, a Unix time."""

    at: float
    state: str


class Facts(Struct, frozen=True):
    """What the gateway knows of the model, in the order of time: what happened to its cached
    prompts, and its states. `off` says why its prompt cache is off, if it is.
    """

    cache_events: tuple[CacheEvent, ...] = ()
    states: tuple[StateChange, ...] = ()
    off: str = ""
