"""The answers to one request of a client: asked for together, and read side by side."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from gateway.requests.request import AnswerPiece, Request, Shortcut, Terms
from protocol.answers import AnswerPart, FinishReason, Text, Usage, merged
from protocol.requests import Generate

_NOTHING: Final = Usage(0, 0)


class Choice(Struct):
    """One whole answer, with merged parts."""

    parts: Sequence[AnswerPart]
    finish_reason: FinishReason


class Format(Protocol):
    """How one API writes answers down."""

    def opening(self, index: int) -> bytes:
        """Events before the first piece of a choice."""

    def piece(self, index: int, piece: AnswerPiece) -> bytes:
        """The events of one piece of a choice."""

    def closing(self, usage: Usage) -> bytes:
        """Events after the last piece of all."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The body of answers that aren't streamed."""


class Choices:
    """The answers as far as they have come. Streamed ones are written by `form` at once; the parts
    of others are kept until `whole`.
    """

    def __init__(self, requests: Sequence[Request], form: Format, answers_each: int) -> None:
        """Each prompt has `answers_each` of the requests."""
        self.unopened = set(range(len(requests)))
        self.unfinished = set(self.unopened)
        self._requests = requests
        self._form = form
        self._answers_each = answers_each
        self._parts: list[list[AnswerPart]] = [[] for _ in requests]
        self._reasons: list[FinishReason] = ["stop" for _ in requests]

    @property
    def cut(self) -> bool:
        """One of them was ended by its limit."""
        return "length" in self._reasons

    @property
    def usage(self) -> Usage | None:
        """The tokens computed so far, also for answers that end early; None: none were."""
        spent = [each.spent for each in self._requests if each.spent is not None]
        return usage_of(spent, self._answers_each) if spent else None

    def keep(self, index: int, piece: AnswerPiece) -> None:
        self._parts[index] += piece.parts
        self._note_end(index, piece)

    def write(self, index: int, piece: AnswerPiece) -> bytes:
        """The events of a piece, behind those that open its choice."""
        events = self._form.opening(index) if index in self.unopened else b""
        self.unopened.discard(index)
        self._note_end(index, piece)
        return events + self._form.piece(index, piece)

    def closing(self) -> bytes:
        """The events after the last piece."""
        return self._form.closing(self.usage or _NOTHING)

    def whole(self) -> bytes:
        """The body, once all answers have ended."""
        choices = map(Choice, map(merged, self._parts), self._reasons)
        return self._form.whole(list(choices), self.usage or _NOTHING)

    def _note_end(self, index: int, piece: AnswerPiece) -> None:
        if piece.finish_reason is not None:
            self._reasons[index] = piece.finish_reason
            self.unfinished.discard(index)


def answers_to(generate: Generate, number: int, terms: Terms, now: float) -> list[Request]:
    """Requests for so many answers to one prompt. Each has random numbers of its own; the first has
    the same as if it were alone.
    """
    requests = []
    for index in range(number):
        seed = (generate.sampling.seed + index) & (1 << 64) - 1
        task = msgspec.structs.replace(
            generate,
            request_id=f"{generate.request_id}.{index}",
            sampling=msgspec.structs.replace(generate.sampling, seed=seed),
        )
        requests.append(Request(task, terms, now, repeats_prompt=index > 0))
    return requests


async def pieces(
    requests: Sequence[Request], shortcut: Shortcut | None = None
) -> AsyncGenerator[tuple[int, AnswerPiece]]:
    """The pieces of all answers as they come, each with the number of its choice. If there is only
    one answer, `shortcut` gets the pieces that it writes.

    Raises:
        Refusal: one of the answers ends here.
        ClientGoneError: they were abandoned.
    """
    if len(requests) == 1:
        # Nearly all requests are alone, and need no task for each piece.
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
                # A failure refers to this frame; if the frame held the task, neither were freed.
                piece = ready.popleft().result()
                if piece.finish_reason is None:
                    takers[asyncio.create_task(requests[index].take())] = index
                yield index, piece
    finally:
        for taker in takers:
            taker.cancel()
        # Several may have failed; one failure was raised.
        await asyncio.gather(*takers, return_exceptions=True)


def only_text(piece: AnswerPiece) -> str | None:
    """The text of a piece that is nothing but text, as nearly every one."""
    if len(piece.parts) != 1 or piece.finish_reason is not None:
        return None
    (part,) = piece.parts
    return part.text if isinstance(part, Text) else None


def system_fingerprint(request: Request) -> str | None:
    """With another one the same seed may give another text. None: it was not sent yet."""
    fingerprint = request.progress.fingerprint
    return fingerprint and f"fp_{fingerprint[:12]}"


def usage_of(usages: Sequence[Usage], answers_each: int) -> Usage:
    """The usage of all choices. Each prompt counts once for its `answers_each` choices: the first
    of them computes it, and the others find it.
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
