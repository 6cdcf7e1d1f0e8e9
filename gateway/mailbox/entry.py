"""An answer in the mailbox: its entry, its work and its outcome; and the rules of retention."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from gateway.access.api_key import name_of_owner
from gateway.config.settings import MailboxSettings
from protocol.answers import RequestField
from protocol.requests import Generate

Api: TypeAlias = Literal["responses", "chat"]
# The statuses of OpenAI's Responses.
Status: TypeAlias = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]
Name: TypeAlias = tuple[str, str]

PENDING: Final[tuple[Status, ...]] = ("queued", "in_progress")


class MailboxEntry(Struct, kw_only=True):
    """One answer, without its contents. Times are Unix times in seconds.

    `owner` identifies the API key that the answer belongs to, and is empty without keys; `key` is
    the key's name. `attempts` counts how often the answer was begun, and `deaths` counts how often
    the gateway died while it made the answer. With `background` no client waits for the answer.
    With `streams` the answer's events are stored.
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
    """All that is needed to make so many `answers` to a task, also after a crash. The API's writer
    is made from `form`. With `cut_is_incomplete` an answer that is cut off by its limit of tokens
    has the status "incomplete".
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
        """Raises: msgspec.MsgspecError: another version has encoded the work."""
        return msgspec.msgpack.decode(data, type=cls)


class AnswerOutcome(Struct, frozen=True):
    """The end of an answer: its body and its HTTP status, as the client gets them, and its `events`
    if they are stored.
    """

    status: Status
    http_status: int
    body: bytes
    events: bytes = b""


class StoredAnswer(Struct, frozen=True):
    """An answer from the file, with the contents that the caller asked for. `items` are the input
    items of a response, as a JSON list. `events` are the answer's whole stream.
    """

    entry: MailboxEntry
    http_status: int
    body: bytes
    items: bytes
    events: bytes


# The size of an entry without contents. If it were 0, the number of empty entries would have no
# bound.
OVERHEAD_BYTES = 4096


class Retention(Struct, frozen=True):
    """The rules of retention: answers stay for `keep_s` after their end, and all answers
    together take at most `size_bytes`.
    """

    keep_s: float
    size_bytes: int

    @classmethod
    def of(cls, settings: MailboxSettings) -> Retention:
        return cls(settings.keep_s, settings.size_bytes)

    def expires_before(self, now: float) -> float:
        """The Unix time such that answers that ended by then are removed."""
        return now - self.keep_s

    def excess_bytes(self, held_bytes: int, more_bytes: int) -> int:
        """The bytes that must be removed before `more_bytes` can be added."""
        return max(0, held_bytes + more_bytes - self.size_bytes)


def share_of_free(total: int, others: int) -> int:
    """How much of `total` one owner may have while the other owners have `others`: half of the
    rest, so that there is always room for another owner.
    """
    return max(0, total - others + 1) // 2


def charged_bytes(*contents: bytes) -> int:
    """The bytes that an entry with these contents counts for."""
    return OVERHEAD_BYTES + sum(map(len, contents))
