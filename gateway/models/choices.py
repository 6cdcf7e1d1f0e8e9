"""The requests whose answers are the choices of one, read side by side."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence

from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.requests.request import Piece, Request, Shortcut
from gateway.system.refusal import Refusal
from protocol.answers import Usage
from protocol.parts import Text


def submit_all(fleet: Fleet, compartment: Compartment, requests: Sequence[Request]) -> None:
    """Raises: Refusal: one of them isn't taken, so none is."""
    for index, each in enumerate(requests):
        try:
            fleet.submit(compartment, each)
        except Refusal:
            for taken in requests[:index]:
                compartment.traffic.cancel(taken)
            raise


async def pieces(
    requests: Sequence[Request], shortcut: Shortcut | None = None
) -> AsyncGenerator[tuple[int, Piece]]:
    """Their pieces as they come, each with the number of its choice, until all are at their end.
    If there is but one, `shortcut` gets those that it writes.

    Raises:
        Refusal: one of the answers ends here.
        ClientGoneError: they were abandoned.
    """
    if len(requests) == 1:
        # Nearly all are alone, and need no task for each piece.
        while True:
            piece = await requests[0].take(shortcut)
            yield 0, piece
            if piece.finish_reason is not None:
                return
    takers = {asyncio.create_task(each.take()): index for index, each in enumerate(requests)}
    try:
        while takers:
            done, _ = await asyncio.wait(takers, return_when=asyncio.FIRST_COMPLETED)
            ready = deque(sorted(done, key=lambda each: takers[each]))
            done.clear()
            while ready:
                index = takers.pop(ready[0])
                # What fails has this frame, which must not have what failed: it would stay.
                piece = ready.popleft().result()
                if piece.finish_reason is None:
                    takers[asyncio.create_task(requests[index].take())] = index
                yield index, piece
    finally:
        for taker in takers:
            taker.cancel()
        # Several may have failed; one of them was told.
        await asyncio.gather(*takers, return_exceptions=True)


def only_text(piece: Piece) -> str | None:
    """Its text, if that is all there is to it, as with nearly every piece."""
    if len(piece.parts) != 1 or piece.finish_reason is not None:
        return None
    (part,) = piece.parts
    return part.text if isinstance(part, Text) else None


def system_fingerprint(request: Request) -> str | None:
    """Another one, another model: the same seed may give another text. None: nobody ran it yet."""
    fingerprint = request.progress.fingerprint
    return fingerprint and f"fp_{fingerprint[:12]}"


def usage_of(usages: Sequence[Usage], answers_each: int) -> Usage:
    """Of all choices, with so many to each prompt, which counts once. What the first of them
    computed the others found.
    """
    prompts = [
        usages[begin : begin + answers_each] for begin in range(0, len(usages), answers_each)
    ]
    return Usage(
        sum(each[0].prompt_tokens for each in prompts),
        sum(each.completion_tokens for each in usages),
        sum(min(one.cached_tokens for one in each) for each in prompts),
        sum(each.reasoning_tokens for each in usages),
    )
