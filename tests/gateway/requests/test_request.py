"""The single slot that an answer arrives in."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

import pytest
from msgspec import msgpack

from gateway.requests.choices import pieces
from gateway.requests.request import (
    AnswerPiece,
    ClientGoneError,
    Request,
    RequestState,
    Terms,
)
from gateway.system.refusal import Refusal
from protocol.answers import Delta, Guesses, Text, Usage
from protocol.message_base import pack
from protocol.requests import Generate, Sampling, TextPrompt

USAGE = Usage(3, 4)


def _request() -> Request:
    generate = Generate(request_id="r", prompt=TextPrompt("x"), sampling=Sampling(seed=1))
    return Request(generate, Terms(deadline_s=5.0), now=100.0)


def _arrive(request: Request, delta: Delta) -> None:
    if request.deliver(delta, 101.0):
        request.tell(101.0)


async def test_deltas_between_two_reads_are_one_piece() -> None:
    request = _request()
    for parts in ((Text("a"),), (), (Text("b"),)):
        _arrive(request, Delta("r", (1,), parts))
    piece = await request.next_piece()
    assert (piece.parts, piece.finish_reason) == ((Text("ab"),), None)
    _arrive(request, Delta("r", (1,), (Text("c"),), "stop", USAGE))
    piece = await request.next_piece()
    assert (piece.parts, piece.finish_reason, piece.usage) == ((Text("c"),), "stop", USAGE)
    assert request.over


async def test_a_reader_waits_for_text() -> None:
    request = _request()
    _arrive(request, Delta("r", (1,), ()))
    reader = asyncio.create_task(request.next_piece())
    await asyncio.sleep(0)
    assert not reader.done()
    _arrive(request, Delta("r", (1,), (Text("a"),)))
    assert (await reader).parts == (Text("a"),)


async def test_text_goes_before_the_refusal_that_ends_it() -> None:
    request = _request()
    _arrive(request, Delta("r", (1,), (Text("a"),)))
    request.refuse(Refusal("worker_crashed", "gone"))
    request.refuse(Refusal("shutting_down", "too late to matter"))
    assert (await request.next_piece()).parts == (Text("a"),)
    with pytest.raises(Refusal, match="gone"):
        await request.next_piece()


@pytest.mark.parametrize("answers", [1, 3])
async def test_refused_request_is_freed_with_its_reader(answers: int) -> None:
    """A prompt may be large, and nobody looks for cycles for a long time."""
    refusal = Refusal("model_unavailable", "gone", retry_after_s=5, param="prompt")

    async def read(requests: list[Request]) -> None:
        for request in requests:
            request.refuse(refusal)
        with contextlib.suppress(Refusal):
            async with contextlib.aclosing(pieces(requests)) as arriving:
                async for _ in arriving:
                    pass

    requests = [_request() for _ in range(answers)]
    left = [weakref.ref(request) for request in requests]
    gc.disable()
    try:
        await read(requests)
        requests.clear()
        # Tasks that have ended are the loop's for another turn.
        await asyncio.sleep(0)
        assert [reference_type() for reference_type in left] == [None] * answers
    finally:
        gc.enable()
    assert refusal.__traceback__ is None


async def test_a_shortcut_has_what_comes_while_the_reader_waits_but_for_the_end() -> None:
    request = _request()
    written: list[AnswerPiece] = []
    takes = True

    def shortcut(piece: AnswerPiece) -> bool:
        if takes:
            written.append(piece)
        return takes

    _arrive(request, Delta("r", (1,), (Text("before"),)))
    assert (await request.next_piece(shortcut)).parts == (Text("before"),)
    # Nobody waits: a piece written now would overtake the one that was taken.
    _arrive(request, Delta("r", (1,), (Text("a"),)))
    assert (await request.next_piece(shortcut)).parts == (Text("a"),)
    reader = asyncio.create_task(request.next_piece(shortcut))
    await asyncio.sleep(0)
    _arrive(request, Delta("r", (1,), (Text("b"),)))
    _arrive(request, Delta("r", (1,), (Text("c"),)))
    assert [answer_piece.parts for answer_piece in written] == [(Text("b"),), (Text("c"),)]
    takes = False
    _arrive(request, Delta("r", (1,), (Text("d"),)))
    takes = True
    # The reader has been woken, and what follows is behind what it will take.
    _arrive(request, Delta("r", (1,), (Text("e"),)))
    assert (await reader).parts == (Text("de"),)
    reader = asyncio.create_task(request.next_piece(shortcut))
    await asyncio.sleep(0)
    _arrive(request, Delta("r", (1,), (Text("f"),), "stop", USAGE))
    assert (await reader).finish_reason == "stop"
    assert len(written) == 2


async def test_late_reader_gets_no_idle_piece() -> None:
    request = _request()
    _arrive(request, Delta("r", (1,), (Text("a"),)))
    await request.next_piece()
    request.tell(102.0)
    reader = asyncio.create_task(request.next_piece())
    await asyncio.sleep(0)
    assert not reader.done()
    reader.cancel()


async def test_reminders_are_idle_pieces() -> None:
    request = _request()
    request.remind(104.0, 5.0)
    request.remind(105.0, 5.0)
    assert (await request.next_piece()).idle
    _arrive(request, Delta("r", (1,), (Text("a"),)))
    request.remind(10_000_000.0, 5.0)
    assert (await request.next_piece()).parts == (Text("a"),)


async def test_abandoned_answer_is_not_read() -> None:
    request = _request()
    _arrive(request, Delta("r", (1,), (Text("a"),)))
    request.abandon()
    with pytest.raises(ClientGoneError):
        await request.next_piece()


@pytest.mark.parametrize(("reported", "counted"), [(-1, 0), (0, 0), (3, 3), (4, 3)])
async def test_no_more_is_cached_than_the_prompt_has(reported: int, counted: int) -> None:
    """The worker that goes on with a request finds delivered tokens, too."""
    request = _request()
    _arrive(request, Delta("r", (1,), (Text("a"),), "stop", Usage(3, 4, reported)))
    assert (await request.next_piece()).usage == Usage(3, 4, counted)


async def test_guesses_are_those_of_the_whole_answer() -> None:
    """Of every worker and every gateway that had it, and of an answer that is cut, too."""
    request = _request()
    request.progress.next_message("f")
    request.progress.render(pack([1, 2, 3]), last=True)
    _arrive(request, Delta("r", (1, 1), (Text("a"),), guesses=Guesses(1, 4)))
    assert request.spent == Usage(3, 2, guesses=Guesses(1, 4))
    moved = _request()
    moved.restore(msgpack.decode(msgpack.encode(request.state), type=RequestState))
    assert moved.spent == request.spent
    _arrive(moved, Delta("r", (1,), (Text("b"),), guesses=Guesses(0, 2)))
    _arrive(moved, Delta("r", (1,), (), "stop", USAGE, guesses=Guesses(1, 0)))
    assert (await moved.next_piece()).usage == Usage(3, 4, guesses=Guesses(2, 6))
