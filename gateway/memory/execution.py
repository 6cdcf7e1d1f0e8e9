"""The models as the memory scheduler knows them: decisions of admission are carried out on each,
and groups are loaded together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from gateway.config.model import Group, Model
from gateway.config.model_settings import RankPlace
from gateway.memory import explain
from gateway.memory.admission import Admission
from gateway.memory.estimator import UnreadableFilesError
from gateway.memory.ledger import (
    Admit,
    Claim,
    Decision,
    Evict,
    Ledger,
    LimitChange,
    Refuse,
    Replace,
    Unanswered,
)
from gateway.system.clock import present_clock
from gateway.system.events import EventLog
from gateway.system.notation import format_size
from gateway.system.refusal import Refusal
from gateway.system.tasks import Tasks

logger = logging.getLogger(__name__)


class NoRoomError(OSError):
    """Another host lacks the memory that a rank needs now, and may have it later. The message has
    the numbers.
    """


class OtherHosts(Protocol):
    """The machines beside this one that ranks of models run on."""

    async def check_room(self, places: Sequence[RankPlace], each_bytes: int) -> None:
        """Check that the other hosts of these ranks have so many bytes for each, by their figures.

        Raises:
            NoRoomError: one of them hasn't.
            OSError: one can't be asked, or has other versions.
        """


class ScheduledModel(Protocol):
    """A model: decisions on it are told to it, and it is asked what they depend on."""

    model: Model

    @property
    def priority(self) -> int: ...

    @property
    def busy(self) -> bool:
        """Requests run or wait."""

    @property
    def last_used(self) -> float:
        """On the clock of `gateway.system.clock`."""

    @property
    def reload_s(self) -> float:
        """How long its last load took."""

    @property
    def waits_for_memory(self) -> bool: ...

    @property
    def asleep(self) -> bool:
        """It could be loaded, and no request or order asks for that."""

    @property
    def brings_along(self) -> bool:
        """It waits or loads for its own sake, so the models that it is loaded with do, too."""

    def load_along(self) -> None:
        """A model that it is loaded with waits for memory."""

    def note_wait(self, reason: str) -> None:
        """Why there is no room for it yet."""

    def admitted(self, floor_bytes: int) -> None: ...

    def take_limit(self, limit_bytes: int) -> None:
        """Its worker may hold so much from now on."""

    def tell_worker(self) -> None:
        """Tell its worker the present limit, unless the worker knows it."""

    def replace(self, reason: str) -> None:
        """Its worker is to be replaced by another one, which goes on with its requests."""

    def hangs(self, reason: str) -> None:
        """Its worker doesn't answer."""

    def has_no_room(self, refusal: Refusal) -> None: ...

    def cannot_be_read(self, reason: str, *, watched: bool) -> None:
        """Its files can't be read now, and may be later. `watched`: their disk is awaited."""

    def evict(self, reason: str) -> None: ...

    def lost_memory(self, missing_bytes: int) -> None:
        """Its last worker left so many bytes stranded."""


# A limit that moves by less than either is no event.
_NEWS_BYTES: Final = 64_000_000
_NEWS_SHARE: Final = 0.05


class Execution:
    """Carries decisions out, and emits an event for each; on the event loop."""

    def __init__(
        self, ledger: Ledger, models: Mapping[str, ScheduledModel], events: EventLog
    ) -> None:
        """`models` are those that there are at any time, by their ids."""
        self._ledger = ledger
        self._models = models
        self._events = events
        # The limits that the last events told of.
        self._told_limits: dict[str, int] = {}
        self._clock = present_clock()

    def gone(self, model_id: str) -> None:
        """The model's process has ended, and its limit with it."""
        self._told_limits.pop(model_id, None)

    def perform(self, decision: Decision, claims: dict[str, Claim], reason: str) -> None:
        """`reason` is why a model has to go, if not for another model."""
        model_id, ledger = decision.model_id, self._ledger
        scheduled = self._models[model_id]
        match decision:
            case Admit(floor_bytes=floor_bytes):
                self._events.emit(
                    "admit",
                    model_id,
                    floor_bytes=floor_bytes,
                    free_bytes=ledger.free_bytes,
                    waited_s=self._clock.now() - claims[model_id].since,
                    together=sorted(ledger.groups.companions(model_id)) or None,
                )
                scheduled.admitted(floor_bytes)
            case LimitChange(limit_bytes=limit_bytes, recall=recall):
                self._tell_of_limit(model_id, limit_bytes, recall=recall)
                scheduled.take_limit(limit_bytes)
            case Evict(for_model_id=other, busy=busy):
                group = None if other is None else ledger.groups.between(model_id, other)
                self._events.emit(
                    "evict",
                    model_id,
                    for_model=other,
                    needed_bytes=claims[other].needed_bytes if other in claims else None,
                    free_bytes=ledger.free_bytes,
                    busy=busy,
                    group=None if group is None else group.name,
                )
                if group is not None:
                    reason = f"evicted: {explain.displaced(model_id, str(other), group)}"
                elif other in claims:
                    needed = format_size(claims[other].needed_bytes)
                    reason = f"evicted: {other!r} needs {needed}"
                elif other is not None:
                    reason = f"evicted: the requests of {other!r} need its memory"
                scheduled.evict(reason)
            case Replace(footprint_bytes=footprint_bytes, limit_bytes=limit_bytes):
                self._events.emit(
                    "overgrown",
                    model_id,
                    footprint_bytes=footprint_bytes,
                    limit_bytes=limit_bytes,
                )
                scheduled.replace(
                    f"it holds {format_size(footprint_bytes)}, may hold "
                    f"{format_size(limit_bytes)}, and the budget has no room for the difference"
                )
            case Unanswered(seconds=seconds):
                scheduled.hangs(
                    f"it has not answered an order to give memory back for {seconds:.0f} s"
                )
            case Refuse():
                scheduled.has_no_room(explain.no_room(ledger, decision))

    def _tell_of_limit(self, model_id: str, limit_bytes: int, *, recall: bool) -> None:
        """Sequences grow all the time, and loans with them: small steps are no events."""
        allocation = self._ledger.allocation(model_id)
        known_bytes = self._told_limits.get(model_id)
        if allocation is None:
            return
        if known_bytes is None:
            known_bytes = allocation.floor_bytes
        if abs(limit_bytes - known_bytes) < max(_NEWS_BYTES, known_bytes * _NEWS_SHARE):
            return
        self._told_limits[model_id] = limit_bytes
        self._events.emit(
            "recall" if recall else "lend",
            model_id,
            lent_bytes=limit_bytes - allocation.floor_bytes,
            change_bytes=limit_bytes - known_bytes,
            limit_bytes=limit_bytes,
            free_bytes=self._ledger.free_bytes,
        )


class GroupLoading:
    """Has the models of a group ask for memory together, and learns the floors of all members; on
    the event loop. A member that is held, has failed, or can't be read stays out, and the others
    are loaded without it.
    """

    def __init__(
        self,
        admission: Admission,
        models: Mapping[str, ScheduledModel],
        floor_bytes: Callable[[Model], Awaitable[int]],
        tasks: Tasks,
    ) -> None:
        """`models` are those that there are at any time, by their ids. `floor_bytes` reads a
        model's files, and raises UnreadableFilesError.
        """
        self._admission = admission
        self._models = models
        self._floor_bytes = floor_bytes
        self._tasks = tasks

    def arrange(self, groups: Iterable[Group]) -> None:
        """Take other groups, or other settings of their models."""
        ledger = self._admission.ledger
        # Floors of loaded models stay as they are.
        ledger.floors = {each.model_id: each.floor_bytes for each in ledger.allocations}
        self._admission.arrange(groups)
        members = {name for each in ledger.groups.all for name in each.models}
        if members:
            self._tasks.start(self._learn(members), "floors of groups")

    async def learn(self, model_id: str) -> None:
        """Learn the floors of other models that have to be known before this one may ask."""
        await self._learn(self._admission.ledger.groups.concerned(model_id))

    def bring_along(self) -> None:
        """Have the models that are loaded with one that waits for memory wait, too."""
        for claim in list(self._admission.claims):
            if not self._models[claim.model_id].brings_along:
                continue
            for name in self._admission.ledger.groups.companions(claim.model_id):
                scheduled = self._models.get(name)
                if scheduled is None:
                    continue
                if scheduled.asleep:
                    scheduled.load_along()
                if scheduled.waits_for_memory:
                    self._admission.expect(name)

    def is_wanted_along(self, model_id: str) -> bool:
        """Whether a model that this one is loaded with waits or loads for its own sake."""
        names = self._admission.ledger.groups.companions(model_id)
        return any(name in self._models and self._models[name].brings_along for name in names)

    async def _learn(self, names: Iterable[str]) -> None:
        unknown = [
            self._models[name]
            for name in names
            if name in self._models and name not in self._admission.ledger.floors
        ]
        await asyncio.gather(*map(self._learn_one, unknown))

    async def _learn_one(self, scheduled: ScheduledModel) -> None:
        model = scheduled.model
        try:
            floor_bytes = await self._floor_bytes(model)
        except UnreadableFilesError as error:
            logger.warning("No room is kept for %s: %s", model.id, error)
            return
        if self._models.get(model.id) is scheduled and scheduled.model is model:
            self._admission.know(model.id, floor_bytes)
