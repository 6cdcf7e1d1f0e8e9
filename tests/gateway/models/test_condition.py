"""Why a model is in its state: the reason of the event that led there, and of no other."""

from __future__ import annotations

from gateway.models.condition import Condition
from gateway.models.lifecycle import Circumstances, Effect, ModelEvent, State
from gateway.requests import refusals
from gateway.system.events import EventLog
from gateway.system.refusal import Refusal
from gateway.workers.restart_policy import RestartAction

HELD = refusals.held("m")
LOADED = (ModelEvent.LOAD, ModelEvent.ADMITTED, ModelEvent.HELLO, ModelEvent.LOADED)
BUDGET = "the budget is 900 MB now"


class _Model:
    """Does nothing, and remembers the refusals of its requests."""

    def __init__(self) -> None:
        self.refused: list[Refusal] = []
        self.log = EventLog()
        self.condition = Condition("m", self.log, self)

    def circumstances(self, event: ModelEvent, after_death: RestartAction) -> Circumstances:
        return Circumstances(after_death=after_death)

    def unavailable(self) -> Refusal:
        return Refusal("model_unavailable", "unavailable", retry_after_s=5)

    def entered(self, before: State) -> None:
        pass

    def perform(self, effect: Effect, event: ModelEvent, refusal: Refusal) -> None:
        if effect is Effect.REFUSE_WAITING:
            self.refused.append(refusal)

    def after(self, *events: ModelEvent) -> Condition:
        for event in events:
            self.condition.handle(event)
        return self.condition


async def test_reason_of_an_end_does_not_explain_later_orders() -> None:
    model = _Model()
    condition = model.after(*LOADED)
    condition.handle(ModelEvent.EVICT, BUDGET)
    assert (condition.state, condition.reason) == (State.STOPPING, BUDGET)
    condition.handle(ModelEvent.EXIT)
    assert (condition.state, condition.reason) == (State.UNLOADED, BUDGET)
    condition.handle(ModelEvent.HOLD, refusal=HELD)
    assert (condition.state, condition.reason) == (State.HELD, HELD.message)
    assert condition.failure is HELD


async def test_a_hold_during_another_end_is_what_holds_it() -> None:
    model = _Model()
    condition = model.after(*LOADED)
    condition.handle(ModelEvent.EVICT, BUDGET)
    condition.handle(ModelEvent.HOLD, refusal=HELD)
    condition.handle(ModelEvent.EXIT)
    assert (condition.state, condition.reason) == (State.HELD, HELD.message)


async def test_the_reason_of_one_worker_is_not_the_next_ones() -> None:
    model = _Model()
    condition = model.after(*LOADED)
    condition.handle(ModelEvent.CHANGED, "its settings changed")
    assert (condition.state, condition.end_reason) == (State.DRAINING, "its settings changed")
    condition.handle(ModelEvent.EXIT)
    assert (condition.state, condition.reason) == (State.WAITING, None)
    model.after(*LOADED[1:], ModelEvent.KILL)
    assert (condition.state, condition.reason, condition.end_reason) == (State.STOPPING, None, None)


async def test_progress_shows_only_while_a_model_loads() -> None:
    model = _Model()
    condition = model.after(*LOADED[:3])
    condition.progress("loading: 1 GB of 5 GB")
    assert condition.describe() == "is loading: loading: 1 GB of 5 GB"
    condition.handle(ModelEvent.UNLOAD)
    assert (condition.state, condition.reason) == (State.STOPPING, None)
    condition.progress("loading: 2 GB of 5 GB")
    assert condition.reason is None


async def test_a_cause_that_cuts_a_drain_short_is_the_reason_of_the_end() -> None:
    condition = _Model().after(*LOADED)
    removed = refusals.removed("m")
    condition.handle(ModelEvent.REMOVED, "taken out", refusal=removed)
    condition.handle(ModelEvent.HUNG, "no heartbeat")
    assert condition.end_reason == "no heartbeat"
    condition.handle(ModelEvent.MISBEHAVED, "and then it lied")
    assert condition.end_reason == "no heartbeat"
    condition.handle(ModelEvent.EXIT)
    assert (condition.end_reason, condition.failure) == (None, removed)


async def test_lasting_load_failure_shows_while_the_worker_stops() -> None:
    model = _Model()
    failed = refusals.load_failed("m", "no weights", retry_after_s=None)
    condition = model.after(*LOADED[:3])
    condition.handle(ModelEvent.LOAD_IMPOSSIBLE, "no weights", refusal=failed)
    assert condition.state is State.STOPPING
    condition.handle(ModelEvent.DEMAND)
    assert model.refused == [failed, failed]
    assert failed.retry_after_s is None
    condition.handle(ModelEvent.EXIT)
    assert (condition.state, condition.reason) == (State.FAILED, "no weights")
    condition.handle(ModelEvent.UNLOAD)
    assert (condition.reason, condition.failure) == (None, None)


async def test_refusal_for_memory_is_forgotten_after_a_configuration_change() -> None:
    condition = _Model().after(ModelEvent.LOAD)
    condition.handle(ModelEvent.NO_ROOM, refusal=Refusal("insufficient_memory", "too large"))
    assert (condition.state, condition.reason) == (State.UNLOADED, "too large")
    condition.handle(ModelEvent.CHANGED)
    assert (condition.reason, condition.failure) == (None, None)


async def test_a_death_is_explained() -> None:
    condition = _Model().after(*LOADED)
    condition.handle(
        ModelEvent.EXIT,
        "it crashed; the next attempt comes soon",
        after_death=RestartAction.BACK_OFF,
    )
    assert condition.describe() == "is backoff: it crashed; the next attempt comes soon"
    condition.handle(ModelEvent.UNLOAD)
    assert (condition.state, condition.reason) == (State.UNLOADED, None)


async def test_the_gateways_end_is_no_order_of_the_operator() -> None:
    model = _Model()
    condition = model.after(ModelEvent.PRELOAD, *LOADED[1:])
    condition.handle(ModelEvent.SHUTDOWN, "the gateway ends", refusal=refusals.shutting_down())
    assert condition.reason == "the gateway ends"
    condition.handle(ModelEvent.EXIT)
    assert condition.reason == refusals.shutting_down().message
    history = " ".join(str(event) for event in model.log.recent(100))
    assert "operator" not in history
