"""A model's state, why it is in it, and who waits for another: the life cycle at work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.dispatch.refusal import Refusal
from gateway.events import EventLog
from gateway.supervise.lifecycle import Circumstances, Effect, Event, Lifecycle, State, Verdict


class Performer(Protocol):
    """Does what the life cycle decides on, and knows what its decisions depend on."""

    def circumstances(self, event: Event, verdict: Verdict) -> Circumstances: ...

    def unavailable(self) -> Refusal:
        """Why a request can't be served in the present state."""

    def entered(self, before: State) -> None:
        """Another state than `before` was entered; its effects follow."""

    def perform(self, effect: Effect, event: Event, refusal: Refusal) -> None: ...


class Condition:
    """Everything that happens to a model is told to `handle`.

    `reason` is for the operator. `failure` is what the requests were told that could not be
    served; None while nothing is wrong. `end_reason` is why the present process is to end, noted
    by whoever ends it just before.
    """

    def __init__(self, model_id: str, events: EventLog, performer: Performer) -> None:
        self.reason: str | None = None
        self.failure: Refusal | None = None
        self.end_reason: str | None = None
        self._model_id = model_id
        self._events = events
        self._performer = performer
        self._lifecycle = Lifecycle()
        self._changed = asyncio.Event()

    @property
    def state(self) -> State:
        return self._lifecycle.state

    @property
    def alive(self) -> bool:
        """A process of this model may exist."""
        return self._lifecycle.alive

    @property
    def holds(self) -> bool:
        """It is held, or will be as soon as its process has ended."""
        return self._lifecycle.holds

    @property
    def judged(self) -> bool:
        """The end of the process, should it come now, is for the restart policy to judge."""
        return self._lifecycle.judged

    def describe(self) -> str:
        """What the model is, for a sentence about it."""
        return f"is {self.state}: {self.reason}" if self.reason else f"is {self.state}"

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for a state of affairs. Whoever waits brings the deadline."""
        while not reached():
            await self._changed.wait()

    def notify(self) -> None:
        """Something has changed that somebody may wait for."""
        self._changed.set()
        self._changed = asyncio.Event()

    def handle(
        self,
        event: Event,
        refusal: Refusal | None = None,
        verdict: Verdict = Verdict.RESTART,
    ) -> None:
        """Take in an event, and have its effects performed.

        `refusal` is what requests are told that end by it, if there is more to say than that the
        model is unavailable. `verdict` is the restart policy's, on a death.

        Raises:
            ImpossibleTransitionError: this can't happen in this state.
        """
        refusal = refusal or self._performer.unavailable()
        before = self.state
        effects = self._lifecycle.handle(event, self._performer.circumstances(event, verdict))
        if self.state is not before:
            self._explain(before, refusal)
            self._performer.entered(before)
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
            self._performer.perform(effect, event, refusal)
        self.notify()

    def _explain(self, before: State, refusal: Refusal) -> None:
        match self.state:
            case State.WAITING:
                self.reason = self.failure = None
            case State.STARTING:
                self.reason = self.end_reason = None
            case State.READY:
                self.reason = None
            case State.DRAINING:
                self.reason = self.end_reason
            case State.STOPPING:
                self.reason = self.reason or self.end_reason
            case State.BACKOFF | State.FAILED | State.HELD:
                self.failure = self.failure or refusal
                self.reason = self.reason or refusal.message
            case State.UNLOADED if before is State.WAITING:
                self.reason = None if self.failure is None else self.failure.message
            case State.UNLOADED if before is State.FAILED:
                self.reason = None
            case _:
                pass
