"""Requests that pass to the server of a command, and what ends them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.requests.progress import Passage
from gateway.requests.request import Request, Terms
from gateway.requests.traffic import QueueBounds, Traffic, WorkerConnection
from gateway.system.events import EventLog
from gateway.system.refusal import Refusal
from protocol.answers import Text, Usage
from protocol.message_base import Message
from protocol.requests import Generate, Sampling, TextPrompt
from tests.gateway.requests.test_traffic import Waiting, taken

ADDRESS = "key@127.0.0.1:1"
# With the mark, which is the fingerprint.
PLACE = f"f@{ADDRESS}"


def _traffic() -> Traffic:
    return Traffic("m", QueueBounds(5, 1, 0), Waiting(), EventLog())


def _passage(request_id: str, **terms: int) -> Request:
    return Request(Passage(request_id), Terms(deadline_s=5.0, **terms), now=100.0)


def _connection(sent: Callable[[Message], None], address: str = ADDRESS) -> WorkerConnection:
    return WorkerConnection(sent, "f", 10, address=address)


def _nothing_is_sent(message: Message) -> None:
    raise AssertionError(f"{message} was sent")


async def _address(request: Request) -> str:
    (part,) = (await taken(request)).parts
    assert isinstance(part, Text)
    return part.text


async def test_passages_run_in_turn_and_the_guard_hears_of_none() -> None:
    traffic = _traffic()
    first, last, urgent = _passage("1"), _passage("2", keep_alive_s=9), _passage("3", priority=5)
    traffic.connect(_connection(_nothing_is_sent))
    for request in (first, last, urgent):
        traffic.submit(request)
        traffic.dispatch()
    assert await _address(first) == PLACE
    assert (traffic.queue.running, traffic.queue.waiting) == (1, 2)
    traffic.end_passage(first, Usage(3, 4))
    assert await _address(urgent) == PLACE
    traffic.end_passage(urgent, None)
    assert await _address(last) == PLACE
    assert (traffic.meter.prompt_tokens, traffic.meter.generated_tokens) == (3, 4)
    assert [kind for kind, _ in first.timing.phases] == ["queue", "answer"]
    assert [kind for kind, _ in last.timing.phases] == ["queue", "answer"]
    assert traffic.use.keep_alive_s is None
    traffic.end_passage(last, None)
    assert traffic.use.keep_alive_s == 9


async def test_running_passage_ends_with_the_server_and_waiting_one_stays() -> None:
    traffic = _traffic()
    running, waiting = _passage("1"), _passage("2")
    traffic.submit(running)
    traffic.submit(waiting)
    traffic.connect(_connection(_nothing_is_sent))
    await _address(running)
    assert not traffic.park(blame=True), "no request is to blame for the end of a server"
    with pytest.raises(Refusal, match="send the request again") as caught:
        await taken(running)
    assert (caught.value.status, caught.value.lasting) == (502, False)
    traffic.connect(_connection(_nothing_is_sent, "key@127.0.0.1:2"))
    assert await _address(waiting) == "f@key@127.0.0.1:2"


async def test_prompts_do_not_pass_and_passages_are_not_computed() -> None:
    traffic = _traffic()
    generate = Generate(request_id="g", prompt=TextPrompt("x"), sampling=Sampling(seed=1))
    traffic.connect(_connection(_nothing_is_sent))
    with pytest.raises(Refusal, match="server of its own"):
        traffic.submit(Request(generate, Terms(deadline_s=5.0), now=100.0))
    traffic.park(blame=False)
    traffic.connect(_connection(_nothing_is_sent, ""))
    with pytest.raises(Refusal, match="no model with a command"):
        traffic.submit(_passage("1"))
