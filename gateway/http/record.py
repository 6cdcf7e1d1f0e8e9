"""What is known of one HTTP request while it is served."""

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
# An outcome, as the codes of errors are.
CLIENT_LEFT: Final = "client_left"


class Record(Struct):
    """`id` is the client's own if it sent a sane one; `key` is the name of the API key it came
    with, None while there are none. The model, the usage and the timings of its answers are what
    routes that generate tell; with `counted` the usage is in its key's account already. `outcome`
    is the code of the error that it ended with, if there is more to say of its end than its status
    does.
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
        """How long the last of its answers waited for a worker."""
        waits = (each.queue_s for each in self.timings if each.queue_s is not None)
        return max(waits, default=None)

    @property
    def first_token_s(self) -> float | None:
        """How long the first token of all took."""
        waits = (each.first_token_s for each in self.timings if each.first_token_s is not None)
        return min(waits, default=None)


def begin_record(scope: Scope, record: Record) -> None:
    scope.setdefault("state", {})[_KEY] = record


def record_of(request: HttpRequest) -> Record:
    record: Record = request.scope["state"][_KEY]
    return record


def note_usage(scope: Scope, usage: Usage, *, counted: bool = False) -> None:
    """`counted`: under its key already, by whoever made the answer."""
    record: Record = scope["state"][_KEY]
    record.usage = usage
    record.counted = counted


def note_outcome(scope: Scope, outcome: str) -> None:
    """Where there is a record: what is answered before the application has none."""
    record: Record | None = scope.get("state", {}).get(_KEY)
    if record is not None:
        record.outcome = outcome


HEADER: Final = b"x-request-id"
# It stands in JSON, in log lines and in headers, and must not need escaping in any of them.
_SANE: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:~/+=@-]{0,127}")
_MADE: Final = re.compile(r"req_[0-9a-f]{32}")


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's own X-Request-Id if it is sane and the only one, else a new one."""
    given = [value for name, value in headers if name == HEADER]
    if len(given) == 1 and _SANE.fullmatch(given[0]):
        return given[0].decode("ascii")
    return new_request_id()


def new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"


def unique(request_id: str) -> str:
    """The same, told apart from other requests to which their clients gave the same id."""
    return f"{request_id}.{secrets.token_hex(4)}"
