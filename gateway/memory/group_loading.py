"""Groups at work: who is loaded along with others, and for whom room is to be kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from gateway.config.model import Group, Model
from gateway.memory.admission import Admission
from gateway.memory.estimator import UnreadableFilesError
from gateway.memory.execution import ScheduledModel
from gateway.system.tasks import Tasks

logger = logging.getLogger(__name__)


class GroupLoading:
    """On the event loop. A member that is held, has failed, or can't be read stays out, and the
    others are loaded without it: one compartment's trouble is not theirs.
    """

    def __init__(
        self, admission: Admission, floor_bytes: Callable[[Model], Awaitable[int]], tasks: Tasks
    ) -> None:
        """`floor_bytes` reads a model's files, and raises UnreadableFilesError."""
        self._admission = admission
        self._floor_bytes = floor_bytes
        self._tasks = tasks
        self._models: dict[str, ScheduledModel] = {}

    def register(self, models: Iterable[ScheduledModel]) -> None:
        self._models = {each.model.id: each for each in models}

    def arrange(self, groups: Iterable[Group]) -> None:
        """Other groups, or other settings of their models."""
        ledger = self._admission.ledger
        # What those that are loaded have asked for stays what it is.
        ledger.floors = {each.model_id: each.floor_bytes for each in ledger.allocations}
        self._admission.arrange(groups)
        members = {name for each in ledger.groups.all for name in each.models}
        if members:
            self._tasks.start(self._learn(members), "floors of groups")

    async def learn(self, model_id: str) -> None:
        """Read what has to be known of others before this one may ask."""
        await self._learn(self._admission.ledger.groups.concerned(model_id))

    def bring_along(self) -> None:
        """Have those wait for memory that are loaded with one that waits."""
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
        """Whether a model that this one is loaded with is wanted for its own sake, and loading."""
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
