"""Carries the decisions of `Admission` out on the models, and has groups loaded together."""

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
    RefuseSequence,
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
    """The other machines that ranks of models run on."""

    async def check_room(self, places: Sequence[RankPlace], each_bytes: int) -> None:
        """Check that the other hosts of these ranks have so many bytes for each, by their figures.

        Raises:
            NoRoomError: a host has less.
            OSError: a host can't be asked, or has other versions.
        """


class ScheduledModel(Protocol):
    """A model as the scheduler sees it. The scheduler asks it for the facts that decisions depend
    on, and tells it the decisions.
    """

    model: Model

    @property
    def priority(self) -> int: ...

    @property
    def busy(self) -> bool:
        """Whether requests run or wait in the model."""

    @property
    def last_used(self) -> float:
        """The time of the model's last use, on the clock of `gateway.system.clock`."""

    @property
    def reload_s(self) -> float:
        """How many seconds the model's last load took."""

    @property
    def waits_for_memory(self) -> bool: ...

    @property
    def asleep(self) -> bool:
        """Whether the model could be loaded, and no request or order asks for it."""

    @property
    def brings_along(self) -> bool:
        """Whether the model waits or loads for its own sake, so that its companions, the models
        that are loaded together with it, have to be loaded too.
        """

    def load_with_group(self) -> None:
        """Load the model too, since a companion waits for memory."""

    def explain_wait(self, reason: str) -> None:
        """Note why there is no room for the model yet."""

    def admitted(self, floor_bytes: int) -> None: ...

    def set_limit(self, limit_bytes: int) -> None:
        """Note the limit of the model's worker."""

    def send_limit(self) -> None:
        """Tell the model's worker the present limit, unless the worker knows it."""

    def replace(self, reason: str) -> None:
        """Replace the model's worker by another one, which goes on with the requests."""

    def hangs(self, reason: str) -> None:
        """Note that the model's worker hangs, since it doesn't answer a recall."""

    def has_no_room(self, refusal: Refusal) -> None: ...

    def cannot_be_read(self, reason: str, *, watched: bool) -> None:
        """Note that the model's files can't be read now, and may be later. `watched`: their disk is
        being waited for.
        """

    def evict(self, reason: str) -> None: ...

    def refuse_longest(self, refusal: Refusal) -> None:
        """Refuse the longest request in the model's worker, as it can never run."""

    def lost_memory(self, missing_bytes: int) -> None:
        """Note that the model's last worker left so many bytes stranded."""


# A change of a limit is an event only if it is no smaller than both.
_NEWS_BYTES: Final = 64_000_000
_NEWS_SHARE: Final = 0.05


class Execution:
    """Carries decisions out, and emits an event for each; on the event loop."""

    def __init__(
        self, ledger: Ledger, models: Mapping[str, ScheduledModel], events: EventLog
    ) -> None:
        """`models` are the present models by their ids. The caller keeps them up to date."""
        self._ledger = ledger
        self._models = models
        self._events = events
        # The limits in the last events, by models.
        self._announced_limits: dict[str, int] = {}
        self._clock = present_clock()

    def gone(self, model_id: str) -> None:
        """Forget the limit of a model whose process has ended."""
        self._announced_limits.pop(model_id, None)

    def perform(self, decision: Decision, claims: dict[str, Claim], reason: str) -> None:
        """Carry out a decision. `reason` says why a model is evicted, if not for another model."""
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
                self._announce_limit(model_id, limit_bytes, recall=recall)
                scheduled.set_limit(limit_bytes)
            case Evict(for_model_id=other, busy=busy):
                group = None if other is None else ledger.groups.swap_group_of(model_id, other)
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
            case RefuseSequence():
                scheduled.refuse_longest(explain.no_room_for_sequence(ledger, decision))

    def _announce_limit(self, model_id: str, limit_bytes: int, *, recall: bool) -> None:
        """Emit an event if the limit has changed enough. Loans grow with sequences all the time, so
        small changes are no events.
        """
        allocation = self._ledger.allocation(model_id)
        known_bytes = self._announced_limits.get(model_id)
        if allocation is None:
            return
        if known_bytes is None:
            known_bytes = allocation.floor_bytes
        if abs(limit_bytes - known_bytes) < max(_NEWS_BYTES, known_bytes * _NEWS_SHARE):
            return
        self._announced_limits[model_id] = limit_bytes
        self._events.emit(
            "recall" if recall else "lend",
            model_id,
            lent_bytes=limit_bytes - allocation.floor_bytes,
            change_bytes=limit_bytes - known_bytes,
            limit_bytes=limit_bytes,
            free_bytes=self._ledger.free_bytes,
        )


class GroupLoading:
    """Has the models of a group ask for memory together, and learns the floors of all members, on
    the event loop. A member that is held, has failed, or can't be read stays out: the other members
    are loaded without it.
    """

    def __init__(
        self,
        admission: Admission,
        models: Mapping[str, ScheduledModel],
        floor_bytes: Callable[[Model], Awaitable[int]],
        tasks: Tasks,
    ) -> None:
        """`models` are the present models by their ids. The caller keeps them up to date.
        `floor_bytes` reads a model's files, and raises UnreadableFilesError.
        """
        self._admission = admission
        self._models = models
        self._floor_bytes = floor_bytes
        self._tasks = tasks

    def arrange(self, groups: Iterable[Group]) -> None:
        """Replace the groups, or take other settings of their models."""
        ledger = self._admission.ledger
        # Floors of loaded models stay as they are.
        ledger.floors = {
            allocation.model_id: allocation.floor_bytes for allocation in ledger.allocations
        }
        self._admission.arrange(groups)
        members = {name for group in ledger.groups.all for name in group.models}
        if members:
            self._tasks.start(self._learn(members), "floors of groups")

    async def learn(self, model_id: str) -> None:
        """Learn the floors of other models that must be known before this model may ask."""
        await self._learn(self._admission.ledger.groups.counted_with(model_id))

    def bring_along(self) -> None:
        """Have the companions of each model that waits for memory wait for memory too."""
        for claim in list(self._admission.claims):
            if not self._models[claim.model_id].brings_along:
                continue
            for name in self._admission.ledger.groups.companions(claim.model_id):
                scheduled = self._models.get(name)
                if scheduled is None:
                    continue
                if scheduled.asleep:
                    scheduled.load_with_group()
                if scheduled.waits_for_memory:
                    self._admission.expect(name)

    def is_wanted_along(self, model_id: str) -> bool:
        """Whether a companion of the model waits or loads for its own sake."""
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
