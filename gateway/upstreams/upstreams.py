"""All upstreams, and the ways on which a model can be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from gateway.access.caller import Caller
from gateway.config.model_settings import UpstreamSettings
from gateway.system.events import EventLog
from gateway.system.tasks import Tasks
from gateway.upstreams.offers import Offer
from gateway.upstreams.route import new_instance
from gateway.upstreams.upstream import Upstream


class Way(NamedTuple):
    """An upstream that can be asked for a model, and the model's name there. `offer` is None if the
    upstream hasn't listed its models yet.
    """

    upstream: Upstream
    name_there: str
    offer: Offer | None

    @property
    def id(self) -> str:
        """The model's id here."""
        return f"{self.upstream.name}/{self.name_there if self.offer is None else self.offer.id}"


class Upstreams:
    """The upstreams of the configuration, by their names. `instance` is this gateway's."""

    def __init__(self, configured: Mapping[str, UpstreamSettings], events: EventLog) -> None:
        self.instance = new_instance()
        self._events = events
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._tasks = Tasks("upstreams")
        self._started = False
        self.by_name: dict[str, Upstream] = {}
        self.configure(configured)

    def start(self) -> None:
        self._started = True
        for upstream in self.by_name.values():
            self._watch(upstream)

    def configure(self, configured: Mapping[str, UpstreamSettings]) -> None:
        """Apply another configuration. Upstreams that haven't changed go on undisturbed. Answers
        of the others go on to their end.
        """
        before, self.by_name = self.by_name, {}
        for name, settings in configured.items():
            known = before.get(name)
            if known is not None and known.settings == settings:
                self.by_name[name] = before.pop(name)
                continue
            self.by_name[name] = Upstream(name, settings, self.instance, self._events)
        for name, removed in before.items():
            if (watch := self._watches.pop(name, None)) is not None:
                watch.cancel()
            removed.close()
        if self._started:
            self.start()

    def _watch(self, upstream: Upstream) -> None:
        if upstream.name not in self._watches:
            self._watches[upstream.name] = self._tasks.start(upstream.watch(), upstream.name)

    async def close(self) -> None:
        await self._tasks.cancel_all()
        for upstream in self.by_name.values():
            upstream.close()

    async def until_idle(self) -> None:
        """Wait until no request runs at an upstream."""
        for upstream in self.by_name.values():
            await upstream.idle.wait()

    async def ways(self, name: str, caller: Caller) -> list[Way]:
        """The ways to the model with this name that the caller may use. If no upstream lists the
        model, waits until each upstream was asked once.
        """
        ways = list(self._ways(name, caller))
        if not any(way.offer is not None for way in ways):
            # Each upstream is asked with a deadline.
            await asyncio.gather(*(upstream.asked.wait() for upstream in self.by_name.values()))
            ways = list(self._ways(name, caller))
        return ways

    def _ways(self, name: str, caller: Caller) -> Iterator[Way]:
        head, _, rest = name.partition("/")
        if rest and (upstream := self.by_name.get(head)) is not None:
            offer = upstream.offers.get(rest)
            way = Way(upstream, rest, offer)
            unknown = not upstream.models and not upstream.health.reachable
            if (offer is not None or unknown) and _may_use(caller, way):
                yield way
            return
        for upstream in self.by_name.values():
            way = Way(upstream, name, upstream.offers.get(name))
            if way.offer is not None and _may_use(caller, way):
                yield way

    def visible(self, caller: Caller) -> Iterator[Way]:
        """A way to each model of each upstream that the caller may use."""
        for upstream in self.by_name.values():
            for offer in upstream.models:
                if _may_use(caller, way := Way(upstream, offer.id, offer)):
                    yield way

    def names(self, caller: Caller) -> dict[str, str]:
        """The names that lead to the models that the caller may use, with and without the name of
        the upstream; to each the id of one such model.
        """
        ids: dict[str, str] = {}
        for way in self.visible(caller):
            assert way.offer is not None
            ids[way.id] = way.id
            for name in way.offer.names:
                ids.setdefault(name, way.id)
        return ids


def _may_use(caller: Caller, way: Way) -> bool:
    return caller.may_use(way.id, (way.name_there, f"{way.upstream.name}/{way.name_there}"))


# States, from models that answer at once to models that must load first. A server that shows no
# states mostly has its models loaded.
_RANKS: Final = {"ready": 0, None: 1, "loading": 2, "starting": 2, "waiting": 3, "unloaded": 3}
_UNWILLING: Final = 4


class UpstreamCandidate(Struct, frozen=True):
    """An upstream for a request. `load` counts the requests that run and wait there. `chosen_at`
    is when it was chosen last, and `busy` whether it has just asked for patience.
    """

    upstream: str
    state: str | None
    load: int
    chosen_at: float
    busy: bool = False


def ranked(candidates: Iterable[UpstreamCandidate]) -> list[UpstreamCandidate]:
    """The candidates, the best first: those that aren't busy, with the model loaded, with the least
    load, and of equal ones the one whose last turn is the longest ago.
    """

    def order(candidate: UpstreamCandidate) -> tuple[bool, int, int, float]:
        rank = _RANKS.get(candidate.state, _UNWILLING)
        return candidate.busy, rank, candidate.load, candidate.chosen_at

    return sorted(candidates, key=order)


def in_order(ways: list[Way]) -> list[Way]:
    """The ways on which a request may be sent now, the best first."""
    usable = {way.upstream.name: way for way in ways if way.upstream.trouble() is None}
    return [
        usable[candidate.upstream]
        for candidate in ranked(
            UpstreamCandidate(
                name,
                None if way.offer is None else way.offer.state,
                way.upstream.load(way.name_there),
                way.upstream.chosen_at.get(way.name_there, 0.0),
                way.upstream.busy(way.name_there),
            )
            for name, way in usable.items()
        )
    ]
