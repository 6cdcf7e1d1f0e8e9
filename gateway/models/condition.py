"""A model's state, why it is in it, and who waits for another: the life cycle at work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from gateway.models.lifecycle import HOLDING, Circumstances, Effect, Lifecycle, ModelEvent, State
from gateway.system.events import EventLog
from gateway.system.refusal import Refusal
from gateway.workers.verdicts import RestartVerdict

# There was a process, or nearly: why it is gone is worth knowing.
_ENDS: Final = (ModelEvent.EXIT, ModelEvent.START_FAILED)
# It can't be loaded as things are.
_NOT_HAD: Final = (ModelEvent.NO_ROOM, ModelEvent.UNREADABLE)
_LEAVING: Final = (State.DRAINING, State.STOPPING)
# Here an event may be news although the state stays what it was.
_AT_REST: Final = (State.UNLOADED, State.HELD)


class Effector(Protocol):
    """Does what the life cycle decides on, and knows what its decisions depend on."""

    def circumstances(self, event: ModelEvent, verdict: RestartVerdict) -> Circumstances: ...

    def unavailable(self) -> Refusal:
        """Why a request can't be served in the present state."""

    def entered(self, before: State) -> None:
        """Another state than `before` was entered; its effects follow."""

    def perform(self, effect: Effect, event: ModelEvent, refusal: Refusal) -> None: ...


class Condition:
    """Everything that happens to a model is told to `handle`, with its reason: what becomes of that
    is decided here alone.
    """

    def __init__(self, model_id: str, events: EventLog, effector: Effector) -> None:
        self._reason: str | None = None
        self._failure: Refusal | None = None
        self._end_reason: str | None = None
        self._end_cause: ModelEvent | None = None
        # What those are told who want a model that is held.
        self._hold: Refusal | None = None
        self._left: Refusal | None = None
        self._model_id = model_id
        self._events = events
        self._effector = effector
        self._lifecycle = Lifecycle()
        self._changed = asyncio.Event()

    @property
    def state(self) -> State:
        return self._lifecycle.state

    @property
    def reason(self) -> str | None:
        """Why it is in its state, for the operator. In states without a process it may be why the
        last one ended.
        """
        return self._reason

    @property
    def end_reason(self) -> str | None:
        """Why the present process is to end; None if it isn't, or if an order says it all."""
        return self._end_reason

    @property
    def end_cause(self) -> ModelEvent | None:
        """What had the present process, or the last one, ended; None: nothing did, it ended."""
        return self._end_cause

    @property
    def failure(self) -> Refusal | None:
        """What the requests were told that could not be served; None while nothing is wrong."""
        return self._failure

    @property
    def trouble(self) -> str | None:
        """Why it can't be served, for the operator; None if nothing is wrong, or if it is held."""
        if self._failure is None or self.state is State.HELD:
            return None
        return self._failure.message

    @property
    def on_its_way(self) -> bool:
        """It is loaded, or will be without another request's asking for it: a request that arrives
        now is no event.
        """
        return self._lifecycle.on_its_way

    @property
    def alive(self) -> bool:
        """A process of this model may exist."""
        return self._lifecycle.alive

    @property
    def judged(self) -> bool:
        """The end of the process, should it come now, is for the restart policy to judge."""
        return self._lifecycle.judged

    @property
    def hold(self) -> Refusal | None:
        """What those are told who want a model that is held; None: it isn't."""
        return self._hold if self.state is State.HELD else None

    def restore(self, state: State, hold: Refusal | None) -> None:
        """Go on where an earlier gateway was: with a model that is ready, or held."""
        self._lifecycle.state = state
        if state is State.HELD and hold is not None:
            self._hold = self._failure = hold
            self._reason = hold.message

    def describe(self) -> str:
        """What the model is, for a sentence about it."""
        state = "has failed" if self.state is State.FAILED else f"is {self.state}"
        return f"{state}: {self._reason}" if self._reason else state

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for a state of affairs. Whoever waits brings the deadline.

        Raises:
            Refusal: another gateway has the model now.
        """
        while not reached():
            if self._left is not None:
                raise self._left.anew()
            await self._changed.wait()

    def leave(self, refusal: Refusal) -> None:
        """Another gateway has the model: whoever waits here is told so."""
        self._left = refusal
        self.notify()

    def notify(self) -> None:
        """Something has changed that somebody may wait for."""
        self._changed.set()
        self._changed = asyncio.Event()

    def progress(self, text: str) -> None:
        """How far it is on its way up, or what it waits for there."""
        if self.on_its_way and self.state is not State.READY:
            self._reason = text

    def handle(
        self,
        event: ModelEvent,
        reason: str | None = None,
        *,
        refusal: Refusal | None = None,
        verdict: RestartVerdict = RestartVerdict.RESTART,
    ) -> None:
        """Take in an event, and have its effects performed.

        `reason` is why it happened, if that isn't plain from the event. `refusal` is what requests
        are told that end by it, if there is more to say than that the model is unavailable.
        `verdict` is the restart policy's, on a death.

        Raises:
            ImpossibleTransitionError: this can't happen in this state.
        """
        before = self.state
        refusal = refusal or self._standing_refusal or self._effector.unavailable()
        effects = self._lifecycle.handle(event, self._effector.circumstances(event, verdict))
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
        """What was decided on already, for a model that is held or will be failed."""
        if self._lifecycle.holds:
            return self._hold
        return self._failure if self._lifecycle.fails else None

    def _explain(self, event: ModelEvent, reason: str | None, refusal: Refusal) -> None:
        """What an event's reason becomes in the state that it has led to."""
        match self.state:
            case State.DRAINING | State.STOPPING:
                # What cuts a drain short is the better reason for the end.
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
