"""What embeddings and rerank share: a body's common fields, its request, and the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Annotated, Final

from msgspec import Meta, Struct
from starlette.types import Receive, Scope, Send

from gateway.http.answer import Reply
from gateway.http.connection.request_id import unique
from gateway.http.errors import error_response
from gateway.http.model_call import ModelCall, check_mailbox
from gateway.http.sampling import Priority
from gateway.requests.request import Request
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
    call: ModelCall,
    body: VectorBody,
    embed: Callable[[str], Embed],
    params: dict[RequestField, str],
) -> Request:
    """Put it into its model's queue. `embed` gets the id of the message, `params` are the body's
    names for the message's fields.

    Raises:
        Refusal: a header can't be read, or the queue is full.
    """
    check_mailbox(call.http)
    names = {**params, "truncate": "truncate_prompt_tokens"}
    terms = call.terms(body.priority, body.keep_alive, names)
    request = Request(embed(unique(terms.id)), terms, call.fleet.now())
    call.count([request])
    call.fleet.submit(call.compartment, request)
    return request


class VectorAnswer(Reply):
    """JSON that is written piece by piece."""

    def __init__(
        self, call: ModelCall, request: Request, written: Callable[[Usage], Iterator[bytes]]
    ) -> None:
        """`written` makes the pieces of the body, once the vectors are there."""
        super().__init__(call.compartment, [request])
        self._request = request
        self._written = written

    @property
    def usage(self) -> Usage | None:
        return self._request.spent

    async def write(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._write(await self._until_over(), send)
        except Refusal as refusal:
            await error_response(refusal, scope["path"])(scope, receive, send)

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
