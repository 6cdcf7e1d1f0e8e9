from __future__ import annotations

import functools
import itertools
from collections import deque

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.models.lifecycle import (
    TABLE,
    Circumstances,
    Effect,
    ImpossibleTransitionError,
    Lifecycle,
    ModelEvent,
    State,
    printed,
)
from gateway.workers.restart_policy import RestartAction

_SETTLED = {State.UNLOADED, State.HELD, State.FAILED, State.READY}
_WITHOUT_PROCESS = {State.UNLOADED, State.HELD, State.WAITING, State.FAILED, State.BACKOFF}
# Requests may wait in these although there is no process: memory, or the time to try again, will
# come.
_PATIENT = {State.BACKOFF, State.WAITING}
_NEEDS_PROCESS = {
    *(Effect.SEND_LOAD, Effect.DISPATCH, Effect.DRAIN),
    *(Effect.STOP, Effect.KILL, Effect.DESTROY, Effect.DUMP_AND_DESTROY),
}
# What a healthy worker and its supervisor do by themselves, once nobody asks for anything more.
_FAIR = {
    State.WAITING: ModelEvent.ADMITTED,
    State.STARTING: ModelEvent.HELLO,
    State.LOADING: ModelEvent.LOADED,
    State.DRAINING: ModelEvent.EXIT,
    State.STOPPING: ModelEvent.EXIT,
    State.BACKOFF: ModelEvent.RETRY,
}
_OPERATOR = {
    *(ModelEvent.LOAD, ModelEvent.UNLOAD, ModelEvent.HOLD),
    *(ModelEvent.RESTART, ModelEvent.KILL, ModelEvent.DESTROY),
}


class _World:
    """A model with the process and the requests that the effects are about."""

    def __init__(self, *, load_wanted: bool = False) -> None:
        self.lifecycle = Lifecycle()
        self.load_wanted = load_wanted
        self.process = False
        self.asked_to_end = False
        self.waiting = 0
        self.running = 0
        self.asks = False

    @property
    def possible(self) -> list[ModelEvent]:
        """What can happen: the table's events, less those that contradict the process's absence."""
        events = list(TABLE[self.lifecycle.state])
        if self.lifecycle.on_its_way:
            # A request may arrive, and is no event.
            assert ModelEvent.DEMAND not in events
            events.append(ModelEvent.DEMAND)
        if ModelEvent.NOT_STARTED in events and self.lifecycle.state is not State.STARTING:
            events.remove(ModelEvent.NOT_STARTED)
        if ModelEvent.DRAINED in events and self.running:
            events.remove(ModelEvent.DRAINED)
        if ModelEvent.UNWANTED in events and (self.waiting or self.load_wanted):
            events.remove(ModelEvent.UNWANTED)
        return events

    def happen(
        self, event: ModelEvent, after_death: RestartAction = RestartAction.RESTART
    ) -> tuple[Effect, ...]:
        if event is ModelEvent.DEMAND:
            self.waiting += 1
            if self.lifecycle.on_its_way:
                if self.lifecycle.state is State.READY:
                    self._perform(Effect.DISPATCH)
                return ()
        if event in (ModelEvent.ADMITTED, ModelEvent.NO_ROOM, ModelEvent.UNREADABLE):
            assert self.asks
            self.asks = False
        if event in (ModelEvent.EXIT, ModelEvent.NOT_STARTED, ModelEvent.START_FAILED):
            assert self.process
            self.process = self.asked_to_end = False
        requests_wait = self.waiting + self.running > 0
        effects = self.lifecycle.handle(
            event, Circumstances(requests_wait, self.load_wanted, after_death)
        )
        for effect in effects:
            self._perform(effect)
        return effects

    def _perform(self, effect: Effect) -> None:
        if effect in _NEEDS_PROCESS:
            assert self.process, f"{effect} without a process"
        match effect:
            case Effect.ASK:
                assert not self.process, "memory for a second incarnation"
                assert not self.asks
                self.asks = True
            case Effect.WITHDRAW:
                assert self.asks
                self.asks = False
            case Effect.SPAWN:
                assert not self.process, "a second incarnation beside a living one"
                self.process = True
            case Effect.DISPATCH:
                assert not self.asked_to_end
                self.running += self.waiting
                self.waiting = 0
            case (
                Effect.STOP | Effect.KILL | Effect.DESTROY | Effect.DUMP_AND_DESTROY | Effect.DRAIN
            ):
                self.asked_to_end = True
            case Effect.SEND_LOAD:
                assert not self.asked_to_end
            case Effect.PARK_RUNNING:
                self.waiting += self.running
                self.running = 0
            case Effect.REFUSE_WAITING:
                self.waiting = 0

    def check(self) -> None:
        state = self.lifecycle.state
        assert self.process == self.lifecycle.alive
        assert self.asks == (state is State.WAITING)
        assert self.lifecycle.alive == (state not in _WITHOUT_PROCESS)
        if state in _WITHOUT_PROCESS - _PATIENT:
            assert not self.waiting, f"requests wait for a process that nobody starts: {state}"
        if state is State.READY:
            assert not self.waiting
        else:
            # A request runs in a worker that is ready, or drains.
            assert not self.running or state is State.DRAINING

    def come_to_rest(self) -> None:
        """Nobody asks for anything more: it comes to rest, and nobody is left waiting."""
        for _ in range(10):
            if self.lifecycle.state in _SETTLED:
                break
            self.happen(_FAIR[self.lifecycle.state])
            self.check()
        assert self.lifecycle.state in _SETTLED
        assert not self.waiting

    def crash_until_settled(self) -> None:
        """Every process ends as soon as it lives: the policy gives up, and that is rest too."""
        decisions = iter(
            (
                RestartAction.RESTART,
                RestartAction.BACK_OFF,
                RestartAction.BACK_OFF,
                RestartAction.GIVE_UP,
            )
        )
        for _ in range(20):
            if self.lifecycle.state is State.BACKOFF:
                self.happen(ModelEvent.RETRY)
            elif self.lifecycle.state is State.WAITING:
                self.happen(ModelEvent.ADMITTED)
            elif self.lifecycle.judged:
                self.happen(ModelEvent.EXIT, next(decisions))
            elif self.lifecycle.alive:
                self.happen(ModelEvent.EXIT)
            else:
                break
            self.check()
        assert not self.lifecycle.alive
        assert not self.waiting


class _RandomLife(RuleBasedStateMachine):
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.world = _World()

    @rule(load_wanted=st.booleans())
    def it_becomes_a_model_to_keep_or_not(self, load_wanted: bool) -> None:
        self.world.load_wanted = load_wanted

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        for event in data.draw(
            st.lists(st.sampled_from(list(ModelEvent)), min_size=1, max_size=20)
        ):
            if event in self.world.possible:
                _RandomLife.steps += 1
                self.world.happen(event, data.draw(st.sampled_from(RestartAction)))
                self.world.check()
            elif event not in TABLE[self.world.lifecycle.state]:
                self._cannot_happen(event)

    @rule()
    def it_is_left_alone(self) -> None:
        self.world.come_to_rest()

    @rule()
    def every_worker_crashes(self) -> None:
        self.world.crash_until_settled()

    def _cannot_happen(self, event: ModelEvent) -> None:
        before = dict(vars(self.world.lifecycle))
        with pytest.raises(ImpossibleTransitionError, match=self.world.lifecycle.state):
            self.world.lifecycle.handle(event, Circumstances())
        assert vars(self.world.lifecycle) == before

    @invariant()
    def the_process_is_what_the_state_says(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.come_to_rest()


@pytest.mark.parametrize(
    ("lives", "steps"),
    [
        pytest.param(300, 1_600, id="short"),
        pytest.param(1500, 8_000, id="long", marks=pytest.mark.slow),
    ],
)
def test_random_lives(lives: int, steps: int):
    """Beside every situation, which all are visited below."""
    before = _RandomLife.steps
    run_state_machine_as_test(
        _RandomLife,
        settings=settings(
            max_examples=lives,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert _RandomLife.steps - before >= steps


Step = ModelEvent | tuple[ModelEvent, RestartAction]


def _after(*steps: Step, load_wanted: bool = False) -> _World:
    world = _World(load_wanted=load_wanted)
    for step in steps:
        world.happen(*(step if isinstance(step, tuple) else (step,)))
        world.check()
    return world


def _key(world: _World) -> tuple[object, ...]:
    hidden = tuple(sorted((name, str(value)) for name, value in vars(world.lifecycle).items()))
    return (
        hidden,
        world.load_wanted,
        world.process,
        world.asked_to_end,
        world.asks,
        world.waiting > 0,
        world.running > 0,
    )


@functools.cache
def _all_worlds() -> dict[tuple[object, ...], tuple[Step, ...]]:
    """Every situation that events can lead to, and the shortest way there."""
    ways: dict[tuple[object, ...], tuple[Step, ...]] = {_key(_World()): ()}
    queue: deque[tuple[Step, ...]] = deque([()])
    while queue:
        way = queue.popleft()
        for event, decision in itertools.product(_after(*way).possible, RestartAction):
            world = _after(*way, (event, decision))
            if _key(world) not in ways:
                ways[_key(world)] = (*way, (event, decision))
                queue.append((*way, (event, decision)))
    assert len(ways) > len(State)
    return ways


class TestEverySituation:
    """Not random: there are few situations, so all of them are visited."""

    def test_every_state_of_the_table_is_reached(self):
        assert {_after(*way).lifecycle.state for way in _all_worlds().values()} == set(State)
        assert set(TABLE) == set(State)

    def test_each_comes_to_rest_when_left_alone(self):
        for way in _all_worlds().values():
            _after(*way).come_to_rest()

    def test_each_comes_to_rest_when_every_worker_crashes(self):
        for way in _all_worlds().values():
            _after(*way).crash_until_settled()

    def test_each_takes_every_order_of_the_operator_and_every_request(self):
        for way in _all_worlds().values():
            assert set(_after(*way).possible) >= {*_OPERATOR, ModelEvent.DEMAND}

    def test_a_process_may_end_at_any_time(self):
        for way in _all_worlds().values():
            world = _after(*way)
            assert world.process == (ModelEvent.EXIT in world.possible)

    def test_load_always_leads_to_a_ready_model(self):
        for way in _all_worlds().values():
            world = _after(*way, ModelEvent.LOAD)
            if world.lifecycle.state is not State.READY:
                world.come_to_rest()
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
        assert world.happen(ModelEvent.DEMAND) == (Effect.ASK,)
        assert world.happen(ModelEvent.ADMITTED) == (Effect.SPAWN,)
        assert world.happen(ModelEvent.HELLO) == (Effect.SEND_LOAD,)
        assert world.happen(ModelEvent.LOADED) == (Effect.DISPATCH,)
        assert (world.running, world.waiting) == (1, 0)

    def test_a_request_during_a_drain_starts_the_model_again(self):
        world = _after(
            ModelEvent.LOAD,
            ModelEvent.ADMITTED,
            ModelEvent.HELLO,
            ModelEvent.LOADED,
            ModelEvent.UNLOAD,
            ModelEvent.DEMAND,
        )
        assert Effect.ASK in world.happen(ModelEvent.EXIT)

    def test_a_held_model_refuses_at_once_and_also_while_it_ends(self):
        world = _after(
            ModelEvent.LOAD,
            ModelEvent.ADMITTED,
            ModelEvent.HELLO,
            ModelEvent.LOADED,
            ModelEvent.HOLD,
        )
        assert world.happen(ModelEvent.DEMAND) == (Effect.REFUSE_WAITING,)
        world.happen(ModelEvent.EXIT)
        assert world.lifecycle.state is State.HELD
        assert world.happen(ModelEvent.DEMAND) == (Effect.REFUSE_WAITING,)
        assert world.lifecycle.state is State.HELD

    def test_a_load_that_will_fail_again_is_not_tried_again_by_a_request(self):
        world = _after(
            ModelEvent.DEMAND,
            ModelEvent.ADMITTED,
            ModelEvent.HELLO,
            ModelEvent.LOAD_IMPOSSIBLE,
            ModelEvent.EXIT,
        )
        assert world.lifecycle.state is State.FAILED
        assert world.happen(ModelEvent.DEMAND) == (Effect.REFUSE_WAITING,)
        assert world.happen(ModelEvent.LOAD) == (Effect.ASK,)

    def test_a_restart_brings_the_model_back_without_a_request(self):
        world = _after(
            ModelEvent.LOAD,
            ModelEvent.ADMITTED,
            ModelEvent.HELLO,
            ModelEvent.LOADED,
            ModelEvent.RESTART,
        )
        assert world.happen(ModelEvent.EXIT)[-1] is Effect.ASK

    def test_a_crash_parks_what_runs_and_starts_again_for_it(self):
        world = _after(ModelEvent.DEMAND, ModelEvent.ADMITTED, ModelEvent.HELLO, ModelEvent.LOADED)
        assert world.happen(ModelEvent.EXIT) == (Effect.PARK_RUNNING, Effect.ASK)
        assert (world.waiting, world.running) == (1, 0)

    def test_a_crash_that_nobody_waits_for_leaves_the_model_unloaded(self):
        world = _after(ModelEvent.LOAD, ModelEvent.ADMITTED, ModelEvent.HELLO, ModelEvent.LOADED)
        world.happen(ModelEvent.EXIT)
        assert world.lifecycle.state is State.UNLOADED

    def test_a_model_to_keep_comes_back_after_a_crash_and_a_kill_but_not_after_an_unload(self):
        ready = (ModelEvent.LOAD, ModelEvent.ADMITTED, ModelEvent.HELLO, ModelEvent.LOADED)
        for way in (
            (ModelEvent.EXIT,),
            (ModelEvent.KILL, ModelEvent.EXIT),
            (ModelEvent.DESTROY, ModelEvent.EXIT),
        ):
            assert _after(*ready, *way, load_wanted=True).lifecycle.state is State.WAITING
        assert (
            _after(*ready, ModelEvent.UNLOAD, ModelEvent.EXIT, load_wanted=True).lifecycle.state
            is State.UNLOADED
        )

    @pytest.mark.parametrize("fault", [ModelEvent.EXIT, ModelEvent.HUNG, ModelEvent.MISBEHAVED])
    def test_the_policy_decides_what_follows_a_death(self, fault: ModelEvent):
        for decision, state, waiting in (
            (RestartAction.RESTART, State.WAITING, 1),
            (RestartAction.BACK_OFF, State.BACKOFF, 1),
            (RestartAction.GIVE_UP, State.FAILED, 0),
        ):
            world = _after(
                ModelEvent.DEMAND, ModelEvent.ADMITTED, ModelEvent.HELLO, ModelEvent.LOADED
            )
            if fault is not ModelEvent.EXIT:
                world.happen(fault)
                assert world.lifecycle.judged
            world.happen(ModelEvent.EXIT, decision)
            assert (world.lifecycle.state, world.waiting) == (state, waiting)

    def test_a_death_that_was_ordered_is_not_judged(self):
        for order in (ModelEvent.KILL, ModelEvent.UNLOAD, ModelEvent.RESTART, ModelEvent.HOLD):
            world = _after(
                ModelEvent.LOAD, ModelEvent.ADMITTED, ModelEvent.HELLO, ModelEvent.LOADED, order
            )
            assert not world.lifecycle.judged

    def test_a_request_in_a_backoff_waits_for_the_next_attempt(self):
        world = _after(
            ModelEvent.DEMAND,
            ModelEvent.ADMITTED,
            ModelEvent.HELLO,
            (ModelEvent.EXIT, RestartAction.BACK_OFF),
            ModelEvent.DEMAND,
        )
        assert world.lifecycle.state is State.BACKOFF
        assert world.happen(ModelEvent.RETRY) == (Effect.ASK,)

    def test_an_unload_ends_a_backoff_that_nobody_waits_for(self):
        way = (
            ModelEvent.LOAD,
            ModelEvent.ADMITTED,
            ModelEvent.HELLO,
            (ModelEvent.EXIT, RestartAction.BACK_OFF),
        )
        assert _after(*way, ModelEvent.UNLOAD).lifecycle.state is State.UNLOADED
        assert _after(*way, ModelEvent.KILL).lifecycle.state is State.UNLOADED
        assert _after(*way, ModelEvent.KILL, load_wanted=True).lifecycle.state is State.BACKOFF
        assert _after(*way, ModelEvent.DEMAND, ModelEvent.UNLOAD).lifecycle.state is State.BACKOFF

    def test_an_evicted_model_waits_for_memory_if_anybody_waits_for_it(self):
        ready = (ModelEvent.DEMAND, ModelEvent.ADMITTED, ModelEvent.HELLO, ModelEvent.LOADED)
        world = _after(*ready, ModelEvent.EVICT)
        assert (world.waiting, world.running) == (1, 0)
        assert not world.lifecycle.judged
        assert world.happen(ModelEvent.EXIT) == (Effect.ASK,)

    def test_a_worker_that_holds_too_much_is_replaced_and_it_is_no_death(self):
        world = _after(
            ModelEvent.DEMAND,
            ModelEvent.ADMITTED,
            ModelEvent.HELLO,
            ModelEvent.LOADED,
            ModelEvent.OVERGROWN,
        )
        assert not world.lifecycle.judged
        assert (world.waiting, world.running) == (1, 0)
        assert world.happen(ModelEvent.EXIT) == (Effect.ASK,)

    def test_a_worker_that_holds_too_much_before_it_is_ready_has_died(self):
        world = _after(
            ModelEvent.DEMAND, ModelEvent.ADMITTED, ModelEvent.HELLO, ModelEvent.OVERGROWN
        )
        assert world.lifecycle.judged
        assert world.happen(ModelEvent.EXIT, RestartAction.GIVE_UP) == (Effect.REFUSE_WAITING,)

    def test_a_model_that_never_fits_refuses_and_rests(self):
        world = _after(ModelEvent.DEMAND)
        assert world.happen(ModelEvent.NO_ROOM) == (Effect.REFUSE_WAITING,)
        assert world.lifecycle.state is State.UNLOADED

    @pytest.mark.parametrize("order", [ModelEvent.UNLOAD, ModelEvent.KILL, ModelEvent.UNWANTED])
    def test_a_turn_that_nobody_wants_is_given_up(self, order: ModelEvent):
        assert _after(ModelEvent.LOAD).happen(order) == (Effect.WITHDRAW,)
        if order is not ModelEvent.UNWANTED:
            assert _after(ModelEvent.DEMAND).happen(order) == ()

    def test_running_requests_of_a_held_model_are_refused_at_its_stop(self):
        world = _after(
            ModelEvent.DEMAND,
            ModelEvent.ADMITTED,
            ModelEvent.HELLO,
            ModelEvent.LOADED,
            ModelEvent.HOLD,
        )
        assert world.happen(ModelEvent.DEADLINE) == (
            Effect.PARK_RUNNING,
            Effect.REFUSE_WAITING,
            Effect.STOP,
        )

    @pytest.mark.parametrize("order", [ModelEvent.KILL, ModelEvent.DESTROY])
    @pytest.mark.parametrize("drained", [False, True], ids=["in its drain", "while it stops"])
    def test_a_kill_does_not_forget_that_the_model_is_held(self, order: ModelEvent, drained: bool):
        world = _after(
            ModelEvent.LOAD,
            ModelEvent.ADMITTED,
            ModelEvent.HELLO,
            ModelEvent.LOADED,
            ModelEvent.HOLD,
        )
        if drained:
            world.happen(ModelEvent.DEADLINE)
        world.happen(order)
        world.happen(ModelEvent.EXIT)
        assert world.lifecycle.state is State.HELD

    @pytest.mark.parametrize("order", [ModelEvent.KILL, ModelEvent.DESTROY])
    def test_a_kill_does_not_forget_that_a_load_is_impossible(self, order: ModelEvent):
        world = _after(
            ModelEvent.DEMAND,
            ModelEvent.ADMITTED,
            ModelEvent.HELLO,
            ModelEvent.LOAD_IMPOSSIBLE,
            order,
            ModelEvent.EXIT,
        )
        assert world.lifecycle.state is State.FAILED


class TestPrinted:
    def test_every_rule_has_a_line_with_all_that_it_says(self):
        lines = list(printed())
        rules = [
            (state, event, rule) for state, rules in TABLE.items() for event, rule in rules.items()
        ]
        assert len(lines) == len(rules)
        for line, (state, event, wanted) in zip(lines, rules, strict=True):
            before, what, effects, after = (column.strip() for column in line.split("|"))
            assert (before, what) == (state, event)
            assert after.split(", then ")[0] == wanted.state
            assert after.endswith(f", then {wanted.aim}") == (wanted.aim is not None)
            assert effects == (", ".join(wanted.effects) or "-")

    def test_the_columns_stand_under_each_other(self):
        bars = {
            tuple(place for place, sign in enumerate(line) if sign == "|") for line in printed()
        }
        assert len(bars) == 1
