"""The account of memory, in a world of random models, requests, crashes and clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gateway.memory.admission import Admission, Admit, Decision, Evict, Refuse

BUDGET = 100
SPARE = 5
PATIENCE_S = 10.0
# How long a process takes to load or to end, in seconds.
SLOWEST_S = 4
MODELS = 6
# Patience, and then each of the others in turn: the end of one process, the start of another, and
# the time that this one may keep its place.
BOUND_S = PATIENCE_S + MODELS * (2 * SLOWEST_S + 2 + PATIENCE_S / 4)


@dataclass
class Asked:
    """A request: waiting since then, with so much left to do."""

    since: float
    left_s: float


@dataclass
class Model:
    """The outer side: a process that starts and ends, and requests that want it."""

    name: str
    size: int
    priority: int = 0
    pinned: bool = False
    process: str | None = None
    until: float = 0.0
    waiting: list[Asked] = field(default_factory=list)
    running: list[Asked] = field(default_factory=list)
    last_used: float = 0.0


class World(RuleBasedStateMachine):
    """Performs what is decided, as the gateway does, and checks it against the real sizes."""

    make: Callable[[], Admission] = staticmethod(lambda: Admission(BUDGET, PATIENCE_S, SPARE))
    steps = 0

    @initialize(
        sizes=st.lists(st.integers(1, 120), min_size=2, max_size=MODELS),
        pinned=st.sets(st.integers(0, MODELS - 1), max_size=2),
        priorities=st.lists(st.integers(0, 2), min_size=MODELS, max_size=MODELS),
    )
    def begin(self, sizes: list[int], pinned: set[int], priorities: list[int]) -> None:
        self.now = 0.0
        self.admission = self.make()
        self.models = {
            str(index): Model(str(index), size, priorities[index], index in pinned)
            for index, size in enumerate(sizes)
        }

    def _model(self, number: int) -> Model:
        return list(self.models.values())[number % len(self.models)]

    @rule(number=st.integers(0, MODELS - 1), length_s=st.sampled_from((1, 3, 8, 150)))
    def a_request(self, number: int, length_s: int) -> None:
        self._model(number).waiting.append(Asked(self.now, length_s))
        self._settle()

    @rule(number=st.integers(0, MODELS - 1))
    def a_client_leaves(self, number: int) -> None:
        model = self._model(number)
        if model.waiting:
            model.waiting.pop()
        self._settle()

    @rule(number=st.integers(0, MODELS - 1))
    def a_crash(self, number: int) -> None:
        model = self._model(number)
        if model.process is not None:
            self._end(model)
        self._settle()

    @rule(number=st.integers(0, MODELS - 1))
    def an_operator_unloads(self, number: int) -> None:
        model = self._model(number)
        if model.process in ("loading", "ready"):
            self._ask_to_end(model)
            self.admission.ending(model.name)
        self._settle()

    @rule(number=st.integers(0, MODELS - 1), more=st.integers(1, 10))
    def it_grows(self, number: int, more: int) -> None:
        """Over its grant, which the watchdog is for: admission must count it."""
        model = self._model(number)
        if model.process == "ready":
            self.admission.note_footprint(model.name, model.size + more)
        self._settle()

    @rule(seconds=st.integers(1, 15))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self._second()

    def _second(self) -> None:
        self.now += 1.0
        for model in self.models.values():
            for each in model.running:
                each.left_s -= 1.0
            model.running = [each for each in model.running if each.left_s > 0]
            if model.process == "loading" and self.now >= model.until:
                model.process = "ready"
                self.admission.ready(model.name, self.now, pinned=model.pinned, reload_s=1.0)
            elif model.process == "ending" and self.now >= model.until:
                self._end(model)
        self._settle()

    def _settle(self) -> None:
        """As the gateway: demand becomes claims, then decisions, until nothing follows."""
        World.steps += 1
        for _ in range(20):
            for model in self.models.values():
                self._serve(model)
            decisions = self.admission.decide(self.now)
            for decision in decisions:
                self._perform(decision)
            self.check()
            if not decisions:
                return
        raise AssertionError("decisions without end")

    def _serve(self, model: Model) -> None:
        if model.process == "ready":
            if model.waiting:
                model.last_used = self.now
            model.running += model.waiting
            model.waiting = []
        elif model.process is None:
            if model.waiting:
                self.admission.ask(model.name, model.size, model.priority, self.now)
            else:
                self.admission.withdraw(model.name)
        self.admission.note(
            model.name,
            priority=model.priority,
            busy=bool(model.running or model.waiting),
            last_used=model.last_used,
        )

    def _perform(self, decision: Decision) -> None:
        model = self.models[decision.model_id]
        match decision:
            case Admit(granted_bytes=granted):
                assert model.process is None, "a second process beside a living one"
                assert granted == model.size
                model.process = "loading"
                model.until = self.now + 1 + model.size % SLOWEST_S
            case Evict(for_model_id=other, busy=busy):
                assert model.process == "ready"
                assert not model.pinned, "pinned models stay"
                waiter = self.models[other]
                overdue = self.now - min(each.since for each in waiter.waiting) >= PATIENCE_S
                assert not busy or overdue or waiter.priority > model.priority
                self._ask_to_end(model)
            case Refuse():
                assert model.waiting
                pinned = sum(
                    each.size for each in self.models.values() if each.pinned and each.process
                )
                assert model.size > BUDGET - SPARE - pinned - 100
                model.waiting = []

    def _ask_to_end(self, model: Model) -> None:
        self._park(model)
        model.process = "ending"
        model.until = self.now + 1 + model.size % SLOWEST_S

    def _park(self, model: Model) -> None:
        """Who runs in it waits from now on, and has done a part."""
        model.waiting += [Asked(self.now, each.left_s) for each in model.running]
        model.running = []

    def _end(self, model: Model) -> None:
        self._park(model)
        model.process = None
        self.admission.gone(model.name)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "models"):
            self.check()

    def check(self) -> None:
        real = sum(each.size for each in self.models.values() if each.process is not None)
        assert real + self.admission.spare_bytes <= BUDGET, "over the budget"
        known = {each.model_id for each in self.admission.holders}
        assert known == {each.name for each in self.models.values() if each.process is not None}
        for claim in self.admission.claims:
            assert self.models[claim.model_id].process is None
        for model in self.models.values():
            for each in model.waiting:
                assert self.now - each.since <= BOUND_S, f"{model.name} starves"

    def teardown(self) -> None:
        """Left alone, everybody is served or refused in time, and nothing is held in the end."""
        if not hasattr(self, "models"):
            return
        for _ in range(20_000):
            self._second()
            if not any(model.waiting or model.running for model in self.models.values()):
                break
        else:
            raise AssertionError("deadlock")
        self._second()
        assert not list(self.admission.claims)
        for model in self.models.values():
            if model.process is not None:
                self._end(model)
        self.admission.decide(self.now)
        assert self.admission.committed_bytes == SPARE, "something leaks"


def _run(world: type[World], examples: int) -> None:
    run_state_machine_as_test(
        world,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,),
            print_blob=False,
        ),
    )


def test_random_worlds() -> None:
    World.steps = 0
    _run(World, 600)
    assert World.steps >= 10_000


def _holding(*models: tuple[str, int, float, bool]) -> Admission:
    """With (name, priority, last used, busy) each."""
    admission = Admission(BUDGET, PATIENCE_S)
    for name, priority, last_used, busy in models:
        admission.ask(name, 10, priority, 0.0)
        admission.decide(0.0)
        admission.ready(name, 0.0)
        admission.note(name, priority=priority, busy=busy, last_used=last_used)
    return admission


def test_a_machine_short_of_memory_costs_idle_models_alone() -> None:
    models = (("old", 0, 1.0, False), ("new", 0, 2.0, False), ("dear", 1, 0.0, False))
    admission = _holding(*models, ("busy", 0, 0.0, True))
    assert admission.relieve(all_idle=False) == ["old"]
    assert admission.relieve(all_idle=False) == ["new"]
    assert admission.relieve(all_idle=False) == ["dear"]
    assert admission.relieve(all_idle=True) == []
    assert _holding(*models).relieve(all_idle=True) == ["old", "new", "dear"]


def test_the_smallest_set_that_is_enough_goes() -> None:
    admission = Admission(BUDGET, PATIENCE_S)
    for name, size, last_used in (("small", 10, 1.0), ("large", 60, 2.0), ("other", 25, 3.0)):
        admission.ask(name, size, 0, 0.0)
        admission.decide(0.0)
        admission.ready(name, 0.0)
        admission.note(name, priority=0, busy=False, last_used=last_used)
    admission.ask("new", 60, 0, 0.0)
    assert admission.decide(0.0) == [Evict("large", "new", busy=False)]


class NoReservation(Admission):
    """What is admitted counts only when it shows in a footprint."""

    def _admit(self, claim):  # type: ignore[no-untyped-def]
        admitted = super()._admit(claim)
        self._holders[claim.model_id].granted_bytes = 0
        return admitted


def test_a_smaller_budget_takes_the_spare_first_and_then_as_few_as_it_takes() -> None:
    admission = Admission(BUDGET, PATIENCE_S, SPARE)
    admission.decide(0.0)
    for name, needed, busy in (("large", 60, True), ("small", 30, False)):
        admission.ask(name, needed, 0, 0.0)
        admission.decide(0.0)
        admission.ready(name, 0.0)
        admission.note(name, priority=0, busy=busy, last_used=0.0)
    assert admission.spare_bytes == SPARE
    admission.configure(92, PATIENCE_S, SPARE)
    assert (admission.shrink(), admission.spare_bytes) == ([], 0)
    admission.configure(70, PATIENCE_S, SPARE)
    assert admission.shrink() == ["small"]
    admission.gone("small")
    admission.configure(50, PATIENCE_S, SPARE)
    assert admission.shrink() == ["large"], "a busy one if nothing else is left"


class LostWakeUp(Admission):
    """The end of a process wakes nobody who waits."""

    def gone(self, model_id: str) -> None:
        super().gone(model_id)
        for claim in self._claims.values():
            claim.needed_bytes = 0
        self._claims = _Deaf()  # type: ignore[assignment]


class _Deaf(dict):  # type: ignore[type-arg]
    def setdefault(self, _key, default=None):  # type: ignore[no-untyped-def]
        return default


class ForgottenRelease(Admission):
    """The bytes of a process that has ended stay counted."""

    leaked_bytes = 0

    def gone(self, model_id: str) -> None:
        holder = self._holders.get(model_id)
        super().gone(model_id)
        if holder is not None:
            self.leaked_bytes += 1

    @property
    def committed_bytes(self) -> int:
        return super().committed_bytes + self.leaked_bytes


class NoPatience(Admission):
    """Waiting never gives the right to displace a busy model."""

    def _overdue(self, _claim, _now):  # type: ignore[no-untyped-def]
        return False


class Everybody(Admission):
    """Whoever is idle or not, pinned or not, has to go."""

    def _may_displace(self, _claim, holder, _now):  # type: ignore[no-untyped-def]
        return holder.ready_at is not None and not holder.ending


class Twice(Admission):
    """What is coming free for one is given to another."""

    def decide(self, now: float) -> list[Decision]:
        decisions = super().decide(now)
        for each in self._holders.values():
            if each.ending:
                each.granted_bytes = each.footprint_bytes = 0
        return decisions


@pytest.mark.parametrize(
    "mutation",
    [NoReservation, LostWakeUp, ForgottenRelease, NoPatience, Everybody, Twice],
    ids=lambda each: each.__name__,
)
def test_a_defect_is_caught(mutation: type[Admission]) -> None:
    class Mutated(World):
        make = staticmethod(lambda: mutation(BUDGET, PATIENCE_S, SPARE))

    with pytest.raises((AssertionError, ExceptionGroup)):
        _run(Mutated, 600)
