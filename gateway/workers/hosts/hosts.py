"""The other machines of the configuration, and what was last heard of each."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.config.rank_places import LOCAL, RankPlace
from gateway.config.settings import HostSettings
from gateway.memory.tenant import NoRoomError
from gateway.system.notation import format_size
from gateway.system.tasks import Tasks
from gateway.workers.hosts.agent_bodies import HostBody
from gateway.workers.hosts.agent_link import AgentLink

logger = logging.getLogger(__name__)

_EVERY_S: Final = 10.0


class RemoteReading:
    """One of them: `told` is its own word, `trouble` why there is none now, or what keeps ranks
    there from working with those here.
    """

    def __init__(self, link: AgentLink) -> None:
        self.link = link
        self.told: HostBody | None = None
        self.trouble: str | None = "it was not asked yet"

    async def ask(self) -> None:
        before = self.trouble
        try:
            told = await self.link.host()
            self.told, self.trouble = told, self.link.disagreement(told)
        except OSError as error:
            self.told, self.trouble = None, str(error)
        if self.trouble is not None and self.trouble != before:
            logger.warning("Host %s: %s", self.link.name, self.trouble)


class Hosts:
    """By their names."""

    def __init__(self, configured: Mapping[str, HostSettings]) -> None:
        own_name = socket.gethostname() or "a gateway"
        self.readings = {
            name: RemoteReading(
                AgentLink(name, each.url, each.key_file, each.fingerprint, own_name)
            )
            for name, each in configured.items()
        }
        self._tasks = Tasks("hosts")

    def link(self, name: str) -> AgentLink:
        """Raises: OSError: there is no such host in force."""
        if name not in self.readings:
            raise OSError(f"The gateway knows no host {name}: it takes new ones at its next start")
        return self.readings[name].link

    async def check_room(self, places: Sequence[RankPlace], each_bytes: int) -> None:
        """Whether the other hosts of these ranks have so much for each, by their own figures.

        Raises:
            NoRoomError: one of them has not.
            OSError: one can't be asked, or has other versions.
        """
        wanted = Counter(each.host for each in places if each.host != LOCAL)
        for name, ranks in wanted.items():
            link = self.link(name)
            told = await link.host()
            if (trouble := link.disagreement(told)) is not None:
                raise OSError(trouble)
            if told.memory.free_bytes < ranks * each_bytes:
                raise NoRoomError(
                    f"on {name} it needs {format_size(ranks * each_bytes)}, and "
                    f"{format_size(told.memory.free_bytes)} of the budget of "
                    f"{format_size(told.memory.budget_bytes)} there is free"
                )

    def start(self) -> None:
        for name, each in self.readings.items():
            self._tasks.keep(each.ask, name, _EVERY_S)

    async def close(self) -> None:
        """To be called when no rank is left."""
        await self._tasks.cancel_all()
        await asyncio.gather(*(each.link.close() for each in self.readings.values()))
