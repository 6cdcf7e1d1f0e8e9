"""The life cycle of a model as a table: events in, a state and effects out.

No I/O and no clock here. Whoever feeds it performs the effects in their order; see
`gateway.supervise.compartment`. `python -m gateway.supervise.lifecycle` prints the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple


class State(StrEnum):
    UNLOADED = "unloaded"
    HELD = "held"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    FAILED = "failed"


class Event(StrEnum):
    DEMAND = "a request arrived"
    LOAD = "operator: load"
    UNLOAD = "operator: unload"
    HOLD = "operator: unload and hold"
    RESTART = "operator: restart"
    KILL = "operator: kill"
    DESTROY = "operator: kill by force"
    NOT_STARTED = "no process could be started"
    HELLO = "the worker said hello"
    LOADED = "the model is loaded"
    LOAD_FAILED = "the load failed"
    LOAD_IMPOSSIBLE = "the load failed and will again"
    MISBEHAVED = "the worker broke the protocol"
    DEADLINE = "the state's deadline passed"
    EXIT = "the process ended"


class Effect(StrEnum):
    SPAWN = "start a worker"
    SEND_LOAD = "send load"
    DISPATCH = "send waiting requests"
    DRAIN = "let it finish what runs"
    STOP = "stop it, politely first"
    KILL = "stop it by the shortened ladder"
    DESTROY = "SIGKILL"
    END_RUNNING = "end the requests that run"
    REFUSE_WAITING = "refuse the requests that wait"


class Rule(NamedTuple):
    """`then`: the state to reach when the process has ended, where this rule decides on it."""

    state: State
    effects: tuple[Effect, ...] = ()
    then: State | None = None


class ImpossibleTransitionError(Exception):
    """An event that can't happen in this state: a defect of the caller."""


_U, _H, _F = State.UNLOADED, State.HELD, State.FAILED
_STARTING, _LOADING, _READY = State.STARTING, State.LOADING, State.READY
_DRAINING, _STOPPING = State.DRAINING, State.STOPPING

_ASLEEP: Final = {
    Event.LOAD: Rule(_STARTING, (Effect.SPAWN,)),
    Event.RESTART: Rule(_STARTING, (Effect.SPAWN,)),
    Event.HOLD: Rule(_H, (Effect.REFUSE_WAITING,)),
}

_COMING_UP: Final = {
    Event.UNLOAD: Rule(_STOPPING, (Effect.STOP,), _U),
    Event.HOLD: Rule(_STOPPING, (Effect.REFUSE_WAITING, Effect.STOP), _H),
    Event.RESTART: Rule(_STOPPING, (Effect.STOP,), _STARTING),
    Event.KILL: Rule(_STOPPING, (Effect.KILL,), _U),
    Event.DESTROY: Rule(_STOPPING, (Effect.DESTROY,), _U),
    Event.MISBEHAVED: Rule(_STOPPING, (Effect.REFUSE_WAITING, Effect.KILL), _U),
    Event.DEADLINE: Rule(_STOPPING, (Effect.REFUSE_WAITING, Effect.STOP), _U),
    Event.EXIT: Rule(_U, (Effect.REFUSE_WAITING,)),
}

TABLE: Final[dict[State, dict[Event, Rule]]] = {
    State.UNLOADED: {
        **_ASLEEP,
        Event.DEMAND: Rule(_STARTING, (Effect.SPAWN,)),
        Event.UNLOAD: Rule(_U),
        Event.KILL: Rule(_U),
        Event.DESTROY: Rule(_U),
    },
    State.HELD: {
        **_ASLEEP,
        Event.DEMAND: Rule(_H, (Effect.REFUSE_WAITING,)),
        Event.UNLOAD: Rule(_H),
        Event.KILL: Rule(_H),
        Event.DESTROY: Rule(_H),
    },
    State.FAILED: {
        **_ASLEEP,
        Event.DEMAND: Rule(_F, (Effect.REFUSE_WAITING,)),
        Event.UNLOAD: Rule(_U),
        Event.KILL: Rule(_F),
        Event.DESTROY: Rule(_F),
    },
    State.STARTING: {
        **_COMING_UP,
        Event.DEMAND: Rule(_STARTING),
        Event.LOAD: Rule(_STARTING),
        Event.HELLO: Rule(_LOADING, (Effect.SEND_LOAD,)),
        Event.NOT_STARTED: Rule(_F, (Effect.REFUSE_WAITING,)),
    },
    State.LOADING: {
        **_COMING_UP,
        Event.DEMAND: Rule(_LOADING),
        Event.LOAD: Rule(_LOADING),
        Event.LOADED: Rule(_READY, (Effect.DISPATCH,)),
        Event.LOAD_FAILED: Rule(_STOPPING, (Effect.REFUSE_WAITING, Effect.STOP), _U),
        Event.LOAD_IMPOSSIBLE: Rule(_STOPPING, (Effect.REFUSE_WAITING, Effect.STOP), _F),
    },
    State.READY: {
        Event.DEMAND: Rule(_READY, (Effect.DISPATCH,)),
        Event.LOAD: Rule(_READY),
        Event.UNLOAD: Rule(_DRAINING, (Effect.DRAIN,), _U),
        Event.HOLD: Rule(_DRAINING, (Effect.REFUSE_WAITING, Effect.DRAIN), _H),
        Event.RESTART: Rule(_DRAINING, (Effect.DRAIN,), _STARTING),
        Event.KILL: Rule(_STOPPING, (Effect.END_RUNNING, Effect.KILL), _U),
        Event.DESTROY: Rule(_STOPPING, (Effect.END_RUNNING, Effect.DESTROY), _U),
        Event.MISBEHAVED: Rule(_STOPPING, (Effect.END_RUNNING, Effect.KILL), _U),
        Event.EXIT: Rule(_U, (Effect.END_RUNNING,)),
    },
    State.DRAINING: {
        Event.DEMAND: Rule(_DRAINING),
        Event.LOAD: Rule(_DRAINING),
        Event.RESTART: Rule(_DRAINING),
        Event.UNLOAD: Rule(_DRAINING),
        Event.HOLD: Rule(_DRAINING, (Effect.REFUSE_WAITING,)),
        Event.KILL: Rule(_STOPPING, (Effect.END_RUNNING, Effect.KILL)),
        Event.DESTROY: Rule(_STOPPING, (Effect.END_RUNNING, Effect.DESTROY)),
        Event.MISBEHAVED: Rule(_STOPPING, (Effect.END_RUNNING, Effect.KILL)),
        Event.DEADLINE: Rule(_STOPPING, (Effect.END_RUNNING, Effect.STOP)),
        Event.EXIT: Rule(_U, (Effect.END_RUNNING,)),
    },
    State.STOPPING: {
        Event.DEMAND: Rule(_STOPPING),
        Event.LOAD: Rule(_STOPPING),
        Event.RESTART: Rule(_STOPPING),
        Event.UNLOAD: Rule(_STOPPING),
        Event.HOLD: Rule(_STOPPING, (Effect.REFUSE_WAITING,)),
        Event.KILL: Rule(_STOPPING, (Effect.KILL,)),
        Event.DESTROY: Rule(_STOPPING, (Effect.DESTROY,)),
        # The worker's last words may cross the order to stop.
        Event.HELLO: Rule(_STOPPING),
        Event.LOADED: Rule(_STOPPING),
        Event.LOAD_FAILED: Rule(_STOPPING),
        Event.LOAD_IMPOSSIBLE: Rule(_STOPPING),
        Event.MISBEHAVED: Rule(_STOPPING, (Effect.KILL,)),
        Event.EXIT: Rule(_U),
    },
}


_ORDERS: Final = frozenset(
    (Event.LOAD, Event.UNLOAD, Event.HOLD, Event.RESTART, Event.KILL, Event.DESTROY)
)


class Lifecycle:
    """The state of one model.

    Three decisions depend on more than state and event. When a process has ended, the state that
    an earlier rule named (`then`) goes before the table's, and a model that would become unloaded
    starts again if requests wait for it. An order that comes while a process is on its way out
    also changes where that leads: as it would change that state, had it been reached.
    """

    def __init__(self) -> None:
        self.state = State.UNLOADED
        self._then: State | None = None

    @property
    def alive(self) -> bool:
        """A process of this model may exist."""
        return self.state not in (State.UNLOADED, State.HELD, State.FAILED)

    def handle(self, event: Event, *, requests_wait: bool) -> tuple[Effect, ...]:
        """Take in an event; returns the effects to perform, in order.

        Raises:
            ImpossibleTransitionError: the table has no rule for the event in this state.
        """
        rule = TABLE[self.state].get(event)
        if rule is None:
            raise ImpossibleTransitionError(f"{event!s} while {self.state!s}")
        if event is Event.EXIT:
            return self._handle_exit(rule, requests_wait=requests_wait)
        if event is Event.DEMAND and self._then in (State.HELD, State.FAILED):
            return (Effect.REFUSE_WAITING,)
        if self.state in (State.DRAINING, State.STOPPING) and event in _ORDERS:
            redirected = TABLE[self._then or State.UNLOADED][event]
            self._then = redirected.then or redirected.state
        elif rule.then is not None:
            self._then = rule.then
        self.state = rule.state
        return rule.effects

    def _handle_exit(self, rule: Rule, *, requests_wait: bool) -> tuple[Effect, ...]:
        self.state = self._then or rule.state
        self._then = None
        effects = rule.effects
        if self.state is State.UNLOADED and requests_wait and Effect.REFUSE_WAITING not in effects:
            self.state = State.STARTING
        if self.state is State.STARTING:
            effects += (Effect.SPAWN,)
        return effects


def printed() -> Iterator[str]:
    """The table, a line per rule."""
    for state, rules in TABLE.items():
        for event, rule in rules.items():
            effects = ", ".join(rule.effects) or "-"
            then = f" (then {rule.then})" if rule.then is not None else ""
            leads_to = f"{rule.state}{then}"
            yield f"{state:<9} | {event:<31} | {leads_to:<24} | {effects}"


if __name__ == "__main__":
    print("\n".join(printed()))
