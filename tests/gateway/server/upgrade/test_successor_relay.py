"""Requests that two gateways share: what one computes the other hands on, in order and once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.requests.request import Request, RequestState, Terms
from gateway.server.upgrade.messages import (
    Cancelled,
    Delivered,
    HandoverMessage,
    Refused,
    Spent,
    Submitted,
)
from gateway.server.upgrade.successor_relay import Relay, RelayedRequest
from gateway.system.refusal import Refusal
from protocol.answers import Delta, Embedded, Text, Usage
from protocol.requests import Embed, Generate, Sampling, TextPrompt

_END = Usage(3, 4)


def _request(name: str = "r", **fields: Any) -> Request:
    task = Generate(request_id=name, prompt=TextPrompt("Hello"), sampling=Sampling(seed=1))
    return Request(task, Terms(deadline_s=60.0, **fields), asyncio.get_running_loop().time())


def _delta(number: int, *, last: bool = False) -> Delta:
    return Delta(
        "r.1",
        (number,),
        (Text(f"{number} "),),
        "stop" if last else None,
        _END if last else None,
    )


def _over_the_wire(state: RequestState) -> RequestState:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=RequestState)


async def _text(request: Request) -> str:
    text = ""
    while True:
        piece = await asyncio.wait_for(request.next_piece(), 60)
        text += "".join(part.text for part in piece.parts if isinstance(part, Text))
        if piece.finish_reason is not None:
            return text


@given(tokens=st.integers(1, 12), cut=st.integers(0, 11), again=st.integers(0, 11))
def test_tokens_survive_every_handover_once(tokens: int, cut: int, again: int) -> None:
    """Over as many gateways as there are."""

    async def play() -> None:
        request = _request()
        request.progress.next_message("f")
        request.progress.render(b"\1\0\0\0", last=True)
        reader: Request = request
        relays: list[Relay] = []
        for number in range(tokens):
            for _ in range((number == cut) + (number == again)):
                relay = Relay()
                state = _over_the_wire(reader.state)
                guest = RelayedRequest(relay.add(reader), "m", state, relay.receive)  # type: ignore[arg-type]
                assert guest.state == state
                relay.open(lambda _: None)
                relays.append(relay)
                reader = guest
            if reader.deliver(_delta(number, last=number == tokens - 1), 0.0):
                reader.tell(0.0)
        assert await _text(request) == "".join(f"{number} " for number in range(tokens))
        assert list(request.progress.delivered) == list(range(tokens))
        assert list(reader.progress.delivered) == list(range(tokens))
        assert request.usage == _END
        assert not any(map(len, relays))

    asyncio.run(play())


async def test_orders_wait_until_successor_serves() -> None:
    relay, sent = Relay(), list[HandoverMessage]()
    running, late = _request("a"), _request("b")
    number = relay.add(running)
    relay.submit("m", late)
    relay.cancel(running)
    relay.spend("key", _END)
    relay.open(sent.append)
    assert [type(message) for message in sent] == [Submitted, Cancelled, Spent]
    assert sent[1] == Cancelled(number)
    # Nobody reads that one any more.
    assert len(relay) == 1
    relay.receive(Delivered(number, _delta(1)))
    assert not running.progress.delivered
    relay.cancel(late)
    assert sent[-1] == Cancelled(2)
    assert len(relay) == 0


async def test_undo_returns_orders_in_order() -> None:
    relay = Relay()
    running, late, gone = _request("a"), _request("b"), _request("c")
    for request in (running, gone):
        relay.add(request)
    relay.submit("m", late)
    relay.cancel(gone)
    relay.spend("key", _END)
    submitted, cancelled, spent = relay.undo()
    assert isinstance(submitted, Submitted)
    assert (submitted.model, relay.request(submitted.number)) == ("m", late)
    assert isinstance(cancelled, Cancelled)
    assert relay.request(cancelled.number) is gone
    assert spent == Spent("key", _END)


async def test_refusal_ends_relayed_request() -> None:
    relay = Relay()
    request = _request()
    number = relay.add(request)
    refusal = Refusal("queue_full", "Later.", param="model", retry_after_s=3, lasting=True)
    relay.receive(Refused(number, refusal.state))
    assert request.over
    assert len(relay) == 0
    with pytest.raises(Refusal) as raised:
        await request.next_piece()
    assert raised.value.state == refusal.state


async def test_refuse_all_ends_every_request() -> None:
    relay = Relay()
    requests = [_request(str(index)) for index in range(3)]
    for request in requests:
        relay.add(request)
    relay.refuse_all(Refusal("shutting_down", "It is gone."))
    assert all(request.over for request in requests)
    assert len(relay) == 0


async def test_relayed_request_has_terms_of_original() -> None:
    request = _request(
        id="mine", key="k", probe=True, priority=3, keep_alive_s=5.0, params={"prompt": "p"}
    )
    guest = RelayedRequest(1, "m", _over_the_wire(request.state), lambda _: None)
    assert guest.terms == request.terms
    assert guest.id == "mine"
    assert not guest.prompt_counts
    again = Request(request.task, Terms(deadline_s=60.0), 0.0, repeats_prompt=True)
    assert not RelayedRequest(2, "m", _over_the_wire(again.state), lambda _: None).prompt_counts
    assert guest.deadline_at == request.deadline_at
    assert guest.task == request.task


def _vector(number: int, *, last: bool = False) -> Embedded:
    return Embedded(
        request_id="v.1", dimensions=1, vectors=bytes([number] * 4), tokens=2, last=last
    )


async def test_vectors_survive_handover_once() -> None:
    task = Embed(request_id="v", inputs=(TextPrompt("a"), TextPrompt("b")))
    request = Request(task, Terms(deadline_s=60.0), asyncio.get_running_loop().time())
    request.progress.next_message("f")
    request.deliver_vectors(_vector(1))
    relay = Relay()
    sent: list[Any] = []
    guest = RelayedRequest(relay.add(request), "m", _over_the_wire(request.state), sent.append)
    # One that is computed anew is so everywhere.
    guest.start(0.0)
    guest.deliver_vectors(_vector(3))
    guest.deliver_vectors(_vector(4, last=True))
    for item in sent:
        relay.receive(item)
    assert request.over
    assert bytes(request.vectors.data) == bytes(guest.vectors.data) == b"\3\3\3\3\4\4\4\4"
    assert request.usage == guest.usage == Usage(4, 0)
