"""The life cycle of a model as a table: for a state and an event, the next state and the effects.

No I/O and no clock here. `gateway.models.condition` passes events to the life cycle, and has the
effects performed in their order. The events come from `load`, `readings` and `recovery`, from
orders, and from `model_memory`, which ends an idle model by its ttl. `python -m
gateway.models.lifecycle` prints the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from gateway.workers.restart_policy import RestartAction


class State(StrEnum):
    UNLOADED = "unloaded"
    HELD = "held"
    WAITING = "waiting"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"


class ModelEvent(StrEnum):
    DEMAND = "a request arrived"
    LOAD = "operator: load"
    UNLOAD = "operator: unload"
    HOLD = "operator: unload and hold"
    RESTART = "operator: restart"
    KILL = "operator: kill"
    DESTROY = "operator: kill by force"
    PRELOAD = "configuration: preload"
    MISSING = "configuration: files missing"
    ALONG = "one of its group is loaded"
    CHANGED = "configuration: changed"
    REMOVED = "configuration: removed"
    RETURNED = "configuration: there again"
    SHUTDOWN = "the gateway ends"
    UNWANTED = "nobody waits for it any more"
    ADMITTED = "there is memory for it"
    NO_ROOM = "it can't fit into memory"
    UNREADABLE = "its files can't be read now"
    NOT_STARTED = "no process can be started"
    START_FAILED = "no process could be started now"
    HELLO = "the worker said hello"
    LOADED = "the model is loaded"
    LOAD_FAILED = "the load failed"
    LOAD_IMPOSSIBLE = "the load failed and will again"
    MISBEHAVED = "the worker broke the protocol"
    FOREIGN = "the worker is of another version"
    HUNG = "the worker hangs"
    DRAINED = "nothing runs any more"
    DEADLINE = "the state's deadline passed"
    TOO_SLOW = "the load was too slow again"
    EVICT = "another model needs its memory"
    EXPIRED = "its time to live is over"
    OVERGROWN = "the worker holds too much"
    INVALID = "the worker's output is invalid"
    EXIT = "the process ended"
    RETRY = "the time to try again has come"


class Effect(StrEnum):
    ASK = "ask for memory"
    WITHDRAW = "give up its turn"
    SPAWN = "start a worker"
    SEND_LOAD = "send load"
    DISPATCH = "send waiting requests"
    DRAIN = "let it finish what runs"
    STOP = "stop it, politely first"
    KILL = "stop it by the short sequence"
    DESTROY = "SIGKILL"
    DUMP_AND_DESTROY = "dump its stacks, then SIGKILL"
    PARK_RUNNING = "park the requests that run"
    REFUSE_WAITING = "refuse the requests that wait"


class Aim(StrEnum):
    """The state that the end of a process leads to."""

    REST = "unloaded, or waiting if requests wait"
    REVIVE = "unloaded, or waiting if requests wait or the model is to be kept loaded"
    HOLD = "held"
    START = "waiting"
    FAIL = "failed"
    JUDGE = "as the restart policy says"


class Circumstances(NamedTuple):
    """The facts beside state and event that a decision depends on. `load_wanted`: the model is to
    be loaded even without requests. `after_death` is the decision of the restart policy.
    """

    requests_wait: bool = False
    load_wanted: bool = False
    after_death: RestartAction = RestartAction.RESTART


class Rule(NamedTuple):
    """The next state, and the effects of an event. `aim` is where the end of the process shall
    lead; None: the rule doesn't decide on that.
    """

    state: State
    effects: tuple[Effect, ...] = ()
    aim: Aim | None = None


class ImpossibleTransitionError(Exception):
    """An event that can't happen in this state: a defect of the caller."""


_U, _H, _W = State.UNLOADED, State.HELD, State.WAITING
_F, _B = State.FAILED, State.BACKOFF
_STARTING, _LOADING, _READY = State.STARTING, State.LOADING, State.READY
_DRAINING, _STOPPING = State.DRAINING, State.STOPPING
_PARK = Effect.PARK_RUNNING

# After these events only an order or the configuration loads the model, and no request does.
HOLDING: Final = (ModelEvent.HOLD, ModelEvent.REMOVED, ModelEvent.SHUTDOWN)

_ASLEEP: Final = {
    ModelEvent.LOAD: Rule(_W, (Effect.ASK,)),
    ModelEvent.RESTART: Rule(_W, (Effect.ASK,)),
    **dict.fromkeys(HOLDING, Rule(_H, (Effect.REFUSE_WAITING,))),
}

_COMING_UP: Final = {
    ModelEvent.UNLOAD: Rule(_STOPPING, (Effect.STOP,), Aim.REST),
    **dict.fromkeys(HOLDING, Rule(_STOPPING, (Effect.REFUSE_WAITING, Effect.STOP), Aim.HOLD)),
    ModelEvent.RESTART: Rule(_STOPPING, (Effect.STOP,), Aim.START),
    ModelEvent.CHANGED: Rule(_STOPPING, (Effect.STOP,), Aim.START),
    ModelEvent.KILL: Rule(_STOPPING, (Effect.KILL,), Aim.REVIVE),
    ModelEvent.DESTROY: Rule(_STOPPING, (Effect.DESTROY,), Aim.REVIVE),
    ModelEvent.MISBEHAVED: Rule(_STOPPING, (Effect.KILL,), Aim.JUDGE),
    ModelEvent.DEADLINE: Rule(_STOPPING, (Effect.STOP,), Aim.JUDGE),
    ModelEvent.OVERGROWN: Rule(_STOPPING, (Effect.STOP,), Aim.JUDGE),
    ModelEvent.TOO_SLOW: Rule(_STOPPING, (Effect.REFUSE_WAITING, Effect.STOP), Aim.FAIL),
    ModelEvent.EXIT: Rule(_U, aim=Aim.JUDGE),
}

TABLE: Final[dict[State, dict[ModelEvent, Rule]]] = {
    State.UNLOADED: {
        **_ASLEEP,
        ModelEvent.PRELOAD: Rule(_W, (Effect.ASK,)),
        ModelEvent.MISSING: Rule(_W, (Effect.ASK,)),
        ModelEvent.ALONG: Rule(_W, (Effect.ASK,)),
        # The reason why the model could not be loaded may be gone.
        ModelEvent.CHANGED: Rule(_U, aim=Aim.REVIVE),
        ModelEvent.DEMAND: Rule(_W, (Effect.ASK,)),
        ModelEvent.UNLOAD: Rule(_U),
        ModelEvent.KILL: Rule(_U),
        ModelEvent.DESTROY: Rule(_U),
    },
    State.HELD: {
        **_ASLEEP,
        ModelEvent.CHANGED: Rule(_H),
        ModelEvent.RETURNED: Rule(_W, (Effect.ASK,)),
        ModelEvent.DEMAND: Rule(_H, (Effect.REFUSE_WAITING,)),
        ModelEvent.UNLOAD: Rule(_H),
        ModelEvent.KILL: Rule(_H),
        ModelEvent.DESTROY: Rule(_H),
    },
    State.WAITING: {
        ModelEvent.LOAD: Rule(_W),
        ModelEvent.RESTART: Rule(_W),
        ModelEvent.UNLOAD: Rule(_W, aim=Aim.REST),
        ModelEvent.KILL: Rule(_W, aim=Aim.REVIVE),
        ModelEvent.DESTROY: Rule(_W, aim=Aim.REVIVE),
        **dict.fromkeys(HOLDING, Rule(_H, (Effect.WITHDRAW, Effect.REFUSE_WAITING))),
        ModelEvent.CHANGED: Rule(_W, (Effect.WITHDRAW, Effect.ASK)),
        ModelEvent.UNWANTED: Rule(_U, (Effect.WITHDRAW,)),
        ModelEvent.ADMITTED: Rule(_STARTING, (Effect.SPAWN,)),
        ModelEvent.NO_ROOM: Rule(_U, (Effect.REFUSE_WAITING,)),
        ModelEvent.UNREADABLE: Rule(_U, (Effect.REFUSE_WAITING,)),
    },
    State.BACKOFF: {
        **_ASLEEP,
        ModelEvent.CHANGED: Rule(_U, aim=Aim.REVIVE),
        ModelEvent.DEMAND: Rule(_B),
        ModelEvent.UNLOAD: Rule(_B, aim=Aim.REST),
        ModelEvent.KILL: Rule(_B, aim=Aim.REVIVE),
        ModelEvent.DESTROY: Rule(_B, aim=Aim.REVIVE),
        ModelEvent.RETRY: Rule(_U, aim=Aim.REVIVE),
    },
    State.FAILED: {
        **_ASLEEP,
        # The change may have mended the fault.
        ModelEvent.CHANGED: Rule(_U, aim=Aim.REVIVE),
        ModelEvent.DEMAND: Rule(_F, (Effect.REFUSE_WAITING,)),
        ModelEvent.UNLOAD: Rule(_U),
        ModelEvent.KILL: Rule(_F),
        ModelEvent.DESTROY: Rule(_F),
        ModelEvent.RETRY: Rule(_U, aim=Aim.REVIVE),
    },
    State.STARTING: {
        **_COMING_UP,
        ModelEvent.LOAD: Rule(_STARTING),
        ModelEvent.HELLO: Rule(_LOADING, (Effect.SEND_LOAD,)),
        ModelEvent.FOREIGN: Rule(_STOPPING, (Effect.REFUSE_WAITING, Effect.STOP), Aim.FAIL),
        ModelEvent.NOT_STARTED: Rule(_F, (Effect.REFUSE_WAITING,)),
        ModelEvent.START_FAILED: Rule(_U, aim=Aim.JUDGE),
    },
    State.LOADING: {
        **_COMING_UP,
        ModelEvent.LOAD: Rule(_LOADING),
        ModelEvent.LOADED: Rule(_READY, (Effect.DISPATCH,)),
        ModelEvent.HUNG: Rule(_STOPPING, (Effect.DUMP_AND_DESTROY,), Aim.JUDGE),
        ModelEvent.LOAD_FAILED: Rule(_STOPPING, (Effect.STOP,), Aim.JUDGE),
        ModelEvent.LOAD_IMPOSSIBLE: Rule(_STOPPING, (Effect.REFUSE_WAITING, Effect.STOP), Aim.FAIL),
    },
    State.READY: {
        ModelEvent.LOAD: Rule(_READY),
        ModelEvent.UNLOAD: Rule(_DRAINING, (Effect.DRAIN,), Aim.REST),
        ModelEvent.HOLD: Rule(_DRAINING, (Effect.REFUSE_WAITING, Effect.DRAIN), Aim.HOLD),
        ModelEvent.REMOVED: Rule(_DRAINING, (Effect.REFUSE_WAITING, Effect.DRAIN), Aim.HOLD),
        ModelEvent.SHUTDOWN: Rule(_STOPPING, (_PARK, Effect.STOP), Aim.HOLD),
        ModelEvent.RESTART: Rule(_DRAINING, (Effect.DRAIN,), Aim.START),
        ModelEvent.CHANGED: Rule(_DRAINING, (Effect.DRAIN,), Aim.START),
        ModelEvent.KILL: Rule(_STOPPING, (_PARK, Effect.KILL), Aim.REVIVE),
        ModelEvent.DESTROY: Rule(_STOPPING, (_PARK, Effect.DESTROY), Aim.REVIVE),
        ModelEvent.MISBEHAVED: Rule(_STOPPING, (_PARK, Effect.KILL), Aim.JUDGE),
        ModelEvent.HUNG: Rule(_STOPPING, (_PARK, Effect.DUMP_AND_DESTROY), Aim.JUDGE),
        ModelEvent.EVICT: Rule(_STOPPING, (_PARK, Effect.STOP), Aim.REST),
        ModelEvent.EXPIRED: Rule(_STOPPING, (_PARK, Effect.STOP), Aim.REST),
        ModelEvent.OVERGROWN: Rule(_STOPPING, (_PARK, Effect.STOP), Aim.REVIVE),
        ModelEvent.INVALID: Rule(_STOPPING, (_PARK, Effect.KILL), Aim.REVIVE),
        ModelEvent.EXIT: Rule(_U, (_PARK,), Aim.JUDGE),
    },
    State.DRAINING: {
        ModelEvent.DEMAND: Rule(_DRAINING),
        ModelEvent.LOAD: Rule(_DRAINING),
        ModelEvent.RESTART: Rule(_DRAINING),
        ModelEvent.UNLOAD: Rule(_DRAINING),
        ModelEvent.HOLD: Rule(_DRAINING, (Effect.REFUSE_WAITING,)),
        ModelEvent.REMOVED: Rule(_DRAINING, (Effect.REFUSE_WAITING,)),
        ModelEvent.SHUTDOWN: Rule(_STOPPING, (_PARK, Effect.STOP)),
        ModelEvent.CHANGED: Rule(_DRAINING),
        ModelEvent.RETURNED: Rule(_DRAINING),
        ModelEvent.KILL: Rule(_STOPPING, (_PARK, Effect.KILL)),
        ModelEvent.DESTROY: Rule(_STOPPING, (_PARK, Effect.DESTROY)),
        ModelEvent.MISBEHAVED: Rule(_STOPPING, (_PARK, Effect.KILL)),
        ModelEvent.HUNG: Rule(_STOPPING, (_PARK, Effect.DUMP_AND_DESTROY)),
        ModelEvent.DRAINED: Rule(_STOPPING, (Effect.STOP,)),
        ModelEvent.DEADLINE: Rule(_STOPPING, (_PARK, Effect.STOP)),
        ModelEvent.EXIT: Rule(_U, (_PARK,)),
    },
    State.STOPPING: {
        ModelEvent.DEMAND: Rule(_STOPPING),
        ModelEvent.LOAD: Rule(_STOPPING),
        ModelEvent.RESTART: Rule(_STOPPING),
        ModelEvent.UNLOAD: Rule(_STOPPING),
        **dict.fromkeys(HOLDING, Rule(_STOPPING, (Effect.REFUSE_WAITING,))),
        ModelEvent.CHANGED: Rule(_STOPPING),
        ModelEvent.RETURNED: Rule(_STOPPING),
        ModelEvent.KILL: Rule(_STOPPING, (Effect.KILL,)),
        ModelEvent.DESTROY: Rule(_STOPPING, (Effect.DESTROY,)),
        # The worker's last messages may cross the order to stop.
        ModelEvent.HELLO: Rule(_STOPPING),
        ModelEvent.LOADED: Rule(_STOPPING),
        ModelEvent.LOAD_FAILED: Rule(_STOPPING),
        ModelEvent.LOAD_IMPOSSIBLE: Rule(_STOPPING),
        ModelEvent.MISBEHAVED: Rule(_STOPPING, (Effect.KILL,)),
        ModelEvent.FOREIGN: Rule(_STOPPING),
        ModelEvent.EXIT: Rule(_U),
    },
}

# The new aim of a process that is draining or stopping, by the event and by the aim until then.
_REDIRECTED: Final[dict[ModelEvent, dict[Aim, Aim]]] = {
    ModelEvent.LOAD: dict.fromkeys(Aim, Aim.START),
    ModelEvent.RESTART: dict.fromkeys(Aim, Aim.START),
    ModelEvent.RETURNED: dict.fromkeys(Aim, Aim.START),
    ModelEvent.UNLOAD: dict.fromkeys(Aim, Aim.REST) | {Aim.HOLD: Aim.HOLD},
    **dict.fromkeys(HOLDING, dict.fromkeys(Aim, Aim.HOLD)),
    # The aims of orders stay. A change may have mended a fault, so the model may be loaded again.
    ModelEvent.CHANGED: {aim: aim for aim in Aim}
    | dict.fromkeys((Aim.JUDGE, Aim.FAIL), Aim.REVIVE),
    ModelEvent.KILL: dict.fromkeys(Aim, Aim.REVIVE) | {Aim.HOLD: Aim.HOLD, Aim.FAIL: Aim.FAIL},
}
_REDIRECTED[ModelEvent.DESTROY] = _REDIRECTED[ModelEvent.KILL]

_AFTER_DEATH: Final = {
    RestartAction.BACK_OFF: (State.BACKOFF, ()),
    RestartAction.GIVE_UP: (State.FAILED, (Effect.REFUSE_WAITING,)),
}


class Lifecycle:
    """The state of one model.

    Three decisions depend on more than state and event:

    1. The end of a process leads to the aim of the rule that ordered the end. If no rule ordered
       it, the aim of the rule for `ModelEvent.EXIT` counts.
    2. An order or a change of the configuration changes the aim while the process is draining or
       stopping.
    3. An unload or a kill ends a backoff or a wait for memory, unless requests wait. A kill doesn't
       end them either if the model is to be loaded even without requests.
    """

    def __init__(self) -> None:
        self.state = State.UNLOADED
        self._aim: Aim | None = None

    @property
    def on_its_way(self) -> bool:
        """Whether the model is loaded, or will be loaded without another request. A request that
        arrives now is no event.
        """
        return self.state in (_W, _STARTING, _LOADING, _READY)

    @property
    def alive(self) -> bool:
        """Whether a process of this model may exist."""
        return self.state in (_STARTING, _LOADING, _READY, _DRAINING, _STOPPING)

    @property
    def holds(self) -> bool:
        """Whether the model is held, or will be held as soon as its process has ended."""
        return self.state is State.HELD or self._aim is Aim.HOLD

    @property
    def fails(self) -> bool:
        """Whether the model will be failed as soon as its process has ended."""
        return self._aim is Aim.FAIL

    @property
    def judged(self) -> bool:
        """Whether the restart policy would judge an end of the process now."""
        return self.alive and self._aim in (None, Aim.JUDGE)

    def handle(self, event: ModelEvent, circumstances: Circumstances) -> tuple[Effect, ...]:
        """Take in an event. Return the effects to perform, in order.

        Raises:
            ImpossibleTransitionError: the table has no rule for the event in this state.
        """
        rule = TABLE[self.state].get(event)
        if rule is None:
            raise ImpossibleTransitionError(f"{event!s} while {self.state!s}")
        if event is ModelEvent.EXIT or (rule.state is State.UNLOADED and rule.aim is not None):
            return rule.effects + self._resolve(self._aim or rule.aim or Aim.REST, circumstances)
        if event is ModelEvent.DEMAND and self._aim in (Aim.HOLD, Aim.FAIL):
            return (Effect.REFUSE_WAITING,)
        if self.state in (State.BACKOFF, State.WAITING) and rule.aim is not None:
            if _wanted(rule.aim, circumstances):
                return ()
            waited = self.state is State.WAITING
            self.state = State.UNLOADED
            return (Effect.WITHDRAW,) if waited else ()
        effects = rule.effects
        if self.state in (_DRAINING, _STOPPING) and event in _REDIRECTED:
            self._aim = _REDIRECTED[event][self._aim or Aim.REST]
        elif rule.aim is not None:
            self._aim = rule.aim
        if self._aim is Aim.HOLD and Effect.PARK_RUNNING in effects:
            # No worker will resume the parked requests.
            effects = (Effect.PARK_RUNNING, Effect.REFUSE_WAITING, *effects[1:])
        self.state = rule.state
        if self.state in (State.UNLOADED, State.HELD, State.FAILED, State.BACKOFF):
            self._aim = None
        return effects

    def _resolve(self, aim: Aim, circumstances: Circumstances) -> tuple[Effect, ...]:
        """Enter the state that this aim leads to. Return the effects to perform."""
        self._aim = None
        if aim is Aim.JUDGE and circumstances.after_death in _AFTER_DEATH:
            self.state, effects = _AFTER_DEATH[circumstances.after_death]
            return effects
        if aim in (Aim.HOLD, Aim.FAIL):
            self.state = State.HELD if aim is Aim.HOLD else State.FAILED
            return (Effect.REFUSE_WAITING,)
        if aim is Aim.START or _wanted(aim, circumstances):
            self.state = State.WAITING
            return (Effect.ASK,)
        self.state = State.UNLOADED
        return ()


def _wanted(aim: Aim, circumstances: Circumstances) -> bool:
    return circumstances.requests_wait or (
        circumstances.load_wanted and aim in (Aim.REVIVE, Aim.JUDGE)
    )


def printed() -> Iterator[str]:
    """The table, a line per rule."""
    for state, rules in TABLE.items():
        for event, rule in rules.items():
            effects = ", ".join(rule.effects) or "-"
            leads_to = rule.state if rule.aim is None else f"{rule.state}, then {rule.aim}"
            yield f"{state:<9} | {event:<32} | {effects:<60} | {leads_to}"


if __name__ == "__main__":
    print("\n".join(printed()))
