"""The condition of a model: its state in the life cycle, the reason for that state, and the
deadline of that state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from gateway.config.tables import InForce
from gateway.models.lifecycle import HOLDING, Circumstances, Effect, Lifecycle, ModelEvent, State
from gateway.requests import refusals
from gateway.system.clock import Timer
from gateway.system.events import EventLog
from gateway.system.refusal import Refusal
from gateway.workers.restart_policy import RestartAction

# After these events an operator wants to know why the model has no process.
_ENDS: Final = (ModelEvent.EXIT, ModelEvent.START_FAILED)
# After these events the model can't be loaded for now.
_NOT_HAD: Final = (ModelEvent.NO_ROOM, ModelEvent.UNREADABLE)
_ENDING: Final = (State.DRAINING, State.STOPPING)
# In these states an event may change the reason without a change of the state.
_AT_REST: Final = (State.UNLOADED, State.HELD)


class Effector(Protocol):
    """Performs the effects of the life cycle, and knows the circumstances of its decisions."""

    def circumstances(self, event: ModelEvent, after_death: RestartAction) -> Circumstances: ...

    def unavailable(self) -> Refusal:
        """The refusal of requests that can't be served in the model's present state."""

    def entered(self, before: State) -> None:
        """Note that the model has left the state `before`. `perform` is called after that."""

    def perform(self, effect: Effect, event: ModelEvent, refusal: Refusal) -> None: ...


class Condition:
    """The condition of one model. Every event of the model goes to `handle`, which alone decides
    what follows. The other methods and attributes are for readers:

    `reason` says why the model is in its state, for the operator. If the model has no process, this
    may be why its last process ended. `failure` is the refusal of requests that could not be
    served. `end_reason` says why the present process is to end; an order may need no reason.
    `end_cause` is the event that led the present process, or the last one, to drain or stop.
    """

    def __init__(self, model_id: str, events: EventLog, effector: Effector) -> None:
        self.reason: str | None = None
        self.failure: Refusal | None = None
        self.end_reason: str | None = None
        self.end_cause: ModelEvent | None = None
        # The refusal of requests while the model is held.
        self._hold: Refusal | None = None
        self._released: Refusal | None = None
        self._model_id = model_id
        self._events = events
        self._effector = effector
        self.lifecycle = Lifecycle()
        self._changed = asyncio.Event()

    @property
    def state(self) -> State:
        return self.lifecycle.state

    @property
    def trouble(self) -> str | None:
        """Why the model can't be served, for the operator. None: nothing is wrong, or the model is
        held.
        """
        if self.failure is None or self.state is State.HELD:
            return None
        return self.failure.message

    @property
    def hold(self) -> Refusal | None:
        """The refusal of requests while the model is held. None: the model isn't held."""
        return self._hold if self.state is State.HELD else None

    def restore(self, state: State, hold: Refusal | None) -> None:
        """Go on from the state of an earlier gateway: ready, or held with the refusal `hold`."""
        self.lifecycle.state = state
        if state is State.HELD and hold is not None:
            self._hold = self.failure = hold
            self.reason = hold.message

    def describe(self) -> str:
        """The state and its reason, as the end of a sentence about the model."""
        state = "has failed" if self.state is State.FAILED else f"is {self.state}"
        return f"{state}: {self.reason}" if self.reason else state

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until `reached` returns True. The caller sets the deadline.

        Raises:
            Refusal: another gateway has the model now.
        """
        while not reached():
            if self._released is not None:
                raise self._released.anew()
            await self._changed.wait()

    def release(self, refusal: Refusal) -> None:
        """Give the model up to another gateway: `until` raises `refusal` now instead of waiting."""
        self._released = refusal
        self.notify()

    def notify(self) -> None:
        """Have `until` call `reached` again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def progress(self, text: str) -> None:
        """Note how far a load has come, or what the load waits for, as the reason of the state."""
        if self.lifecycle.on_its_way and self.state is not State.READY:
            self.reason = text

    def handle(
        self,
        event: ModelEvent,
        reason: str | None = None,
        *,
        refusal: Refusal | None = None,
        after_death: RestartAction = RestartAction.RESTART,
    ) -> None:
        """Take in an event, and have its effects performed.

        `reason` says why the event happened, if the event alone doesn't say that. `refusal` is the
        answer to requests that the event ends; by default it says that the model is unavailable.
        `after_death` is the decision of the restart policy on a death.

        Raises:
            ImpossibleTransitionError: the event can't happen in this state.
        """
        before = self.state
        refusal = refusal or self._standing_refusal or self._effector.unavailable()
        effects = self.lifecycle.handle(event, self._effector.circumstances(event, after_death))
        if event in HOLDING:
            self._hold = refusal
        if self.state is not before or (self.state in _AT_REST and event is not ModelEvent.DEMAND):
            self._explain(event, reason, refusal)
        if self.state is not before:
            if self.state is State.STARTING:
                self.end_cause = None
            elif self.state in _ENDING and before not in _ENDING:
                self.end_cause = event
            self._effector.entered(before)
            self._events.emit(
                "state",
                self._model_id,
                before=str(before),
                after=str(self.state),
                cause=str(event),
                reason=self.reason,
            )
        if Effect.REFUSE_WAITING in effects:
            self.failure = self.failure or refusal
        for effect in effects:
            self._effector.perform(effect, event, refusal)
        self.notify()

    @property
    def _standing_refusal(self) -> Refusal | None:
        """The refusal of an earlier event by which the model is held, or will be held or failed
        when its process has ended; None: there was no such event.
        """
        if self.lifecycle.holds:
            return self._hold
        return self.failure if self.lifecycle.fails else None

    def _explain(self, event: ModelEvent, reason: str | None, refusal: Refusal) -> None:
        """Set the reason and the failure of the state that the event has led to."""
        match self.state:
            case State.DRAINING | State.STOPPING:
                # If an event cuts a drain short, its reason replaces the reason of the drain.
                self.reason = self.end_reason = reason or self.end_reason
                return
            case State.HELD:
                self.failure = self._hold or refusal
                self.reason = self.failure.message
            case State.BACKOFF | State.FAILED:
                self.failure = self.failure or refusal
                self.reason = reason or self.end_reason or refusal.message
            case State.UNLOADED if event in _NOT_HAD:
                self.failure = refusal
                self.reason = reason or refusal.message
            case State.UNLOADED:
                self.failure = None
                self.reason = (reason or self.end_reason) if event in _ENDS else None
            case State.WAITING:
                self.reason = self.failure = None
            case State.STARTING | State.LOADING | State.READY:
                self.reason = None
        self.end_reason = None


_LOAD_TIMEOUTS: Final = 2


class Deadlines:
    """The deadlines of one model's states. A load that is too slow counts as a death. The second
    such load in a row is a lasting failure.
    """

    def __init__(self, model_id: str, in_force: InForce, condition: Condition) -> None:
        self._model_id = model_id
        self._in_force = in_force
        self._condition = condition
        self._timer: Timer | None = None
        self._load_timeouts = 0

    def entered(self) -> None:
        """Begin the deadline of the state that was entered, or none, instead of the last one."""
        settings = self._in_force.settings
        match self._condition.state:
            case State.STARTING:
                self._arm(settings.workers.load_timeout_s, self._load_too_slow)
            case State.LOADING:
                pass  # The deadline that began with STARTING is for the whole load.
            case State.DRAINING:
                self._arm(settings.gateway.drain_s, self.cut_drain)
            case State.READY:
                self.disarm()
                self._load_timeouts = 0
            case _:
                self.disarm()

    def cut_drain(self) -> None:
        """End a drain now, if there is one."""
        if self._condition.state is State.DRAINING:
            self._condition.handle(ModelEvent.DEADLINE)

    def forget_timeouts(self) -> None:
        """Count loads that are too slow from 0 again."""
        self._load_timeouts = 0

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, seconds: float, passed: Callable[[], None]) -> None:
        self.disarm()
        self._timer = Timer(seconds, passed)

    def _load_too_slow(self) -> None:
        self._load_timeouts += 1
        again = self._load_timeouts >= _LOAD_TIMEOUTS
        seconds = self._in_force.settings.workers.load_timeout_s
        reason = f"it was not loaded within {seconds:g} s (workers.load_timeout_s)"
        self._condition.handle(
            ModelEvent.TOO_SLOW if again else ModelEvent.DEADLINE,
            f"{reason}, twice" if again else reason,
            refusal=refusals.load_too_slow(self._model_id, reason),
        )
