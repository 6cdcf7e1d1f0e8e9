"""What those are told that find no place."""

from __future__ import annotations

import pytest

from gateway.dispatch.refusal import Refusal
from gateway.dispatch.request import Request
from gateway.dispatch.traffic import Traffic
from gateway.events import EventLog
from protocol.messages import Generate, Sampling, TextPrompt


def _request(request_id: str) -> Request:
    generate = Generate(request_id=request_id, prompt=TextPrompt("x"), sampling=Sampling(seed=1))
    return Request(generate, now=100.0, deadline_s=5.0)


async def test_the_full_queue_and_the_deadline_say_when_to_come_back() -> None:
    traffic = Traffic(
        "m",
        depth=1,
        max_concurrency=1,
        priority=0,
        events=EventLog(),
        changed=lambda: None,
        retry_after_s=lambda: 42,
        describe=lambda: "is waiting: it needs 3 GB",
    )
    first = _request("first")
    traffic.submit(first)
    with pytest.raises(Refusal) as full:
        traffic.submit(_request("second"))
    assert (full.value.code, full.value.retry_after_s) == ("queue_full", 42)
    traffic.tick(105.0, remind_after_s=60.0)
    with pytest.raises(Refusal) as late:
        await first.take()
    assert (late.value.code, late.value.retry_after_s) == ("deadline_exceeded", 42)
    assert "deadline of 5 s passed" in late.value.message
    assert "The model is waiting: it needs 3 GB." in late.value.message
