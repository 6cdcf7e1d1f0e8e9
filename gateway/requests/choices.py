"""The answers to one request of a client, which are made together and read side by side."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from gateway.requests.request import AnswerPiece, Request, Shortcut, Terms
from protocol.answers import AnswerPart, FinishReason, Guesses, Text, Usage, merged
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
        """Events after the last piece of the last choice."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The body of answers that aren't streamed."""


class Choices:
    """The answers to one request of a client, as far as they have come. Callers `write` pieces as
    events of a stream, or `store` them for the `whole` body, or do both.
    """

    def __init__(self, requests: Sequence[Request], form: Format, answers_each: int) -> None:
        """`requests` has `answers_each` requests for each prompt."""
        self.unopened = set(range(len(requests)))
        self.unfinished = set(self.unopened)
        self._requests = requests
        self._form = form
        self._answers_each = answers_each
        self._parts: list[list[AnswerPart]] = [[] for _ in requests]
        self._reasons: list[FinishReason] = ["stop" for _ in requests]

    @property
    def cut(self) -> bool:
        """Whether an answer was ended by its limit of tokens."""
        return "length" in self._reasons

    @property
    def usage(self) -> Usage | None:
        """The tokens that were computed so far, also for answers that ended early; None: there were
        none.
        """
        spent = [request.spent for request in self._requests if request.spent is not None]
        return usage_of(spent, self._answers_each) if spent else None

    def store(self, index: int, piece: AnswerPiece) -> None:
        self._parts[index] += piece.parts
        self._record_end(index, piece)

    def write(self, index: int, piece: AnswerPiece) -> bytes:
        """The events of a piece. Before the first piece come the events that open its choice."""
        events = self._form.opening(index) if index in self.unopened else b""
        self.unopened.discard(index)
        self._record_end(index, piece)
        return events + self._form.piece(index, piece)

    def closing(self) -> bytes:
        """The events after the last piece."""
        return self._form.closing(self.usage or _NOTHING)

    def whole(self) -> bytes:
        """The body with all answers, once they have ended."""
        choices = map(Choice, map(merged, self._parts), self._reasons)
        return self._form.whole(list(choices), self.usage or _NOTHING)

    def _record_end(self, index: int, piece: AnswerPiece) -> None:
        if piece.finish_reason is not None:
            self._reasons[index] = piece.finish_reason
            self.unfinished.discard(index)


def answers_to(generate: Generate, number: int, terms: Terms, now: float) -> list[Request]:
    """Requests for `number` answers to one prompt. Each request has a seed of its own; the first
    request has the seed of `generate`.
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
    one answer, its pieces go to `shortcut` instead, as long as that can write them.

    Raises:
        Refusal: an answer ends without its rest.
        ClientGoneError: the requests were abandoned.
    """
    if len(requests) == 1:
        # Nearly all clients ask for one answer, and that needs no task for each piece.
        while True:
            piece = await requests[0].next_piece(shortcut)
            yield 0, piece
            if piece.finish_reason is not None:
                return
    takers = {
        asyncio.create_task(request.next_piece()): index for index, request in enumerate(requests)
    }
    try:
        while takers:
            done, _ = await asyncio.wait(takers, return_when=asyncio.FIRST_COMPLETED)
            ready = deque(sorted(done, key=lambda task: takers[task]))
            done.clear()
            while ready:
                index = takers.pop(ready[0])
                # A task's exception refers to this frame. If the frame held the task, neither would
                # be freed.
                piece = ready.popleft().result()
                if piece.finish_reason is None:
                    takers[asyncio.create_task(requests[index].next_piece())] = index
                yield index, piece
    finally:
        for taker in takers:
            taker.cancel()
        # Several tasks may have failed, and one failure was raised.
        await asyncio.gather(*takers, return_exceptions=True)


def only_text(piece: AnswerPiece) -> str | None:
    """The text of a piece that is nothing but text, as most pieces are; otherwise None."""
    if len(piece.parts) != 1 or piece.finish_reason is not None:
        return None
    (part,) = piece.parts
    return part.text if isinstance(part, Text) else None


def system_fingerprint(request: Request) -> str | None:
    """OpenAI's sign that the same seed gives the same text: another fingerprint may give another
    text. None: the request was not sent yet.
    """
    fingerprint = request.progress.fingerprint
    return fingerprint and f"fp_{fingerprint[:12]}"


def usage_of(usages: Sequence[Usage], answers_each: int) -> Usage:
    """The usage of all choices. Each prompt counts once for its `answers_each` choices: the first
    choice computes the prompt, and the other choices find it in the cache.
    """
    prompts = [
        usages[begin : begin + answers_each] for begin in range(0, len(usages), answers_each)
    ]
    return Usage(
        sum(prompt[0].prompt_tokens for prompt in prompts),
        sum(usage.completion_tokens for usage in usages),
        sum(min(answer.cached_tokens for answer in prompt) for prompt in prompts),
        sum(usage.reasoning_tokens for usage in usages),
        sum((usage.guesses for usage in usages), Guesses()),
    )
