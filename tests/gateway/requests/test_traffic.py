"""What those are told that find no place."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from gateway.requests.request import AnswerPiece, Request, Terms
from gateway.requests.traffic import ProtocolBreachError, QueueBounds, Traffic, WorkerConnection
from gateway.system.events import EventLog
from gateway.system.refusal import Refusal
from protocol.answers import (
    Alternative,
    AnswerPart,
    Delta,
    Guesses,
    Logprobs,
    Output,
    Reasoning,
    Rendered,
    RequestFailed,
    Text,
    TokenLogprob,
    ToolCall,
    Usage,
)
from protocol.message_base import Message, pack
from protocol.requests import (
    Cancel,
    ChatMessage,
    ChatPrompt,
    Generate,
    Picture,
    Sampling,
    TextPrompt,
)


def _request(request_id: str) -> Request:
    generate = Generate(request_id=request_id, prompt=TextPrompt("x"), sampling=Sampling(seed=1))
    return Request(generate, Terms(deadline_s=5.0), now=100.0)


async def taken(request: Request) -> AnswerPiece:
    """What has arrived for the reader of a request. A wait for more would never end."""
    reading = asyncio.ensure_future(request.next_piece())
    await asyncio.sleep(0)
    assert reading.done(), "nothing has arrived"
    return await reading


class Waiting:
    """A model that waits for memory."""

    load_s = 42
    short_of_memory = False

    def notify(self) -> None:
        pass

    def describe(self) -> str:
        return "is waiting: it needs 3 GB"


def _traffic(loop_now: float = 100.0) -> Traffic:
    traffic = Traffic("m", QueueBounds(1, 1, 0), Waiting(), EventLog())
    traffic.tick(loop_now, remind_after_s=60.0)
    return traffic


async def test_deadlines_stand_still_while_the_machine_sleeps() -> None:
    traffic = _traffic()
    first = _request("first")
    traffic.submit(first)
    traffic.tick(3700.0, remind_after_s=1e9)
    assert not first.over
    for tenth in range(35):
        traffic.tick(3700.0 + tenth / 10, remind_after_s=1e9)
    assert not first.over
    traffic.tick(3705.0, remind_after_s=1e9)
    assert first.over


async def test_the_full_queue_says_when_to_come_back_and_the_deadline_not_to() -> None:
    traffic = _traffic()
    first = _request("first")
    traffic.submit(first)
    with pytest.raises(Refusal) as full:
        traffic.submit(_request("second"))
    assert (full.value.code, full.value.retry_after_s) == ("queue_full", 42)
    traffic.tick(105.0, remind_after_s=60.0)
    with pytest.raises(Refusal) as late:
        await taken(first)
    assert (late.value.code, late.value.retry_after_s) == ("deadline_exceeded", None)
    assert late.value.lasting
    assert "deadline of 5 s passed" in late.value.message
    assert "The model is waiting: it needs 3 GB." in late.value.message


async def test_request_that_waits_for_memory_in_a_worker_has_a_deadline() -> None:
    sent: list[Message] = []
    host = Waiting()
    traffic = Traffic("m", QueueBounds(2, 2, 0), host, EventLog())
    traffic.tick(100.0, remind_after_s=1e9)
    waits, begun = _request("waits"), _request("begun")
    for request in (waits, begun):
        traffic.submit(request)
    traffic.connect(WorkerConnection(sent.append, "f", 100))
    traffic.rendered(Rendered(request_id="begun.1", token_ids=b"", last=True))
    traffic.output(Output(step=1, deltas=(Delta("begun.1", (5,), (Text("a"),)),)))
    for tenth in range(60):
        traffic.tick(100.0 + tenth / 10, remind_after_s=1e9)
    assert not waits.over, "a long prompt may take its time"
    host.short_of_memory = True
    traffic.tick(106.0, remind_after_s=1e9)
    with pytest.raises(Refusal) as late:
        await taken(waits)
    assert late.value.code == "deadline_exceeded"
    assert not begun.over
    assert Cancel(request_id="waits.1") in sent


async def test_a_prompt_with_several_answers_counts_once() -> None:
    traffic = Traffic("m", QueueBounds(2, 2, 0), Waiting(), EventLog())
    generate = Generate(request_id="a", prompt=TextPrompt("x"), sampling=Sampling(seed=1))
    first = Request(generate, Terms(deadline_s=5.0), 100.0)
    other = Request(
        msgspec.structs.replace(generate, request_id="b"),
        Terms(deadline_s=5.0),
        100.0,
        repeats_prompt=True,
    )
    for request in (first, other):
        traffic.submit(request)
    sent: list[Message] = []
    traffic.connect(WorkerConnection(sent.append, "f", 100))
    for wire_id in ("a.1", "b.1"):
        traffic.rendered(Rendered(request_id=wire_id, token_ids=pack([1, 2, 3]), last=True))
        traffic.output(
            Output(
                step=1,
                deltas=(
                    Delta(wire_id, (5,), (Text("a"),), finish_reason="stop", usage=Usage(3, 1, 2)),
                ),
            )
        )
    assert first.over
    assert other.over
    assert (traffic.meter.prompt_tokens, traffic.meter.generated_tokens) == (3, 2)
    assert (traffic.prompt_tokens, traffic.cached_tokens) == (3, 2)


@pytest.mark.parametrize("probe", [False, True])
async def test_guesses_are_counted_as_they_come(probe: bool) -> None:
    traffic = _traffic()
    generate = Generate(request_id="a", prompt=TextPrompt("x"), sampling=Sampling(seed=1))
    sent: list[Message] = []
    traffic.connect(WorkerConnection(sent.append, "f", 100))
    traffic.submit(Request(generate, Terms(deadline_s=5.0, probe=probe), 100.0))
    traffic.dispatch()
    traffic.rendered(Rendered(request_id="a.1", token_ids=pack([1, 2, 3]), last=True))
    for guesses in (Guesses(0, 4), Guesses(2, 1)):
        traffic.output(Output(step=1, deltas=(Delta("a.1", (5,), (), guesses=guesses),)))
    assert traffic.meter.guesses == (Guesses() if probe else Guesses(2, 5))


class _NextGateway:
    """One that doesn't come up in the end."""

    def submit(self, model_id: str, request: Request) -> None:
        raise AssertionError("nothing is submitted meanwhile")

    def cancel(self, request: Request) -> None:
        raise AssertionError("nothing is cancelled meanwhile")


async def test_request_finished_by_another_gateway_is_not_sent_again() -> None:
    """It had the requests for a while: some may have ended there before it did."""
    sent: list[Message] = []
    traffic = Traffic("m", QueueBounds(4, 1, 0), Waiting(), EventLog())
    running, answered, refused, left = map(_request, ("running", "answered", "refused", "left"))
    for request in (running, answered, refused, left):
        traffic.submit(request)
    traffic.connect(WorkerConnection(sent.append, "f", 100))
    traffic.hand_over(_NextGateway())
    running.deliver(Delta("", (5,), (Text("a"),), "stop", Usage(1, 1)), 101.0)
    answered.deliver(Delta("", (5,), (Text("a"),), "stop", Usage(1, 1)), 101.0)
    refused.refuse(Refusal("internal_error", "It failed there."))
    traffic.take_back()
    generated = [message.request_id for message in sent if isinstance(message, Generate)]
    assert generated == ["running.1", "left.1"]
    assert (traffic.queue.running, traffic.queue.waiting) == (1, 0)


def _looking(sent: list[Message]) -> tuple[Traffic, Request]:
    """One whose request runs, with two pictures."""
    traffic = _traffic()
    pictures = tuple(Picture(b"%d" % number, number, f"picture {number}") for number in range(2))
    prompt = ChatPrompt((ChatMessage("user", "ab", pictures=pictures),))
    generate = Generate(request_id="r", prompt=prompt, sampling=Sampling(seed=1))
    request = Request(generate, Terms(deadline_s=5.0, params={"prompt": "messages"}), now=100.0)
    traffic.connect(WorkerConnection(sent.append, "print", 4096))
    traffic.submit(request)
    traffic.dispatch()
    return traffic, request


async def test_pictures_are_sent_again() -> None:
    sent: list[Message] = []
    traffic, request = _looking(sent)
    first = request.progress.wire_id
    traffic.rendered(Rendered(request_id=first, token_ids=pack([1, 2, 3]), last=True))
    traffic.output(Output(step=1, deltas=(Delta(first, (7,), (Text("a"),)),)))
    traffic.park(blame=True)
    traffic.connect(WorkerConnection(sent.append, "print", 4096))
    again = sent[-1]
    assert isinstance(again, Generate)
    assert (again.prompt, again.delivered) == (request.task.prompt, pack([7]))


@pytest.mark.parametrize(
    ("picture", "param"), [(0, "picture 0"), (1, "picture 1"), (2, None), (None, "messages")]
)
async def test_the_picture_that_is_to_blame(picture: int | None, param: str | None) -> None:
    traffic, request = _looking([])
    failure = RequestFailed(
        request_id=request.progress.wire_id,
        code="invalid_request_error",
        message="no",
        field="prompt",
        picture=picture,
    )
    traffic.failed(failure)
    with pytest.raises(Refusal) as refused:
        await taken(request)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "part",
    [
        Text("x" * 1000),
        Reasoning("x" * 1000),
        ToolCall(0, "x" * 1000),
        Logprobs((TokenLogprob(b"x" * 500, 0.0, (Alternative(b"x" * 500, 0.0),)),)),
    ],
)
async def test_a_text_is_no_longer_than_tokens_can_make_it(part: AnswerPart) -> None:
    traffic = Traffic("m", QueueBounds(2, 2, 0), Waiting(), EventLog())
    traffic.submit(_request("a"))
    traffic.connect(WorkerConnection(lambda _message: None, "f", 100))
    traffic.rendered(Rendered(request_id="a.1", token_ids=pack([1, 2]), last=True))
    output = Output(step=1, deltas=(Delta("a.1", (5,), (part,)),))
    for _ in range(90):
        traffic.output(output)
    wild = Output(step=1, deltas=(Delta("a.1", (), (part,)),) * 1000)
    with pytest.raises(ProtocolBreachError, match="a longer text than 90 tokens"):
        traffic.output(wild)


async def test_longest_request_in_the_worker_is_refused() -> None:
    sent: list[Message] = []
    traffic = Traffic("m", QueueBounds(4, 4, 0), Waiting(), EventLog())
    short, long = _request("short"), _request("long")
    traffic.submit(short)
    traffic.submit(long)
    traffic.connect(WorkerConnection(sent.append, "f", 100))
    traffic.rendered(Rendered(request_id="short.1", token_ids=pack([1]), last=True))
    traffic.rendered(Rendered(request_id="long.1", token_ids=pack([1, 2, 3]), last=True))
    traffic.refuse_longest(Refusal("insufficient_memory", "There is no room."))
    assert (long.over, short.over) == (True, False)
    assert sent[-1] == Cancel(request_id="long.1")
    traffic.refuse_longest(Refusal("insufficient_memory", "There is no room."))
    traffic.refuse_longest(Refusal("insufficient_memory", "There is no room."))
    assert short.over
