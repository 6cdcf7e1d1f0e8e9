"""What a follower's engine thread does: load its part, obey, release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.life import Load
from worker.engines.caches import Caches
from worker.engines.limits import Limits
from worker.engines.room import Room, measure
from worker.load.loading import LoadedModel, load
from worker.mlx_lm.wiring import wiring
from worker.prompt_cache.blocks import Cutter
from worker.ranks.group import join, versions
from worker.ranks.links import FollowerLink
from worker.ranks.mirror import Mirror
from worker.ranks.orders import Begin, HasFailed, HasLoaded, Here
from worker.ranks.parts import split_model
from worker.ranks.tokens import following
from worker.system.errors import LoadAbandonedError, ModelError
from worker.system.imports import leave_imports_alone
from worker.system.memory import read_device, released_memory


def follow(link: FollowerLink, rank: int, should_stop: Callable[[], bool]) -> None:
    """Returns once rank 0 has said that it is over, or `should_stop` has."""
    link.say(Here(versions()))
    leave_imports_alone()
    order = link.next(should_stop)
    if isinstance(order, Begin):
        with released_memory():
            _follow(link, rank, order, should_stop)


def _follow(link: FollowerLink, rank: int, begin: Begin, should_stop: Callable[[], bool]) -> None:
    try:
        group, loaded = _load(rank, begin, should_stop)
    except ModelError as error:
        link.say(HasFailed(error.reason, error.permanent))
        # Rank 0 tells the gateway, which ends all of them.
        link.next(should_stop)
        return
    except LoadAbandonedError:
        return
    link.say(HasLoaded())
    mirror = _mirror(group, loaded, begin.load)
    del loaded
    try:
        while (order := link.next(should_stop)) is not None and mirror.obey(order):
            continue
    finally:
        mirror.close()


def _load(rank: int, begin: Begin, should_stop: Callable[[], bool]) -> tuple[Any, LoadedModel]:
    """The group, and this rank's part. Raises: ModelError, LoadAbandonedError."""
    ranks = begin.load.ranks
    if ranks is None:
        raise ModelError("Rank 0 has sent nothing to follow.")
    group = join(ranks, rank)

    def part(model: Any, config: dict[str, Any]) -> None:
        split_model(model, config, group, ranks.split)

    return group, load(begin.load.path, lambda _done, _total: None, should_stop, part=part)


def _mirror(group: Any, loaded: LoadedModel, command: Load) -> Mirror:
    """The same computations as rank 0's, in the same order: each of them meets the others."""
    caches = Caches(loaded.model, None, command.kv_bits)
    room = Room(measure(caches.run, caches.make), working_bytes=command.working_bytes)
    if command.wire:
        wiring.wire(loaded.weight_bytes, read_device())
    limits = Limits(room, loaded.weight_bytes)
    if command.limit_bytes is not None:
        limits.take(command.limit_bytes, command.beside_bytes)
    return Mirror(loaded.model, Cutter(caches.run, caches.make), limits, following(group))
