"""`truncation: auto`: what doesn't fit is dropped from the beginning of a conversation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from gateway.http.connection.request_id import unique
from gateway.http.model_call import ModelCall
from gateway.http.responses.items import ItemBody
from gateway.requests.request import Request, Terms
from gateway.system.refusal import Refusal
from protocol.requests import Generate

# What an answer finds at most, if the context is not a small one.
_ROOM_TOKENS: Final = 1024
_SMALL: Final = 4


def cuts(items: Sequence[ItemBody]) -> list[int]:
    """How many of the first items can go: up to each message of a user, so that calls stay with
    their outputs. 0 comes first.
    """
    users = [index for index, each in enumerate(items) if each.role == "user" and index]
    return [0, *users]


def kept(items: Sequence[ItemBody], cut: int) -> list[int]:
    """The places of what is left. What the system says stays."""
    return [
        index
        for index, each in enumerate(items)
        if index >= cut or each.role in ("system", "developer")
    ]


async def first_that_fits(
    call: ModelCall,
    terms: Terms,
    build: Callable[[int], Awaitable[Generate]],
    choices: Sequence[int],
) -> int:
    """The least of these cuts with which prompt and answer fit the context; the last, if none does.
    The model counts, so it is loaded for this.

    Raises:
        Refusal: it can't count now.
    """
    low, high = 0, len(choices) - 1
    while low < high:
        middle = (low + high) // 2
        if await _fits(call, terms, await build(choices[middle])):
            high = middle
        else:
            low = middle + 1
    return choices[low]


def counting(generate: Generate) -> Generate:
    """The same for its number of prompt tokens: nothing is computed for an answer of no token."""
    return msgspec.structs.replace(generate, max_tokens=0, constraint=None)


async def _fits(call: ModelCall, terms: Terms, generate: Generate) -> bool:
    task = msgspec.structs.replace(counting(generate), request_id=unique(terms.id))
    request = Request(task, terms, call.fleet.now())
    call.fleet.submit(call.compartment, request)
    try:
        while not request.over:
            await request.take()
    except Refusal as refusal:
        if refusal.code == "context_length_exceeded":
            return False
        raise
    finally:
        if not request.over:
            call.compartment.traffic.cancel(request)
    worker = call.compartment.worker
    if request.usage is None or worker is None or worker.report.context_tokens is None:
        return True
    context = worker.report.context_tokens
    room = min(generate.max_tokens or _ROOM_TOKENS, context // _SMALL)
    return request.usage.prompt_tokens + room <= context
