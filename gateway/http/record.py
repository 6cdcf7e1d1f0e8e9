"""The record of an HTTP request while it is served, and its id."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.types import Scope

from gateway.requests.use import Timing
from protocol.answers import Usage

_KEY: Final = "record"
# An outcome beside the codes of errors.
CLIENT_LEFT: Final = "client_left"


class Record(Struct):
    """`id` is the client's own if it sent a valid one. `key` is the name of the API key; None
    without keys. Routes that generate set the model, the usage and the timings. `counted`: the
    usage is in the key's account already. `outcome` is the code of the error that ended the
    request, if its status alone does not tell.
    """

    id: str
    key: str | None = None
    model: str | None = None
    usage: Usage | None = None
    counted: bool = False
    timings: Sequence[Timing] = ()
    status: int | None = None
    outcome: str | None = None

    @property
    def queue_s(self) -> float | None:
        """How long the last of the answers waited for a worker, in seconds."""
        waits = (each.queue_s for each in self.timings if each.queue_s is not None)
        return max(waits, default=None)

    @property
    def first_token_s(self) -> float | None:
        """The time until the first token of any answer, in seconds."""
        waits = (each.first_token_s for each in self.timings if each.first_token_s is not None)
        return min(waits, default=None)


def begin_record(scope: Scope, record: Record) -> None:
    scope.setdefault("state", {})[_KEY] = record


def record_of(request: HttpRequest) -> Record:
    record: Record = request.scope["state"][_KEY]
    return record


def note_usage(scope: Scope, usage: Usage, *, counted: bool = False) -> None:
    """`counted`: the mailbox has counted it in the key's account already."""
    record: Record = scope["state"][_KEY]
    record.usage = usage
    record.counted = counted


def note_outcome(scope: Scope, outcome: str) -> None:
    """Requests that are answered before they reach the application have no record."""
    record: Record | None = scope.get("state", {}).get(_KEY)
    if record is not None:
        record.outcome = outcome


HEADER: Final = b"x-request-id"
# An id must need no escaping in JSON, log lines and headers.
_SANE: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:~/+=@-]{0,127}")
_MADE: Final = re.compile(r"req_[0-9a-f]{32}")


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's X-Request-Id if there is exactly one and it is valid, else a new id."""
    given = [value for name, value in headers if name == HEADER]
    if len(given) == 1 and _SANE.fullmatch(given[0]):
        return given[0].decode("ascii")
    return new_request_id()


def new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"


def unique(request_id: str) -> str:
    """The id with a suffix, since clients may send the same id twice."""
    return f"{request_id}.{secrets.token_hex(4)}"
