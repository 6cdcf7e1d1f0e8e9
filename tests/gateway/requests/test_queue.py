"""Nobody is lost between queue and worker, and suspects run alone."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.requests.progress import SUSPECT_TOKENS, ModelChangedError
from gateway.requests.queue import Quarantine, QueueFullError, RequestQueue
from gateway.requests.request import Request, Terms
from protocol.message_base import pack, unpack
from protocol.requests import (
    ChatMessage,
    ChatPrompt,
    Generate,
    Sampling,
    TextPrompt,
    TokenPrompt,
)

DEPTH, MOST = 5, 3


def _generate(name: str, seed: int = 1, text: str = "x") -> Generate:
    return Generate(request_id=name, prompt=TextPrompt(text), sampling=Sampling(seed=seed))


def _request(name: str, deadline_at: float = 1e9) -> Request:
    return Request(_generate(name), Terms(deadline_s=deadline_at), 0.0)


class _Life(RuleBasedStateMachine):
    """A queue and a worker that computes, dies, and is replaced."""

    def __init__(self) -> None:
        super().__init__()
        # Requests make an asyncio.Event, which needs no running loop.
        self.queue = RequestQueue(DEPTH, MOST, priority=0)
        self.names = itertools.count()
        self.running: list[Request] = []
        self.gone: set[Request] = set()
        self.known: set[Request] = set()

    @rule()
    def arrive(self) -> None:
        request = _request(str(next(self.names)))
        try:
            self.queue.add(request)
        except QueueFullError:
            return
        self.known.add(request)

    @rule()
    def dispatch(self) -> None:
        while (request := self.queue.next()) is not None:
            request.progress.next_message("same")
            self.queue.run(request)
            self.running.append(request)

    @rule(tokens=st.integers(1, SUSPECT_TOKENS + 3), data=st.data())
    def deliver(self, tokens: int, data: st.DataObject) -> None:
        if not self.running:
            return
        request = data.draw(st.sampled_from(self.running))
        request.progress.delivered.extend(range(tokens))
        if self.queue.release_suspect(request):
            self.running.remove(request)

    @rule(blame=st.booleans())
    def the_worker_dies(self, blame: bool) -> None:
        taken = self.queue.take_running()
        assert set(taken) == set(self.running)
        self.running = []
        parked = []
        for request in taken:
            if blame and request.progress.record_death():
                assert len(taken) == 1, "an innocent paid for somebody else"
                self.gone.add(request)
            else:
                parked.append(request)
        self.queue.park(parked)

    @rule(data=st.data())
    def remove_one(self, data: st.DataObject) -> None:
        if not (here := sorted(self.known - self.gone, key=lambda item: item.id)):
            return
        request = data.draw(st.sampled_from(here))
        assert self.queue.remove(request) == (request in self.running)
        if request in self.running:
            self.running.remove(request)
        self.gone.add(request)

    @invariant()
    def nobody_is_lost(self) -> None:
        assert sorted(request.id for request in self.queue) == sorted(
            request.id for request in self.known - self.gone
        )
        assert self.queue.running == len(self.running) <= MOST

    @invariant()
    def a_suspect_runs_alone(self) -> None:
        if any(request.progress.suspect for request in self.running):
            assert len(self.running) == 1

    def teardown(self) -> None:
        """Whatever happened: a worker that stays well serves everybody."""
        for _ in range(200):
            self.dispatch()
            for request in list(self.running):
                if request.progress.suspect:
                    request.progress.delivered.extend(range(SUSPECT_TOKENS))
                    if self.queue.release_suspect(request):
                        self.running.remove(request)
                else:
                    self.queue.remove(request)
                    self.running.remove(request)
                    self.gone.add(request)
        assert not list(self.queue)


def test_random_traffic():
    run_state_machine_as_test(_Life, settings=settings(stateful_step_count=40, deadline=None))


class TestProgress:
    def test_the_first_message_is_the_request_itself(self):
        request = _request("a")
        message = request.progress.next_message("print")
        assert (message.prompt, message.delivered) == (TextPrompt("x"), b"")

    def test_another_worker_gets_the_rendered_prompt_and_what_was_delivered(self):
        request = _request("a")
        first = request.progress.next_message("print")
        request.progress.render(pack([1, 2]), last=False)
        request.progress.render(pack([3]), last=True)
        request.progress.delivered.extend((7, 8))
        second = request.progress.next_message("print")
        assert unpack(second.prompt.token_ids) == [1, 2, 3]
        assert unpack(second.delivered) == [7, 8]
        assert second.request_id != first.request_id
        assert second.sampling == first.sampling

    def test_a_prompt_that_was_rendered_in_part_is_rendered_anew(self):
        request = _request("a")
        request.progress.next_message("print")
        request.progress.render(pack([1, 2]), last=False)
        assert request.progress.next_message("print").prompt == TextPrompt("x")
        request.progress.render(pack([1]), last=True)
        assert unpack(request.progress.next_message("print").prompt.token_ids) == [1]

    def test_an_answer_never_goes_on_with_another_model(self):
        request = _request("a")
        request.progress.next_message("before")
        request.progress.render(pack([1]), last=True)
        request.progress.delivered.append(7)
        with pytest.raises(ModelChangedError):
            request.progress.next_message("after")

    def test_a_request_that_has_delivered_nothing_begins_anew_with_another_model(self):
        request = _request("a")
        request.progress.next_message("before")
        request.progress.render(pack([1]), last=True)
        assert request.progress.next_message("after").prompt == TextPrompt("x")

    def test_token_prompts_are_known_without_rendering(self):
        generate = Generate(
            request_id="a", prompt=TokenPrompt(pack([1, 2])), sampling=Sampling(seed=1)
        )
        request = Request(generate, Terms(deadline_s=1.0), 0.0)
        assert request.progress.rendered
        request.progress.next_message("before")
        assert request.progress.next_message("after").prompt == generate.prompt

    def test_a_second_death_within_few_tokens_is_its_fault(self):
        for tokens, blamed in ((SUSPECT_TOKENS - 1, True), (SUSPECT_TOKENS, False)):
            progress = _request("a").progress
            progress.delivered.extend(range(100))
            assert not progress.record_death()
            progress.delivered.extend(range(tokens))
            assert progress.record_death() == blamed


class TestPriority:
    def test_without_one_a_request_has_the_models(self):
        queue = RequestQueue(DEPTH, MOST, priority=10)
        assert queue.highest_priority is None
        requests = {}
        for name, priority in (("low", -1), ("plain", None), ("middle", 5), ("high", 20)):
            request = Request(_generate(name), Terms(deadline_s=1e9, priority=priority), 0.0)
            requests[name] = request
            queue.add(request)
            if name == "plain":
                assert queue.highest_priority == 10, "a low one takes nothing from the others"
        assert [request.id for request in queue] == ["high", "plain", "middle", "low"]
        assert queue.highest_priority == 20


class TestDeadline:
    def test_it_stands_still_while_the_request_runs(self):
        request = _request("a", deadline_at=10.0)
        request.start(4.0)
        request.park(1000.0)
        assert request.deadline_at == 1006.0
        queue = RequestQueue(DEPTH, MOST, priority=0)
        queue.park([request])
        assert queue.take_overdue(1005.9) == []
        assert queue.take_overdue(1006.0) == [request]
        assert queue.waiting == 0

    def test_whoever_waits_is_put_off_wherever_it_stands(self) -> None:
        queue = RequestQueue(DEPTH, 1, priority=0)
        running, parked, suspect = (
            _request("running", 10.0),
            _request("parked", 10.0),
            _suspect("s"),
        )
        suspect.deadline_at = 10.0
        queue.park([running])
        assert _start(queue) == ["running"]
        queue.park([parked, suspect])
        queue.add(_request("new", 10.0))
        queue.put_off(5.0)
        assert queue.take_overdue(14.9) == []
        assert [request.id for request in queue.take_overdue(15.0)] == ["s", "parked", "new"]
        assert running.deadline_at == 10.0

    def test_of_what_runs_only_what_has_no_token_yet_is_overdue(self) -> None:
        queue = RequestQueue(DEPTH, MOST, priority=0)
        late, later, begun = _request("late", 10.0), _request("later", 10.1), _request("begun", 1.0)
        queue.park([late, later, begun])
        _start(queue)
        begun.progress.delivered.append(7)
        assert queue.overdue_unbegun(9.9) == []
        assert queue.overdue_unbegun(10.0) == [late]
        assert queue.running == 3


class TestQuarantine:
    def test_same_body_sent_again_is_quarantined_for_a_while(self):
        quarantine = Quarantine()
        quarantine.add(_generate("a", seed=1), now=0.0)
        assert quarantine.remaining_s(_generate("b", seed=2), now=100.0) == 200.0
        assert quarantine.remaining_s(_generate("c", text="another"), now=100.0) is None
        assert quarantine.remaining_s(_generate("b", seed=2), now=300.0) is None

    def test_quarantine_distinguishes_chats(self):
        quarantine = Quarantine()
        chats = [
            Generate(
                request_id="a",
                prompt=ChatPrompt((ChatMessage("user", text),)),
                sampling=Sampling(seed=1),
            )
            for text in ("poison", "water")
        ]
        quarantine.add(chats[0], now=0.0)
        assert quarantine.remaining_s(chats[0], now=1.0) is not None
        assert quarantine.remaining_s(chats[1], now=1.0) is None

    def test_the_operator_may_let_everybody_in(self):
        quarantine = Quarantine()
        quarantine.add(_generate("a"), now=0.0)
        quarantine.clear()
        assert quarantine.remaining_s(_generate("a"), now=1.0) is None


def test_the_oldest_is_the_one_that_arrived_first_wherever_it_stands() -> None:
    queue = RequestQueue(DEPTH, 1, priority=0)
    assert (queue.oldest_waiting_at, queue.oldest_running_at) == (None, None)
    for name, arrived_at, priority in (("a", 3.0, 0), ("b", 1.0, 0), ("c", 2.0, 9)):
        queue.add(Request(_generate(name), Terms(deadline_s=1e9, priority=priority), arrived_at))
    assert queue.oldest_waiting_at == 1.0
    first = queue.next()
    assert first is not None
    first.progress.next_message("same")
    queue.run(first)
    assert (first.id, queue.oldest_running_at) == ("c", 2.0)
    queue.park(queue.take_running())
    assert (queue.oldest_waiting_at, queue.oldest_running_at) == (1.0, None)


def _suspect(name: str) -> Request:
    request = _request(name)
    request.progress.record_death()
    assert request.progress.suspect
    return request


def _start(queue: RequestQueue) -> list[str]:
    """Run all that may; returns their names."""
    started = []
    while (request := queue.next()) is not None:
        request.progress.next_message("same")
        queue.run(request)
        started.append(request.id)
    return started


class TestSuspects:
    def test_they_go_first_and_alone(self) -> None:
        queue = RequestQueue(DEPTH, MOST, priority=0)
        queue.add(_request("new"))
        parked, first, second = _request("parked"), _suspect("first"), _suspect("second")
        queue.park([parked, first, second])
        assert [request.id for request in queue] == ["first", "second", "parked", "new"]
        assert queue.waiting == 4
        assert _start(queue) == ["first"]
        assert (queue.running, queue.blamed, queue.waiting) == (1, 1, 3)
        first.progress.delivered.extend(range(SUSPECT_TOKENS - 1))
        assert not queue.release_suspect(first)
        assert _start(queue) == []
        assert queue.remove(first)
        assert not queue.remove(first)
        assert _start(queue) == ["second"]
        second.progress.delivered.extend(range(SUSPECT_TOKENS))
        assert not queue.release_suspect(second), "there is nobody that it must pause for"
        assert not queue.release_suspect(parked)
        assert _start(queue) == ["parked", "new"]

    def test_cleared_suspect_pauses_for_the_next(self) -> None:
        queue = RequestQueue(DEPTH, MOST, priority=0)
        first, second = _suspect("first"), _suspect("second")
        queue.park([first, second, _request("parked")])
        assert _start(queue) == ["first"]
        first.progress.delivered.extend(range(SUSPECT_TOKENS))
        assert queue.release_suspect(first)
        assert queue.running == 0
        assert [request.id for request in queue] == ["second", "parked", "first"]
        assert _start(queue) == ["second"]

    def test_removed_request_leaves_the_suspect_alone(self) -> None:
        queue = RequestQueue(DEPTH, MOST, priority=0)
        other = _request("other")
        queue.park([_suspect("first"), other])
        queue.add(_request("new"))
        assert _start(queue) == ["first"]
        assert not queue.remove(other)
        assert _start(queue) == []
        assert [request.id for request in queue.take_running()] == ["first"]
        assert _start(queue) == ["new"]


def test_the_queue_is_bounded_and_equals_keep_their_order() -> None:
    queue = RequestQueue(2, 1, priority=0)
    queue.park([_request("parked")])
    for name in ("a", "b"):
        queue.add(_request(name))
    with pytest.raises(QueueFullError):
        queue.add(_request("c"))
    assert [request.id for request in queue.take_waiting()] == ["parked", "a", "b"]
    assert (queue.waiting, list(queue)) == (0, [])


def test_parked_requests_precede_waiting_ones_in_their_order() -> None:
    queue = RequestQueue(DEPTH, MOST, priority=0)
    queue.add(_request("new"))
    queue.park([_request("parked")])
    queue.park([_request("a"), _request("b")])
    assert [request.id for request in queue] == ["a", "b", "parked", "new"]


def test_places_are_the_order_in_which_they_start() -> None:
    queue = RequestQueue(DEPTH, 1, priority=0)
    for name in ("a", "b", "c"):
        queue.add(_request(name))
    _start(queue)
    queue.park([_request("parked")])
    places = [(place, request.id) for place, request in queue.places()]
    assert places == [(None, "a"), (1, "parked"), (2, "b"), (3, "c")]


def test_the_oldest_that_runs_is_the_first_that_arrived() -> None:
    queue = RequestQueue(DEPTH, 2, priority=0)
    for name, arrived_at in (("a", 1.0), ("b", 2.0)):
        queue.add(Request(_generate(name), Terms(deadline_s=1e9), arrived_at))
    _start(queue)
    assert queue.oldest_running_at == 1.0


def test_those_of_an_earlier_gateway_go_on_where_they_stood() -> None:
    running, suspect, parked, waiting = (_request(text) for text in ("r", "s", "p", "w"))
    for request in (running, suspect, parked):
        request.progress.next_message("same")
    suspect.progress.record_death()
    queue = RequestQueue(DEPTH, MOST, priority=0)
    queue.restore([running], [waiting, parked, suspect])
    assert queue.in_order == ([running], [suspect, parked, waiting])
    assert (queue.running, queue.parked, queue.waiting) == (1, 2, 3)


def test_request_that_kills_again_is_quarantined_from_then_on() -> None:
    quarantine = Quarantine()
    for now in (0.0, 100.0):
        quarantine.add(_generate("a"), now)
    assert quarantine.remaining_s(_generate("b", seed=2), 150.0) == 250.0
