"""Requests for vectors on their way through a model's workers."""

from __future__ import annotations

import struct

import pytest

from gateway.requests.request import Request, Terms
from gateway.requests.traffic import ProtocolBreachError, QueueBounds, Traffic, WorkerConnection
from gateway.system.events import EventLog
from gateway.system.refusal import Refusal
from protocol.answers import Embedded, Usage
from protocol.life import Ability
from protocol.message_base import Message
from protocol.requests import Embed, Generate, Sampling, TextPrompt
from tests.gateway.requests.test_traffic import taken

INPUTS = (TextPrompt("a"), TextPrompt("b"), TextPrompt("c"))
BOTH: tuple[Ability, ...] = ("embedding", "score")


class Loaded:
    """A model that is ready."""

    load_s = 1
    short_of_memory = False

    def notify(self) -> None:
        pass

    def describe(self) -> str:
        return "is ready"


def _embed(request_id: str = "r", query: str | None = None) -> Request:
    embed = Embed(request_id=request_id, inputs=INPUTS, query=query)
    return Request(embed, Terms(deadline_s=5.0), now=100.0)


def _text(request_id: str) -> Request:
    generate = Generate(request_id=request_id, prompt=TextPrompt("x"), sampling=Sampling(seed=1))
    return Request(generate, Terms(deadline_s=5.0), now=100.0)


def _traffic() -> Traffic:
    return Traffic("m", QueueBounds(4, 4, 0), Loaded(), EventLog())


def _connect(traffic: Traffic, abilities: tuple[Ability, ...] = BOTH) -> list[Message]:
    sent: list[Message] = []
    traffic.connect(WorkerConnection(sent.append, "f", 100, abilities))
    return sent


def _part(wire_id: str, *numbers: float, dimensions: int = 2, last: bool = False) -> Embedded:
    return Embedded(
        request_id=wire_id,
        dimensions=dimensions,
        vectors=struct.pack(f"<{len(numbers)}f", *numbers),
        tokens=4,
        last=last,
    )


async def test_vectors_come_in_parts() -> None:
    traffic, request = _traffic(), _embed()
    traffic.submit(request)
    assert [type(message) for message in _connect(traffic)] == [Embed]
    assert traffic.embedded(_part("r.1", 1, 2))
    assert not request.over
    assert traffic.embedded(_part("r.1", 3, 4, 5, 6, last=True))
    piece = await taken(request)
    assert piece.usage == Usage(8, 0)
    assert [struct.unpack("<2f", request.vectors[index]) for index in range(3)] == [
        (1, 2),
        (3, 4),
        (5, 6),
    ]
    assert not traffic.busy
    assert traffic.meter.prompt_tokens == 8


async def test_the_texts_of_a_probe_are_not_counted() -> None:
    traffic = _traffic()
    embed = Embed(request_id="r", inputs=INPUTS)
    traffic.submit(Request(embed, Terms(deadline_s=5.0, probe=True), now=100.0))
    _connect(traffic)
    traffic.embedded(_part("r.1", 1, 2, 3, 4, 5, 6, last=True))
    assert traffic.meter.prompt_tokens == 0


async def test_another_worker_makes_them_all() -> None:
    traffic, request = _traffic(), _embed()
    traffic.submit(request)
    _connect(traffic)
    traffic.embedded(_part("r.1", 1, 2))
    assert not traffic.park(blame=True)
    sent = _connect(traffic)
    assert sent == [Embed(request_id="r.2", inputs=INPUTS)]
    assert not traffic.embedded(_part("r.1", 7, 7)), "late ones of the first are for nobody"
    traffic.embedded(_part("r.2", 3, 4, 5, 6, 7, 8, dimensions=2, last=True))
    assert struct.unpack("<6f", request.vectors.data) == (3, 4, 5, 6, 7, 8)
    assert request.usage == Usage(4, 0)


async def test_request_that_kills_two_workers_is_quarantined() -> None:
    traffic, request = _traffic(), _embed()
    traffic.submit(request)
    for _ in range(2):
        _connect(traffic)
        traffic.park(blame=True)
    with pytest.raises(Refusal) as ended:
        await taken(request)
    assert ended.value.code == "worker_crashed"
    with pytest.raises(Refusal) as twin:
        traffic.submit(_embed("another"))
    assert twin.value.code == "worker_crashed"
    traffic.submit(_embed("other texts", query="ships"))


@pytest.mark.parametrize(
    "parts",
    [
        [_part("r.1", 1, 2, last=True)],
        [_part("r.1", 1, 2, 3, 4, 5, 6, 7, 8)],
        [_part("r.1", 1, 2), _part("r.1", 1, 2, 3, dimensions=3)],
        [_part("r.1", dimensions=0)],
        [_part("r.1", dimensions=1 << 20)],
    ],
)
async def test_vectors_that_cannot_be_end_the_worker(parts: list[Embedded]) -> None:
    traffic = _traffic()
    traffic.submit(_embed())
    _connect(traffic)
    *before, last = parts
    for embedded in before:
        traffic.embedded(embedded)
    with pytest.raises(ProtocolBreachError):
        traffic.embedded(last)


async def test_vectors_for_a_text_end_the_worker() -> None:
    traffic = _traffic()
    traffic.submit(_text("r"))
    _connect(traffic, ("text",))
    with pytest.raises(ProtocolBreachError):
        traffic.embedded(_part("r.1", 1, 2))


@pytest.mark.parametrize(
    ("abilities", "refused"),
    [
        (("embedding", "score"), ["text"]),
        (("score",), ["text", "embed"]),
        (("text",), ["embed", "rank"]),
        (("text", "embedding", "score"), []),
    ],
)
async def test_missing_ability_is_refused_before_and_after_a_load(
    abilities: tuple[Ability, ...], refused: list[str]
) -> None:
    traffic = _traffic()
    assert traffic.abilities is None
    early = [_text("text"), _embed("embed"), _embed("rank", query="q")]
    for request in early:
        traffic.submit(request)
    sent = _connect(traffic, abilities)
    assert [request.id for request in early if request.over] == refused
    assert len(sent) == 3 - len(refused)
    for request in (_text("text"), _embed("embed"), _embed("rank", query="q")):
        if request.id not in refused:
            continue
        with pytest.raises(Refusal) as late:
            traffic.submit(request)
        assert (late.value.code, late.value.param) == ("invalid_request_error", "model")
    traffic.drain()
    # The next one may be another model.
    assert traffic.abilities is None
