"""The course of requests: sent in turn, parked, sent again, counted, handed over, refused."""

from __future__ import annotations

import asyncio

import pytest

from gateway.requests.progress import SUSPECT_TOKENS
from gateway.requests.request import Request, Terms
from gateway.requests.traffic import ProtocolBreachError, QueueBounds, Traffic, WorkerConnection
from gateway.system.events import EventLog
from gateway.system.refusal import Refusal
from protocol.answers import Delta, Output, Rendered, RequestFailed, Text, Usage
from protocol.message_base import Message, pack
from protocol.messages import ProtocolError
from protocol.requests import Cancel, Generate, Sampling, SamplingDefaults, TextPrompt
from tests.gateway.requests.test_traffic import Waiting, taken

CONTEXT_TOKENS = 100
STOPPED = Refusal("shutting_down", "no more")


class Model(Waiting):
    """Looks at the numbers of its requests, waiting and running, at each notification."""

    traffic: Traffic
    seen: tuple[int, int] | None = None

    def notify(self) -> None:
        self.seen = self.traffic.queue.waiting, self.traffic.queue.running


class World:
    """`sent` is what all workers were sent."""

    def __init__(self, running: int = 1) -> None:
        self.model, self.events = Model(), EventLog()
        self.traffic = Traffic("m", QueueBounds(4, running, 0), self.model, self.events)
        self.model.traffic = self.traffic
        self.sent: list[Message] = []

    def connect(self, fingerprint: str = "f") -> None:
        self.traffic.connect(
            WorkerConnection(
                self.sent.append,
                fingerprint,
                CONTEXT_TOKENS,
                sampling=SamplingDefaults(temperature=0.5),
            )
        )

    def submit(
        self, name: str, *, probe: bool = False, keep_alive_s: float | None = None
    ) -> Request:
        generate = Generate(request_id=name, prompt=TextPrompt("x"), sampling=Sampling(seed=1))
        terms = Terms(deadline_s=1e9, probe=probe, keep_alive_s=keep_alive_s)
        request = Request(generate, terms, asyncio.get_running_loop().time())
        self.traffic.submit(request)
        self.traffic.dispatch()
        return request

    def render(self, wire_id: str) -> None:
        self.traffic.rendered(Rendered(request_id=wire_id, token_ids=pack([1, 2, 3]), last=True))

    def say(self, wire_id: str, tokens: int = 1, *, last: bool = False) -> bool:
        """A prompt of 3 tokens has such an answer."""
        end = ("stop", Usage(3, tokens, 2)) if last else (None, None)
        delta = Delta(wire_id, (5,) * tokens, (Text("a"),), *end)
        return self.traffic.output(Output(step=1, deltas=(delta,)))

    def fail(self, wire_id: str) -> None:
        self.traffic.failed(RequestFailed(request_id=wire_id, code="internal_error", message="no"))

    @property
    def sent_ids(self) -> list[str]:
        """Requests that were sent, by their ids on the wire, and cancelled, with a minus."""
        return [
            f"-{message.request_id}" if isinstance(message, Cancel) else message.request_id
            for message in self.sent
            if isinstance(message, Cancel | Generate)
        ]

    def kinds(self, request: str) -> list[str]:
        events = self.events.recent(100)
        return [event.kind for event in events if event.fields["request"] == request]


@pytest.fixture
async def world() -> World:
    return World()


def _sent(world: World) -> tuple[float, int]:
    return world.traffic.meter.queue_s.buckets()[-1]


async def test_requests_are_use_and_probes_are_not(world: World) -> None:
    world.connect()
    use, meter = world.traffic.use, world.traffic.meter
    world.submit("probe", probe=True)
    world.render("probe.1")
    world.say("probe.1", last=True)
    assert (use.last_at, _sent(world)[1], meter.prompt_tokens) == (None, 0, 0)
    world.submit("a", keep_alive_s=7.0)
    assert use.last_at is not None
    assert (use.keep_alive_s, _sent(world)[1]) == (7.0, 1)


async def test_the_end_of_a_request_is_use_too(world: World) -> None:
    world.submit("a", keep_alive_s=7.0)
    world.connect()
    assert world.traffic.use.keep_alive_s is None, "it was about the worker before"
    world.fail("a.1")
    assert world.traffic.use.keep_alive_s == 7.0
    world.connect()
    assert world.traffic.use.keep_alive_s == 7.0, "it is the same worker"


async def test_model_is_notified_when_its_request_numbers_change(world: World) -> None:
    traffic, model = world.traffic, world.model
    world.connect()
    requests = [world.submit(name) for name in "abcd"]
    traffic.cancel(requests[0])
    assert model.seen == (2, 1)
    world.fail("b.1")
    assert model.seen == (1, 1)
    traffic.park(blame=False)
    assert model.seen == (2, 0)
    world.connect()
    traffic.refuse_waiting(STOPPED)
    assert model.seen == (0, 1)
    traffic.refuse_all(STOPPED)
    assert model.seen == (0, 0)


async def test_a_model_is_busy_as_long_as_it_has_a_request(world: World) -> None:
    assert not world.traffic.busy
    for name in "ab":
        world.submit(name)
        world.connect()
        assert world.traffic.busy
    world.fail("a.1")
    world.render("b.1")
    world.say("b.1", last=True)
    assert not world.traffic.busy


async def test_tokens_are_counted_as_they_come_and_a_prompt_once(world: World) -> None:
    world.connect()
    request = world.submit("a")
    world.render("a.1")
    for tokens in (1, 2):
        world.say("a.1", tokens)
        assert (await taken(request)).parts == (Text("a"),)
        assert world.traffic.meter.prompt_tokens == 3
    assert (world.traffic.prompt_tokens, world.traffic.cached_tokens) == (0, 0)
    world.say("a.1", 3, last=True)
    assert world.traffic.meter.generated_tokens == 6
    assert (world.traffic.prompt_tokens, world.traffic.cached_tokens) == (3, 2)
    assert request.sampling.temperature == 0.5


async def test_output_for_whoever_is_gone_is_passed_over(world: World) -> None:
    world.connect()
    request = world.submit("a")
    world.render("a.1")
    assert not world.say("gone.1")
    deltas = (Delta("gone.1", (5,), (Text("b"),)), Delta("a.1", (5,), (Text("a"),)))
    assert world.traffic.output(Output(step=1, deltas=deltas))
    assert (await taken(request)).parts == (Text("a"),)


async def test_an_answer_has_no_more_tokens_than_the_context(world: World) -> None:
    world.connect()
    world.submit("a")
    world.render("a.1")
    world.say("a.1", CONTEXT_TOKENS)
    with pytest.raises(ProtocolBreachError, match="tokens for one request"):
        world.say("a.1")


async def test_suspects_run_alone_until_they_are_cleared() -> None:
    world = World(running=4)
    world.connect()
    requests = [world.submit(name) for name in "ab"]
    world.traffic.park(blame=True)
    assert [request.state.started_at for request in requests] == [None, None]
    world.connect()
    world.render("a.2")
    world.say("a.2", SUSPECT_TOKENS - 1)
    assert world.sent_ids == ["a.1", "b.1", "a.2"]
    world.say("a.2")
    # The other one has its turn.
    assert world.sent_ids[3:] == ["-a.2", "b.2"]
    assert requests[0].state.started_at is None
    world.render("b.2")
    world.say("b.2", SUSPECT_TOKENS)
    assert world.sent_ids[5:] == ["a.3"]
    meter = world.traffic.meter
    assert (meter.parked, meter.resumed) == (3, 3)
    assert world.kinds("a") == ["park", "resume", "park", "resume"]
    assert world.kinds("b") == ["park", "resume"]


async def test_no_request_is_sent_to_a_lost_worker(world: World) -> None:
    world.connect()
    world.submit("a")
    world.traffic.park(blame=False)
    world.submit("b")
    assert world.sent_ids == ["a.1"]


async def test_the_rest_of_an_answer_comes_from_the_same_model(world: World) -> None:
    world.connect("old")
    begun, waits = world.submit("begun"), world.submit("waits")
    world.render("begun.1")
    world.say("begun.1")
    await taken(begun)
    world.traffic.park(blame=False)
    world.connect("new")
    with pytest.raises(Refusal, match="changed while the answer was interrupted"):
        await taken(begun)
    assert not waits.over
    assert world.sent_ids == ["begun.1", "waits.1"]
    (refused,) = (event for event in world.events.recent(9) if event.kind == "refuse")
    assert refused.fields == {
        "request": "begun",
        "delivered_tokens": 1,
        "code": "model_unavailable",
    }


async def test_a_message_too_large_ends_its_request_alone(world: World) -> None:
    large, small = world.submit("large"), world.submit("small")
    sent: list[Message] = []

    def send(message: Message) -> None:
        if isinstance(message, Generate) and message.request_id.startswith("large"):
            raise ProtocolError
        sent.append(message)

    world.traffic.connect(WorkerConnection(send, "f", CONTEXT_TOKENS))
    with pytest.raises(Refusal) as refused:
        await taken(large)
    assert refused.value.code == "request_too_large"
    assert (len(sent), small.over, world.traffic.queue.running) == (1, False, 1)


async def test_other_bounds_hold_at_once(world: World) -> None:
    world.connect()
    for name in "abcd":
        world.submit(name)
    world.traffic.configure(QueueBounds(3, 2, 5))
    assert world.sent_ids == ["a.1", "b.1"]
    assert (world.traffic.queue.depth, world.traffic.queue.priority) == (3, 5)
    world.traffic.allow(3)
    assert world.sent_ids == ["a.1", "b.1", "c.1"]


async def test_a_drain_ends_with_the_worker(world: World) -> None:
    world.connect()
    world.traffic.drain()
    world.submit("a")
    assert world.sent_ids == []
    world.traffic.park(blame=False)
    world.connect()
    assert world.sent_ids == ["a.1"]


class _Successor:
    def __init__(self) -> None:
        self.got: list[str] = []

    def submit(self, model_id: str, request: Request) -> None:
        self.got.append(f"{model_id}: {request.id}")

    def cancel(self, request: Request) -> None:
        self.got.append(f"-{request.id}")


async def test_the_next_gateway_gets_what_comes_after_the_hand_over(world: World) -> None:
    world.connect()
    running = world.submit("running")
    world.submit("waiting")
    successor = _Successor()
    world.traffic.hand_over(successor)
    world.submit("late")
    world.traffic.cancel(running)
    assert successor.got == ["m: late", "-running"]
    assert world.sent_ids == ["running.1"]
    assert (world.traffic.queue.waiting, world.traffic.queue.running) == (1, 1)
    world.traffic.forget()
    assert not world.traffic.busy


async def test_whoever_is_refused_is_cancelled_in_the_worker(world: World) -> None:
    world.connect()
    requests = [world.submit(name) for name in "ab"]
    world.traffic.refuse_all(STOPPED)
    assert world.sent_ids == ["a.1", "-a.1"]
    for request in requests:
        with pytest.raises(Refusal, match="no more"):
            await taken(request)


async def test_an_operator_lets_in_again_what_killed_workers(world: World) -> None:
    world.submit("a")
    for _ in range(2):
        world.connect()
        world.traffic.park(blame=True)
    with pytest.raises(Refusal) as quarantined:
        world.submit("twin")
    assert quarantined.value.code == "worker_crashed"
    world.traffic.forget_deaths()
    world.submit("twin")


async def test_ages_count_from_the_arrival(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = world.traffic
    assert (traffic.oldest_waiting_s, traffic.oldest_running_s) == (None, None)
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    world.submit("a")
    now += 5.0
    assert traffic.oldest_waiting_s == pytest.approx(5.0)
    world.connect()
    assert traffic.oldest_running_s == pytest.approx(5.0)
    # A request of an earlier gateway may come from a clock that is a little ahead.
    now -= 6.0
    assert traffic.oldest_running_s == 0.0


async def test_a_reader_is_reminded_that_time_passes(world: World) -> None:
    request = world.submit("a")
    world.traffic.tick(request.arrived_at + 1.0, remind_after_s=1.0)
    assert (await taken(request)).idle
