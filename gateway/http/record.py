"""What is known of one HTTP request while it is served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from starlette.requests import Request
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


def record_of(request: Request) -> Record:
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
