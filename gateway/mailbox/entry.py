"""What the mailbox knows of an answer."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from gateway.access.api_key import name_of_owner
from gateway.config.settings import MailboxSettings
from protocol.answers import RequestField
from protocol.requests import Generate

Api: TypeAlias = Literal["responses", "chat"]
# As OpenAI's Responses have them.
Status: TypeAlias = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]
Name: TypeAlias = tuple[str, str]

PENDING: Final[tuple[Status, ...]] = ("queued", "in_progress")


class MailboxEntry(Struct, kw_only=True):
    """One answer, without its contents. Times are Unix times in seconds.

    `owner` is that of the API key that it belongs to, empty without keys; `key` is its name.
    `attempts` says how often it was begun, and `deaths` how often the gateway died meanwhile. With
    `background` nobody waits for it; with `streams` its events are kept.
    """

    owner: str
    id: str
    api: Api
    model: str
    status: Status
    created_at: float
    deadline_at: float = 0.0
    ended_at: float | None = None
    priority: int = 0
    attempts: int = 0
    deaths: int = 0
    background: bool = False
    streams: bool = False

    @property
    def name(self) -> Name:
        return self.owner, self.id

    @property
    def key(self) -> str | None:
        return name_of_owner(self.owner)

    @property
    def pending(self) -> bool:
        return self.status in PENDING


class Work(Struct):
    """What it takes to make so many `answers` to a task, after a crash as well. `form` is what its
    API's writer is made from. With `cut_is_incomplete` one that its limit cuts has that for its
    status.
    """

    request_id: str
    task: Generate
    answers: int
    priority: int | None
    keep_alive_s: float | None
    params: dict[RequestField, str]
    form: bytes
    cut_is_incomplete: bool = False

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Work:
        """Raises: msgspec.MsgspecError: another version has written it."""
        return msgspec.msgpack.decode(data, type=cls)


class AnswerOutcome(Struct, frozen=True):
    """How an answer ended: its body as its client gets it, with what HTTP status."""

    status: Status
    http_status: int
    body: bytes
    events: bytes = b""


class StoredAnswer(Struct, frozen=True):
    """An answer and its contents, as far as they are there. `items` are what a response answers, a
    JSON list; `events` a whole stream.
    """

    entry: MailboxEntry
    http_status: int
    body: bytes
    items: bytes
    events: bytes


# What an entry takes beside its contents. Without it, empty ones would have no bound.
OVERHEAD_BYTES = 4096


class Retention(Struct, frozen=True):
    """Answers are kept for `keep_s` once they are there, and all together within `size_bytes`."""

    keep_s: float
    size_bytes: int

    @classmethod
    def of(cls, settings: MailboxSettings) -> Retention:
        return cls(settings.keep_s, settings.size_bytes)

    def expired(self, ended_at: float, now: float) -> bool:
        return ended_at <= self.expires_before(now)

    def expires_before(self, now: float) -> float:
        """Who ended by then has waited long enough."""
        return now - self.keep_s

    def excess_bytes(self, held_bytes: int, more_bytes: int) -> int:
        """How much must go before so much more can come."""
        return max(0, held_bytes + more_bytes - self.size_bytes)


def share_of_free(total: int, others: int) -> int:
    """How much one owner may have of a total while others have so much: half of what they leave, so
    that nobody takes all, whoever comes later.
    """
    return max(0, total - others + 1) // 2


def charged_bytes(*contents: bytes) -> int:
    """What an entry with these contents counts for."""
    return OVERHEAD_BYTES + sum(map(len, contents))
