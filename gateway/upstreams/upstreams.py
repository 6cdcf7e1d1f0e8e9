"""All upstreams, and the ways on which a model can be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gateway.access.caller import Caller
from gateway.config.model_settings import UpstreamSettings
from gateway.system.events import EventLog
from gateway.system.tasks import Tasks
from gateway.upstreams.choice import Candidate, ranked
from gateway.upstreams.offers import Offer
from gateway.upstreams.route import new_instance
from gateway.upstreams.upstream import Upstream


class Way(NamedTuple):
    """An upstream that can be asked for a model, and the model's name there. `offer` is None if the
    upstream hasn't listed its models yet.
    """

    upstream: Upstream
    told: str
    offer: Offer | None

    @property
    def id(self) -> str:
        """The model's id here."""
        return f"{self.upstream.name}/{self.told if self.offer is None else self.offer.id}"


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
        for each in self.by_name.values():
            self._watch(each)

    def configure(self, configured: Mapping[str, UpstreamSettings]) -> None:
        """Take another configuration. Upstreams that haven't changed go on undisturbed, and answers
        of others end as they would have.
        """
        before, self.by_name = self.by_name, {}
        for name, settings in configured.items():
            known = before.get(name)
            if known is not None and known.settings == settings:
                self.by_name[name] = before.pop(name)
                continue
            self.by_name[name] = Upstream(name, settings, self.instance, self._events)
        for name, each in before.items():
            if (watch := self._watches.pop(name, None)) is not None:
                watch.cancel()
            each.close()
        if self._started:
            for each in self.by_name.values():
                self._watch(each)

    def _watch(self, upstream: Upstream) -> None:
        if upstream.name not in self._watches:
            self._watches[upstream.name] = self._tasks.start(upstream.watch(), upstream.name)

    async def close(self) -> None:
        await self._tasks.cancel_all()
        for each in self.by_name.values():
            each.close()

    async def until_idle(self) -> None:
        """Wait until no request runs at an upstream."""
        for each in self.by_name.values():
            await each.idle.wait()

    async def ways(self, name: str, caller: Caller) -> list[Way]:
        """The ways to the model with this name that the caller may use. Waits for the first looks,
        if one of these may find the model.
        """
        found = list(self._ways(name, caller))
        if any(each.offer is not None for each in found):
            return found
        unasked = [each.asked.wait() for each in self.by_name.values() if not each.asked.is_set()]
        if unasked:
            # Each look has a deadline.
            await asyncio.gather(*unasked)
            found = list(self._ways(name, caller))
        return found

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
        found: dict[str, str] = {}
        for way in self.visible(caller):
            assert way.offer is not None
            found[way.id] = way.id
            for each in way.offer.names:
                found.setdefault(each, way.id)
        return found


def _may_use(caller: Caller, way: Way) -> bool:
    return caller.may_use(way.id, (way.told, f"{way.upstream.name}/{way.told}"))


def in_order(ways: list[Way]) -> list[Way]:
    """The ways on which a request may be sent now, the best first."""
    usable = {each.upstream.name: each for each in ways if each.upstream.trouble() is None}
    return [
        usable[each.upstream]
        for each in ranked(
            Candidate(
                name,
                None if way.offer is None else way.offer.state,
                way.upstream.load(way.told),
                way.upstream.chosen_at.get(way.told, 0.0),
                way.upstream.busy(way.told),
            )
            for name, way in usable.items()
        )
    ]
