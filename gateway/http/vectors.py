"""What embeddings and rerank share: a body's common fields, its request, and the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Annotated, Final

from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.http.callers import caller_of, take_places
from gateway.http.connection.request_id import unique
from gateway.http.errors import error_response
from gateway.http.record import CLIENT_LEFT, note_outcome, note_usage, record_of
from gateway.http.sampling import Priority, check_mailbox, deadline_s, keep_alive_of, priority_of
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.requests.request import ClientGoneError, Request
from gateway.system.refusal import Refusal
from protocol.answers import RequestField, Usage
from protocol.requests import Embed

# OpenAI's bound.
MOST_INPUTS: Final = 2048
_LARGEST_COUNT: Final = (1 << 31) - 1
# Written with one breath, which leaves the event loop its turns.
_WRITTEN_BYTES: Final = 64 << 10

Truncate = Annotated[int, Meta(ge=-1, le=_LARGEST_COUNT)]


class VectorBody(Struct, kw_only=True):
    """What is done on both paths."""

    model: str
    truncate_prompt_tokens: Truncate | None = None
    priority: Priority | None = None
    keep_alive: float | str | None = None


def submit(
    http_request: HttpRequest,
    body: VectorBody,
    embed: Callable[[str], Embed],
    params: dict[RequestField, str],
) -> tuple[Compartment, Request]:
    """Put it into its model's queue. `embed` gets the id of the message, `params` are the body's
    names for the message's fields.

    Raises:
        Refusal: no such model, a header can't be read, or the queue is full.
    """
    check_mailbox(http_request)
    fleet: Fleet = http_request.app.state.fleet
    compartment = fleet.roster.find(body.model, caller_of(http_request))
    record = record_of(http_request)
    record.model = compartment.model.id
    request = Request(
        embed(unique(record.id)),
        fleet.now(),
        deadline_s(http_request, fleet.settings.queue.deadline_s),
        request_id=record.id,
        key=record.key,
        priority=priority_of(http_request, body.priority, compartment.model),
        keep_alive_s=keep_alive_of(http_request, body.keep_alive, compartment.model),
        params={**params, "truncate": "truncate_prompt_tokens"},
    )
    record.timings = (request.timing,)
    take_places(http_request, [request])
    fleet.submit(compartment, request)
    return compartment, request


class VectorAnswer(Response):
    """Reads a submitted request to its end, then writes JSON piece by piece; cancels it when the
    client leaves.
    """

    def __init__(
        self,
        compartment: Compartment,
        request: Request,
        written: Callable[[Usage], Iterator[bytes]],
    ) -> None:
        """`written` makes the pieces of the body, once the vectors are there."""
        self.background = None
        self._compartment = compartment
        self._request = request
        self._written = written

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._watch_client(receive))
        try:
            usage = await self._until_over()
            await self._write(usage, send)
        except Refusal as refusal:
            await error_response(refusal, scope["path"])(scope, receive, send)
        except ClientGoneError:
            note_outcome(scope, CLIENT_LEFT)
        finally:
            watcher.cancel()
            self._cancel()
            if self._request.spent is not None:
                note_usage(scope, self._request.spent)

    async def _until_over(self) -> Usage:
        while True:
            piece = await self._request.take()
            if piece.usage is not None:
                return piece.usage

    async def _write(self, usage: Usage, send: Send) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        unsent = bytearray()
        for piece in self._written(usage):
            unsent += piece
            if len(unsent) >= _WRITTEN_BYTES:
                await send({"type": "http.response.body", "body": bytes(unsent), "more_body": True})
                unsent.clear()
                # A client that reads as fast as this writes never makes it wait.
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": bytes(unsent), "more_body": False})

    async def _watch_client(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._cancel()
        self._request.abandon()

    def _cancel(self) -> None:
        if not self._request.over:
            self._compartment.traffic.cancel(self._request)
