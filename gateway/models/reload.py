"""Reads the configuration again while requests are served."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from gateway.config.layers import ConfigError, Mistake, ValueSource
from gateway.config.model import models_of
from gateway.config.read import Configuration, Located, raise_absent, raise_misfits
from gateway.config.settings import Settings
from gateway.config.tables import HOSTS, Reloaded, changes
from gateway.memory.fitting import budget_bytes
from gateway.models.fleet import Fleet
from gateway.models.lifecycle import State
from gateway.system.lane import Lane
from gateway.system.notation import format_size
from gateway.system.refusal import Refusal
from gateway.system.systemd import Notifier
from gateway.system.tasks import Tasks
from gateway.system.tls import CertificateError, Certificates

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Longer than the deadlines within a reading of the configuration.
_READ_S: Final = 30.0
_BUDGET_S: Final = 60.0


class Reloader:
    """Reloads the configuration, one reload at a time. A configuration with mistakes changes
    nothing. `present` is the configuration in force.
    """

    def __init__(
        self,
        read: Callable[[], Configuration],
        present: Configuration,
        fleet: Fleet,
        notifier: Notifier,
        certificates: Certificates | None,
        with_found: Callable[[Configuration], Configuration],
    ) -> None:
        """`read` reads the configuration, and finds the folders of its models. `with_found` adds
        the models on the disks that have no table. Both block.
        """
        self._certificates = certificates
        self._with_found = with_found
        self._read = read
        self.present = present
        self._fleet = fleet
        fleet.roster.broken = present.broken
        self._notifier = notifier
        # The least contexts of models, in tokens, that orders have asked for.
        self._least_contexts: dict[str, int] = {}
        self._lock = asyncio.Lock()
        self._tasks = Tasks("reload")
        self._lane = Lane("reload")

    async def reload(self) -> Reloaded:
        """Apply what has changed in the file since it was read last.

        Raises:
            ConfigError: with every mistake found.
            Refusal: the gateway is shutting down, or is being replaced by another one.
        """
        async with self._lock:
            self._fleet.check_serves()
            self._fleet.check_decides()
            self._notifier.reloading()
            try:
                reloaded = await self._apply()
            except ConfigError as error:
                self._fleet.events.emit(
                    "reload", None, mistakes=[str(mistake) for mistake in error.mistakes]
                )
                raise
            finally:
                self._notifier.ready(self._fleet.caution or "Serves")
        self._tell(reloaded)
        return reloaded

    async def rediscover(self) -> None:
        """Look again which models are on the disks. The configuration file isn't read again.

        Raises:
            OSError: the disks don't answer.
            Refusal: the gateway is being replaced by another one.
        """
        async with self._lock:
            configuration = await self._lane.run(
                functools.partial(self._with_found, self.present), _READ_S, "the models"
            )
            new = self._lengthened(configuration)
            difference = changes(self.present.settings, new.settings)
            self._fleet.check_decides()
            self.present = new
            self._fleet.roster.broken = new.broken
            if not difference:
                return
            budget_bytes = self._fleet.scheduler.ledger.budget_bytes
            self._fleet.configure(models_of(new), new.settings, budget_bytes)
        self._tell(Reloaded(difference.added, difference.removed, {}, (), (), self.present.news))

    def _tell(self, reloaded: Reloaded) -> None:
        for sentence in reloaded.names:
            logger.warning("%s", sentence)
        self._fleet.events.emit("reload", None, **msgspec.structs.asdict(reloaded))

    async def lengthen(self, model_id: str, context_tokens: int) -> None:
        """Give a model at least this context, in tokens, until the gateway ends: whatever the
        configuration says now or after a reload. A model that is loaded with a shorter one is
        loaded again.

        Raises:
            Refusal: the gateway is being replaced by another one.
        """
        async with self._lock:
            self._fleet.check_decides()
            known_tokens = self._least_contexts.get(model_id, 0)
            self._least_contexts[model_id] = max(context_tokens, known_tokens)
            new = self._lengthened(self.present)
            if new.settings == self.present.settings:
                return
            self.present = new
            budget_bytes = self._fleet.scheduler.ledger.budget_bytes
            self._fleet.configure(models_of(new), new.settings, budget_bytes)

    def _lengthened(self, configuration: Configuration) -> Configuration:
        """The configuration, with the contexts that orders have asked for."""
        settings = configuration.settings
        models = {
            model_id: msgspec.structs.replace(
                model,
                context_tokens=max(model.context_tokens, self._least_contexts.get(model_id, 0)),
            )
            for model_id, model in settings.models.items()
        }
        return msgspec.structs.replace(
            configuration, settings=msgspec.structs.replace(settings, models=models)
        )

    def reload_soon(self) -> None:
        """Reload after a signal. The outcome is an event in the event log."""
        self._tasks.start(self._reload_quietly(), "reload")

    async def warn_of_groups(self) -> None:
        """Log a warning for each group that can't have its room. The gateway serves nevertheless,
        as loads may have measured the models after the configuration was checked.
        """
        async with self._lock:
            try:
                await self._check_groups(self.present, self._fleet.scheduler.ledger.budget_bytes)
            except ConfigError as error:
                for mistake in error.mistakes:
                    logger.warning("%s", mistake)

    async def close(self) -> None:
        await self._tasks.cancel_all()

    async def _reload_quietly(self) -> None:
        try:
            await self.reload()
        except (ConfigError, Refusal) as error:
            logger.error("The configuration stays as it was: %s", error)

    async def _beside(self, call: Callable[[], T], deadline_s: float, what: str) -> T:
        try:
            return await self._lane.run(call, deadline_s, what)
        except OSError as error:
            file = str(self.present.file or "")
            raise ConfigError([Mistake(ValueSource("file", file), "", f"{error}.")]) from error

    async def _apply(self) -> Reloaded:
        new = self._lengthened(await self._beside(self._read, _READ_S, "the configuration"))
        # A missing model is a mistake only if it wasn't missing before.
        raise_absent(new.absent[name] for name in new.absent if name not in self.present.absent)
        budget = self._fleet.scheduler.ledger.budget_bytes
        if new.settings.memory != self.present.settings.memory:
            budget = await self._beside(
                functools.partial(budget_bytes, new.settings.memory),
                _BUDGET_S,
                "MLX, which was asked for the memory that it may use,",
            )
        self._check_pinned(new, budget)
        # Loads may have measured larger sizes since the last check. A reload that only renews the
        # certificate isn't refused for that.
        if new.settings != self.present.settings:
            await self._check_groups(new, budget)
        await self._renew_certificate()
        difference = changes(self.present.settings, new.settings)
        # The same path may lead to another folder, by a link or by another revision in the cache.
        moved = {
            model_id: _differing(self.present.located.get(model_id, located), located)
            for model_id, located in new.located.items()
        }
        settings = _without_restart(self.present.settings, new.settings, difference.restart)
        self.present = msgspec.structs.replace(new, settings=settings)
        self._fleet.configure(models_of(self.present), settings, budget)
        self._fleet.roster.broken = new.broken
        self._fleet.say_absent(new.absent)
        return Reloaded(
            added=difference.added,
            removed=difference.removed,
            changed=difference.changed
            | {
                model_id: tuple(dict.fromkeys((*keys, *difference.changed.get(model_id, ()))))
                for model_id, keys in moved.items()
                if keys
            },
            applied=difference.live,
            needs_restart=difference.restart,
            names=self.present.news,
            failed=tuple(
                model_id
                for model_id, supervisor in self._fleet.roster.configured.items()
                if supervisor.state is State.FAILED
            ),
        )

    async def _renew_certificate(self) -> None:
        """Read the files of the TLS certificate again.

        Raises:
            ConfigError: the certificate or its key can't be used.
        """
        if self._certificates is None:
            return
        place = ("gateway", "tls_certificate")
        try:
            await self._beside(self._certificates.renew, _READ_S, "the certificate")
        except CertificateError as error:
            source = self.present.source(place)
            raise ConfigError([Mistake(source, ".".join(place), f"{error}.")]) from error

    async def _check_groups(self, new: Configuration, budget_bytes: int) -> None:
        """Raises: ConfigError: a group can't have its room."""
        if not new.settings.groups:
            return
        find = functools.partial(self._fleet.misfits, new.settings, budget_bytes)
        raise_misfits(new, await self._beside(find, _READ_S, "the models of groups"))

    def _check_pinned(self, new: Configuration, budget_bytes: int) -> None:
        """Check the budget against the floors of pinned models, which are never evicted.

        Raises:
            ConfigError: the budget has become too small for these floors.
        """
        ledger = self._fleet.scheduler.ledger
        models = new.settings.models
        pinned = [model for model in models if models[model].pinned and ledger.floor_bytes([model])]
        floors_bytes = ledger.floor_bytes(pinned)
        lasting = [allocation.model_id for allocation in ledger.allocations if allocation.pinned]
        same = budget_bytes >= ledger.budget_bytes and set(pinned) <= set(lasting)
        if floors_bytes <= budget_bytes or same:
            return
        who = f"{', '.join(pinned)} {'keeps' if len(pinned) == 1 else 'keep'}"
        which = "is" if len(pinned) == 1 else "are"
        raise ConfigError(
            [
                Mistake(
                    new.source(("memory", "budget")),
                    "memory.budget",
                    f"{format_size(budget_bytes)} is less than {who}, which {which} pinned "
                    f"({format_size(floors_bytes)}): unload or unpin first",
                )
            ]
        )


def _differing(old: Located, new: Located) -> tuple[str, ...]:
    return tuple(key for key in Located.__struct_fields__ if getattr(old, key) != getattr(new, key))


def _without_restart(old: Settings, new: Settings, keys: tuple[str, ...]) -> Settings:
    """The new settings, but with the old values of `keys`, which need a restart. The next reload
    names these keys again.
    """
    for name in keys:
        table, key = name.split(".", 1)
        if table == HOSTS:
            new = msgspec.structs.replace(new, hosts=old.hosts)
            continue
        section = msgspec.structs.replace(
            getattr(new, table), **{key: getattr(getattr(old, table), key)}
        )
        new = msgspec.structs.replace(new, **{table: section})
    return new
