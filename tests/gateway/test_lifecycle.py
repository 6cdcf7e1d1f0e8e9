from __future__ import annotations

from collections import deque

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.supervise.lifecycle import (
    TABLE,
    Effect,
    Event,
    ImpossibleTransitionError,
    Lifecycle,
    State,
    printed,
)

_SETTLED = {State.UNLOADED, State.HELD, State.FAILED, State.READY}
_WITHOUT_PROCESS = {State.UNLOADED, State.HELD, State.FAILED}
_NEEDS_PROCESS = {
    *(Effect.SEND_LOAD, Effect.DISPATCH, Effect.DRAIN),
    *(Effect.STOP, Effect.KILL, Effect.DESTROY),
}
# What a healthy worker and its supervisor do by themselves, once nobody asks for anything more.
_FAIR = {
    State.STARTING: Event.HELLO,
    State.LOADING: Event.LOADED,
    State.DRAINING: Event.EXIT,
    State.STOPPING: Event.EXIT,
}
_OPERATOR = {
    *(Event.LOAD, Event.UNLOAD, Event.HOLD),
    *(Event.RESTART, Event.KILL, Event.DESTROY),
}


class _World:
    """A model with the process and the requests that the effects are about."""

    def __init__(self) -> None:
        self.lifecycle = Lifecycle()
        self.process = False
        self.asked_to_end = False
        self.waiting = 0
        self.running = 0

    @property
    def possible(self) -> list[Event]:
        """What can happen: the table's events, less those that contradict the process's absence."""
        events = list(TABLE[self.lifecycle.state])
        if Event.NOT_STARTED in events and self.lifecycle.state is not State.STARTING:
            events.remove(Event.NOT_STARTED)
        return events

    def happen(self, event: Event) -> tuple[Effect, ...]:
        if event is Event.DEMAND:
            self.waiting += 1
        if event in (Event.EXIT, Event.NOT_STARTED):
            assert self.process
            self.process = self.asked_to_end = False
        effects = self.lifecycle.handle(event, requests_wait=self.waiting > 0)
        for effect in effects:
            self._perform(effect)
        return effects

    def _perform(self, effect: Effect) -> None:
        if effect in _NEEDS_PROCESS:
            assert self.process, f"{effect} without a process"
        match effect:
            case Effect.SPAWN:
                assert not self.process, "a second incarnation beside a living one"
                self.process = True
            case Effect.DISPATCH:
                assert not self.asked_to_end
                self.running += self.waiting
                self.waiting = 0
            case Effect.STOP | Effect.KILL | Effect.DESTROY | Effect.DRAIN:
                self.asked_to_end = True
            case Effect.SEND_LOAD:
                assert not self.asked_to_end
            case Effect.END_RUNNING:
                self.running = 0
            case Effect.REFUSE_WAITING:
                self.waiting = 0

    def check(self) -> None:
        state = self.lifecycle.state
        assert self.process == self.lifecycle.alive
        assert self.lifecycle.alive == (state not in _WITHOUT_PROCESS)
        if state in _WITHOUT_PROCESS:
            assert not self.waiting, f"requests wait for a process that nobody starts: {state}"
        if state is State.READY:
            assert not self.waiting
        else:
            # A request runs in a worker that is ready, or drains.
            assert not self.running or state is State.DRAINING

    def settle(self) -> None:
        """Nobody asks for anything more: it comes to rest, and nobody is left waiting."""
        for _ in range(10):
            if self.lifecycle.state in _SETTLED:
                break
            self.happen(_FAIR[self.lifecycle.state])
            self.check()
        assert self.lifecycle.state in _SETTLED
        assert not self.waiting

    def crash_until_settled(self) -> None:
        """Every process ends as soon as it lives: that also comes to rest."""
        for _ in range(10):
            if not self.lifecycle.alive:
                break
            self.happen(Event.EXIT)
            self.check()
        assert not self.lifecycle.alive
        assert not self.waiting


class _RandomLife(RuleBasedStateMachine):
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.world = _World()

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        for event in data.draw(st.lists(st.sampled_from(list(Event)), min_size=1, max_size=20)):
            if event in self.world.possible:
                _RandomLife.steps += 1
                self.world.happen(event)
                self.world.check()
            elif event not in TABLE[self.world.lifecycle.state]:
                self._cannot_happen(event)

    @rule()
    def it_is_left_alone(self) -> None:
        self.world.settle()

    @rule()
    def every_worker_crashes(self) -> None:
        self.world.crash_until_settled()

    def _cannot_happen(self, event: Event) -> None:
        before = dict(vars(self.world.lifecycle))
        with pytest.raises(ImpossibleTransitionError, match=self.world.lifecycle.state):
            self.world.lifecycle.handle(event, requests_wait=self.world.waiting > 0)
        assert vars(self.world.lifecycle) == before

    @invariant()
    def the_process_is_what_the_state_says(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.settle()


def test_random_lives():
    run_state_machine_as_test(
        _RandomLife,
        settings=settings(
            max_examples=500,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert _RandomLife.steps >= 10_000


def _after(*events: Event) -> _World:
    world = _World()
    for event in events:
        world.happen(event)
        world.check()
    return world


def _key(world: _World) -> tuple[object, ...]:
    hidden = tuple(sorted((name, str(value)) for name, value in vars(world.lifecycle).items()))
    return (hidden, world.process, world.asked_to_end, world.waiting > 0, world.running > 0)


def _all_worlds() -> dict[tuple[object, ...], tuple[Event, ...]]:
    """Every situation that events can lead to, and the shortest way there."""
    ways: dict[tuple[object, ...], tuple[Event, ...]] = {_key(_World()): ()}
    queue: deque[tuple[Event, ...]] = deque([()])
    while queue:
        way = queue.popleft()
        for event in _after(*way).possible:
            world = _after(*way, event)
            if _key(world) not in ways:
                ways[_key(world)] = (*way, event)
                queue.append((*way, event))
    return ways


class TestEverySituation:
    """Not random: there are few situations, so all of them are visited."""

    def test_every_state_of_the_table_is_reached(self):
        assert {_after(*way).lifecycle.state for way in _all_worlds().values()} == set(State)
        assert set(TABLE) == set(State)

    def test_each_comes_to_rest_when_left_alone(self):
        for way in _all_worlds().values():
            _after(*way).settle()

    def test_each_comes_to_rest_when_every_worker_crashes(self):
        for way in _all_worlds().values():
            _after(*way).crash_until_settled()

    def test_each_takes_every_order_of_the_operator_and_every_request(self):
        for way in _all_worlds().values():
            assert set(_after(*way).possible) >= {*_OPERATOR, Event.DEMAND}

    def test_a_process_may_end_at_any_time(self):
        for way in _all_worlds().values():
            world = _after(*way)
            assert world.process == (Event.EXIT in world.possible)

    def test_load_always_leads_to_a_ready_model(self):
        for way in _all_worlds().values():
            world = _after(*way, Event.LOAD)
            if world.lifecycle.state is not State.READY:
                world.settle()
            assert world.lifecycle.state is State.READY, way

    def test_a_worker_that_was_asked_to_end_is_never_given_work(self):
        for way in _all_worlds().values():
            world = _after(*way)
            if world.asked_to_end:
                for event in world.possible:
                    _after(*way, event)


class TestRules:
    def test_a_new_model_is_unloaded_and_has_no_process(self):
        lifecycle = Lifecycle()
        assert lifecycle.state is State.UNLOADED
        assert not lifecycle.alive

    def test_a_request_loads_a_model(self):
        world = _World()
        assert world.happen(Event.DEMAND) == (Effect.SPAWN,)
        assert world.happen(Event.HELLO) == (Effect.SEND_LOAD,)
        assert world.happen(Event.LOADED) == (Effect.DISPATCH,)
        assert (world.running, world.waiting) == (1, 0)

    def test_a_request_during_a_drain_starts_the_model_again(self):
        world = _after(Event.LOAD, Event.HELLO, Event.LOADED, Event.UNLOAD, Event.DEMAND)
        assert Effect.SPAWN in world.happen(Event.EXIT)

    def test_a_held_model_refuses_at_once_and_also_while_it_ends(self):
        world = _after(Event.LOAD, Event.HELLO, Event.LOADED, Event.HOLD)
        assert world.happen(Event.DEMAND) == (Effect.REFUSE_WAITING,)
        world.happen(Event.EXIT)
        assert world.lifecycle.state is State.HELD
        assert world.happen(Event.DEMAND) == (Effect.REFUSE_WAITING,)
        assert world.lifecycle.state is State.HELD

    def test_a_load_that_will_fail_again_is_not_tried_again_by_a_request(self):
        world = _after(Event.DEMAND, Event.HELLO, Event.LOAD_IMPOSSIBLE, Event.EXIT)
        assert world.lifecycle.state is State.FAILED
        assert world.happen(Event.DEMAND) == (Effect.REFUSE_WAITING,)
        assert world.happen(Event.LOAD) == (Effect.SPAWN,)

    def test_a_restart_brings_the_model_back_without_a_request(self):
        world = _after(Event.LOAD, Event.HELLO, Event.LOADED, Event.RESTART)
        assert world.happen(Event.EXIT)[-1] is Effect.SPAWN

    def test_a_crash_ends_what_runs_and_starts_again_for_what_waits(self):
        world = _after(Event.DEMAND, Event.HELLO, Event.LOADED)
        assert world.happen(Event.EXIT) == (Effect.END_RUNNING,)
        assert world.lifecycle.state is State.UNLOADED

    def test_a_crash_during_the_load_refuses_what_waits_instead_of_looping(self):
        world = _after(Event.DEMAND, Event.HELLO)
        assert world.happen(Event.EXIT) == (Effect.REFUSE_WAITING,)
        assert world.lifecycle.state is State.UNLOADED

    @pytest.mark.parametrize("order", [Event.KILL, Event.DESTROY])
    @pytest.mark.parametrize("drained", [False, True], ids=["in its drain", "while it stops"])
    def test_a_kill_does_not_forget_that_the_model_is_held(self, order: Event, drained: bool):
        world = _after(Event.LOAD, Event.HELLO, Event.LOADED, Event.HOLD)
        if drained:
            world.happen(Event.DEADLINE)
        world.happen(order)
        world.happen(Event.EXIT)
        assert world.lifecycle.state is State.HELD

    @pytest.mark.parametrize("order", [Event.KILL, Event.DESTROY])
    def test_a_kill_does_not_forget_that_a_load_is_impossible(self, order: Event):
        world = _after(Event.DEMAND, Event.HELLO, Event.LOAD_IMPOSSIBLE, order, Event.EXIT)
        assert world.lifecycle.state is State.FAILED


class TestPrinted:
    def test_every_rule_has_a_line_with_all_that_it_says(self):
        lines = list(printed())
        rules = [
            (state, event, rule) for state, rules in TABLE.items() for event, rule in rules.items()
        ]
        assert len(lines) == len(rules)
        for line, (state, event, wanted) in zip(lines, rules, strict=True):
            before, what, after, effects = (column.strip() for column in line.split("|"))
            assert (before, what) == (state, event)
            assert after.split(" (then ")[0] == wanted.state
            assert after.endswith(f"(then {wanted.then})") == (wanted.then is not None)
            assert effects == (", ".join(wanted.effects) or "-")

    def test_the_columns_stand_under_each_other(self):
        bars = {
            tuple(place for place, sign in enumerate(line) if sign == "|") for line in printed()
        }
        assert len(bars) == 1
