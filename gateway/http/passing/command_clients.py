"""The clients of commands' servers. They talk to the processes of their command alone: another
account of this machine can see a port in the list of processes, and bind it once it is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import psutil

from gateway.system.http_client import HttpClient, Server
from gateway.system.lane import Lane
from protocol.process_tree import listens, marked

_LOOK_S: Final = 5.0


class CommandClient:
    """Asks the server of a start of a command. `key` is that of the start."""

    def __init__(self, place: str) -> None:
        """`place` is the text of a `Passage`."""
        self.place = place
        self._mark, _, address = place.partition("@")
        self.key, _, address = address.partition("@")
        self._port = 0
        self._listener: psutil.Process | None = None
        self._lane = Lane(f"listeners of {self._mark}")
        if address.startswith("/"):
            # Only this account may use the folder of the socket.
            self.http = HttpClient(Server("localhost", socket=address))
            return
        host, _, port = address.rpartition(":")
        self._port = int(port)
        self.http = HttpClient(Server(host, self._port), vouch=self._vouch)

    async def _vouch(self) -> bool:
        try:
            return await self._lane.run(self._owns_port, _LOOK_S, "the listener's process")
        except (OSError, psutil.Error):
            return False

    def _owns_port(self) -> bool:
        self._listener = next((e for e in self._candidates() if listens(e, self._port)), None)
        return self._listener is not None

    def _candidates(self) -> Iterator[psutil.Process]:
        if self._listener is not None:
            yield self._listener
        yield from marked(self._mark)


class CommandClients:
    """The client of each command's server."""

    def __init__(self) -> None:
        self._clients: dict[str, CommandClient] = {}

    def at(self, model_id: str, place: str) -> CommandClient:
        """The client for the server at `place`."""
        known = self._clients.get(model_id)
        if known is not None and known.place == place:
            return known
        if known is not None:
            known.http.close()
        client = self._clients[model_id] = CommandClient(place)
        return client
