"""The models by name: configured models, and removed models whose workers haven't ended yet."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gateway.access.caller import Caller
from gateway.config.model import Model
from gateway.memory.scheduler import MemoryScheduler
from gateway.models.model_supervisor import ModelSupervisor
from gateway.requests import refusals
from gateway.system.notation import nearest_model, suggestion
from gateway.system.refusal import Refusal
from gateway.system.tasks import Tasks

# The tag that Ollama's lists give to a model without a tag.
LATEST: Final = ":latest"
# Upstreams may have hundreds.
_MOST_NAMED: Final = 50


class Roster:
    """The supervisors of all models. `configured` has the configured ones by id,
    and `has_commands` says whether any of these is a command. All of them are
    registered with the memory scheduler.
    """

    def __init__(
        self,
        models: Iterable[Model],
        new: Callable[[Model], ModelSupervisor],
        scheduler: MemoryScheduler,
        elsewhere: Callable[[Caller], Mapping[str, str]] = lambda _: {},
    ) -> None:
        """`elsewhere` maps the names of upstreams' models that a caller may use to their ids."""
        self.configured = {model.id: new(model) for model in models}
        # Why models that once had a name aren't served, by their names.
        self.broken: Mapping[str, str] = {}
        self._new = new
        self._elsewhere = elsewhere
        self._scheduler = scheduler
        # Removed models whose workers haven't ended yet.
        self._leaving: dict[str, ModelSupervisor] = {}
        self._tasks = Tasks("roster")
        self._register()

    @property
    def everyone(self) -> list[ModelSupervisor]:
        """All supervisors, also those of removed models."""
        return [*self.configured.values(), *self._leaving.values()]

    def has(self, name: str) -> bool:
        """Whether there is a model with this id or alias."""
        return name in self._by_name or name.removesuffix(LATEST) in self._by_name

    def is_command(self, name: str) -> bool:
        """Whether the model with this id or alias, if there is one, is a command."""
        supervisor = self._by_name.get(name) or self._by_name.get(name.removesuffix(LATEST))
        return supervisor is not None and supervisor.model.is_command

    def find(self, name: str, caller: Caller) -> ModelSupervisor:
        """The supervisor of the model with this id or alias. `name` may end with the tag of
        Ollama's lists.

        Raises:
            Refusal: the caller may use no model with this name.
        """
        supervisor = self._by_name.get(name) or self._by_name.get(name.removesuffix(LATEST))
        if supervisor is None or not _may_use(caller, supervisor):
            raise self._unknown(name, caller)
        return supervisor

    def _unknown(self, name: str, caller: Caller) -> Refusal:
        visible = self.visible(caller)
        elsewhere = self._elsewhere(caller)
        if (
            model_id := elsewhere.get(name) or elsewhere.get(name.removesuffix(LATEST))
        ) is not None:
            return refusals.elsewhere(model_id)
        problem = self.broken.get(name) or self.broken.get(name.removesuffix(LATEST))
        if problem is not None and caller.models is None:
            return Refusal("model_not_found", f"{name!r} isn't served: {problem}.", param="model")
        ids = sorted(model.model.id for model in visible) + sorted(set(elsewhere.values()))
        if not ids and caller.models is None:
            return Refusal(
                "model_not_found",
                f"There is no model {name!r}, and no other: `bulkhead pull` gets one.",
                param="model",
            )
        known = ", ".join(ids[:_MOST_NAMED]) or "none"
        if len(ids) > _MOST_NAMED:
            known += f" and {len(ids) - _MOST_NAMED:,} others"
        names = [
            name for model in visible for name in (model.model.id, *model.model.settings.aliases)
        ]
        names += elsewhere
        meant = suggestion(nearest_model(name, names))
        return Refusal(
            "model_not_found",
            f"There is no model {name!r}; there are: {known}.{meant}",
            param="model",
        )

    def visible(self, caller: Caller) -> list[ModelSupervisor]:
        """The configured models that the caller may use."""
        return [model for model in self.configured.values() if _may_use(caller, model)]

    def configure(self, models: Iterable[Model], *, everywhere: bool) -> None:
        """Take other models. Configure those that have changed, or all if `everywhere`: settings
        for all models have changed. Remove configured models that aren't among `models`.
        """
        present, self.configured = self.configured, {}
        changed = []
        for model in models:
            known = present.pop(model.id, None) or self._leaving.pop(model.id, None)
            if known is None:
                known = self._new(model)
                changed.append(functools.partial(known.configure, model))
            elif known.model != model or known.removed or everywhere:
                changed.append(functools.partial(known.configure, model))
            self.configured[model.id] = known
        self._leaving |= present
        self._register()
        for partial in changed:
            partial()
        self._by_name = self._names()
        for supervisor in present.values():
            supervisor.remove()
            self._tasks.start(self._see_off(supervisor), f"end of {supervisor.model.id}")

    async def release(self) -> list[tuple[int, bytes]]:
        """Give all models up to another gateway. Return the results of `release` for each
        model with a worker.
        """
        await self._tasks.cancel_all()
        left = [supervisor.release() for supervisor in self.everyone]
        return [released for released in left if released is not None]

    async def close(self) -> None:
        """To be called when no worker is left."""
        await self._tasks.cancel_all()
        for supervisor in self.everyone:
            await supervisor.close()

    async def _see_off(self, supervisor: ModelSupervisor) -> None:
        model_id = supervisor.model.id
        await supervisor.condition.until(lambda: supervisor.over or not supervisor.removed)
        if self._leaving.get(model_id) is supervisor and supervisor.removed:
            del self._leaving[model_id]
            self._register()
            await supervisor.close()

    def _register(self) -> None:
        self._scheduler.register(supervisor.model_memory for supervisor in self.everyone)
        self._by_name = self._names()

    def _names(self) -> dict[str, ModelSupervisor]:
        self.has_commands = any(model.model.is_command for model in self.configured.values())
        names = dict(self.configured)
        for supervisor in self.configured.values():
            for alias in supervisor.model.settings.aliases:
                names[alias] = supervisor
        return names


def _may_use(caller: Caller, supervisor: ModelSupervisor) -> bool:
    model = supervisor.model
    return caller.may_use(model.id, model.settings.aliases)
