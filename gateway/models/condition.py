"""The condition of a model: its state in the life cycle, and the reason for that state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from gateway.models.lifecycle import HOLDING, Circumstances, Effect, Lifecycle, ModelEvent, State
from gateway.system.events import EventLog
from gateway.system.refusal import Refusal
from gateway.workers.restart_policy import RestartAction

# After these events an operator wants to know why the model has no process.
_ENDS: Final = (ModelEvent.EXIT, ModelEvent.START_FAILED)
# After these events the model can't be loaded for now.
_NOT_HAD: Final = (ModelEvent.NO_ROOM, ModelEvent.UNREADABLE)
_LEAVING: Final = (State.DRAINING, State.STOPPING)
# In these states an event may change the reason without a change of the state.
_AT_REST: Final = (State.UNLOADED, State.HELD)


class Effector(Protocol):
    """Performs the effects of the life cycle, and knows the circumstances of its decisions."""

    def circumstances(self, event: ModelEvent, verdict: RestartAction) -> Circumstances: ...

    def unavailable(self) -> Refusal:
        """The refusal of requests that can't be served in the model's present state."""

    def entered(self, before: State) -> None:
        """Note that the model has left the state `before`. `perform` is called after that."""

    def perform(self, effect: Effect, event: ModelEvent, refusal: Refusal) -> None: ...


class Condition:
    """The condition of one model. Every event of the model is passed to `handle`, which alone
    decides what follows.
    """

    def __init__(self, model_id: str, events: EventLog, effector: Effector) -> None:
        self._reason: str | None = None
        self._failure: Refusal | None = None
        self._end_reason: str | None = None
        self._end_cause: ModelEvent | None = None
        # The refusal of requests while the model is held.
        self._hold: Refusal | None = None
        self._left: Refusal | None = None
        self._model_id = model_id
        self._events = events
        self._effector = effector
        self.lifecycle = Lifecycle()
        self._changed = asyncio.Event()

    @property
    def state(self) -> State:
        return self.lifecycle.state

    @property
    def reason(self) -> str | None:
        """Why the model is in its state, for the operator. If the model has no process, this may be
        why its last process ended.
        """
        return self._reason

    @property
    def end_reason(self) -> str | None:
        """Why the present process is to end. None: the process isn't to end, or the order to end it
        needs no reason.
        """
        return self._end_reason

    @property
    def end_cause(self) -> ModelEvent | None:
        """The event that led the present process, or the last one, to drain or stop. None: no event
        did.
        """
        return self._end_cause

    @property
    def failure(self) -> Refusal | None:
        """The refusal of requests that could not be served; None while nothing is wrong."""
        return self._failure

    @property
    def trouble(self) -> str | None:
        """Why the model can't be served, for the operator. None: nothing is wrong, or the model is
        held.
        """
        if self._failure is None or self.state is State.HELD:
            return None
        return self._failure.message

    @property
    def hold(self) -> Refusal | None:
        """The refusal of requests while the model is held. None: the model isn't held."""
        return self._hold if self.state is State.HELD else None

    def restore(self, state: State, hold: Refusal | None) -> None:
        """Go on from the state of an earlier gateway: ready, or held with the refusal `hold`."""
        self.lifecycle.state = state
        if state is State.HELD and hold is not None:
            self._hold = self._failure = hold
            self._reason = hold.message

    def describe(self) -> str:
        """The state and its reason, as the end of a sentence about the model."""
        state = "has failed" if self.state is State.FAILED else f"is {self.state}"
        return f"{state}: {self._reason}" if self._reason else state

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until `reached` returns True. The caller sets the deadline.

        Raises:
            Refusal: another gateway has the model now.
        """
        while not reached():
            if self._left is not None:
                raise self._left.anew()
            await self._changed.wait()

    def leave(self, refusal: Refusal) -> None:
        """Give the model up to another gateway: `until` raises `refusal` now instead of waiting."""
        self._left = refusal
        self.notify()

    def notify(self) -> None:
        """Have `until` call `reached` again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def progress(self, text: str) -> None:
        """Note how far a load has come, or what the load waits for, as the reason of the state."""
        if self.lifecycle.on_its_way and self.state is not State.READY:
            self._reason = text

    def handle(
        self,
        event: ModelEvent,
        reason: str | None = None,
        *,
        refusal: Refusal | None = None,
        verdict: RestartAction = RestartAction.RESTART,
    ) -> None:
        """Take in an event, and have its effects performed.

        `reason` says why the event happened, if the event alone doesn't say that. `refusal` is the
        answer to requests that the event ends; by default it says that the model is unavailable.
        `verdict` is the verdict of the restart policy on a death.

        Raises:
            ImpossibleTransitionError: the event can't happen in this state.
        """
        before = self.state
        refusal = refusal or self._standing_refusal or self._effector.unavailable()
        effects = self.lifecycle.handle(event, self._effector.circumstances(event, verdict))
        if event in HOLDING:
            self._hold = refusal
        if self.state is not before or (self.state in _AT_REST and event is not ModelEvent.DEMAND):
            self._explain(event, reason, refusal)
        if self.state is not before:
            if self.state is State.STARTING:
                self._end_cause = None
            elif self.state in _LEAVING and before not in _LEAVING:
                self._end_cause = event
            self._effector.entered(before)
            self._events.emit(
                "state",
                self._model_id,
                before=str(before),
                after=str(self.state),
                cause=str(event),
                reason=self._reason,
            )
        if Effect.REFUSE_WAITING in effects:
            self._failure = self._failure or refusal
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
        return self._failure if self.lifecycle.fails else None

    def _explain(self, event: ModelEvent, reason: str | None, refusal: Refusal) -> None:
        """Set the reason and the failure of the state that the event has led to."""
        match self.state:
            case State.DRAINING | State.STOPPING:
                # If an event cuts a drain short, its reason replaces the reason of the drain.
                self._reason = self._end_reason = reason or self._end_reason
                return
            case State.HELD:
                self._failure = self._hold or refusal
                self._reason = self._failure.message
            case State.BACKOFF | State.FAILED:
                self._failure = self._failure or refusal
                self._reason = reason or self._end_reason or refusal.message
            case State.UNLOADED if event in _NOT_HAD:
                self._failure = refusal
                self._reason = reason or refusal.message
            case State.UNLOADED:
                self._failure = None
                self._reason = (reason or self._end_reason) if event in _ENDS else None
            case State.WAITING:
                self._reason = self._failure = None
            case State.STARTING | State.LOADING | State.READY:
                self._reason = None
        self._end_reason = None
