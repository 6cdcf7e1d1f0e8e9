"""Calls of models that are commands. A call waits for its turn, then asks the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import asynccontextmanager
from typing import Final

import psutil
from msgspec import Raw
from starlette.requests import Request as HttpRequest

from gateway.http.generation.model_call import ModelCall
from gateway.http.passing.outbound import OutboundRequest
from gateway.http.passing.usage import UsageReader
from gateway.http.wire.access_log import unique
from gateway.http.wire.answer import Framing
from gateway.requests.progress import Passage
from gateway.requests.request import Request
from gateway.system.http_client import Answer, AnswerError, HttpClient, Server
from gateway.system.lane import Lane
from gateway.system.refusal import Refusal
from gateway.upstreams.upstream import REDIRECTS
from protocol.answers import Text
from protocol.process_tree import listens, marked

_LOOK_S: Final = 5.0
# How often a server that can't be reached is asked, and the pauses between.
_TRIES: Final = 75
_AGAIN_S: Final = 0.2


class CommandClient:
    """Asks the server of a start of a command, and no other process: another account of this
    machine can see a port in the list of processes, and bind it once it is free. `key` is that of
    the start.
    """

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
        processes = self._candidates()
        self._listener = next((one for one in processes if listens(one, self._port)), None)
        return self._listener is not None

    def _candidates(self) -> Iterator[psutil.Process]:
        if self._listener is not None:
            yield self._listener
        yield from marked(self._mark)


class CommandClients:
    """The client of each command's server."""

    def __init__(self) -> None:
        self._clients: dict[str, CommandClient] = {}

    def client_for(self, model_id: str, place: str) -> CommandClient:
        """The client of the server at `place`. The client of an earlier place is closed."""
        client = self._clients.get(model_id)
        if client is None or client.place != place:
            if client is not None:
                client.http.close()
            client = self._clients[model_id] = CommandClient(place)
        return client


class CommandCall(ModelCall):
    """A call of a model that is a command."""

    hides_usage = False

    def __init__(self, http: HttpRequest, asked: str, framing: Framing | None = None) -> None:
        """Raises: Refusal: the caller may not use the model, or it is no command."""
        super().__init__(http, asked, passes=True)
        self.framing = framing
        self.fields: Collection[str] = self.model.settings.fields
        self._request: Request

    @property
    def model_name(self) -> str:
        return self.model.settings.name or self.model.id

    @property
    def server(self) -> str:
        return f"The server of {self.model.id!r}"

    @property
    def silence_s(self) -> float:
        return self.model.settings.silence_s

    def adapt(self, fields: dict[str, Raw]) -> None:
        pass

    def admit(self, usage: UsageReader) -> None:
        """Put the request into the model's queue, to be passed on in its turn.

        Raises:
            Refusal: the queue is full, or the limits of the key don't allow the request now.
        """
        terms = self.terms(None, None, {})
        self._request = Request(Passage(unique(terms.id)), terms, self.fleet.now())
        self.count([self._request])
        self.fleet.submit(self.supervisor, self._request)

    @asynccontextmanager
    async def open_answer(
        self, outbound: OutboundRequest, usage: UsageReader
    ) -> AsyncGenerator[Answer]:
        try:
            answer = await self._first_answer(outbound)
            try:
                yield answer
            finally:
                answer.close()
        finally:
            self.supervisor.traffic.end_passage(self._request, usage.spent)

    async def _first_answer(self, outbound: OutboundRequest) -> Answer:
        """Raises: AnswerError, Refusal."""
        tries = 0
        while True:
            place = await _until_turn(self._request)
            tries += 1
            try:
                return await self._ask(place, outbound)
            except AnswerError as error:
                # The server has just ended, and the guard is about to say so: wait for the next
                # one, as nothing was sent.
                if error.sent or tries >= _TRIES:
                    raise
            request = self._request
            self.supervisor.traffic.end_passage(request, None)
            await asyncio.sleep(_AGAIN_S)
            self._request = Request(request.task, request.terms, request.arrived_at)
            self.fleet.submit(self.supervisor, self._request)

    async def _ask(self, place: str, outbound: OutboundRequest) -> Answer:
        """Raises: AnswerError, Refusal."""
        clients: CommandClients = self.http.app.state.command_clients
        client = clients.client_for(self.model.id, place)
        key = (b"authorization", b"Bearer " + client.key.encode())
        question = outbound.question(outbound.target, self.model_name, [key])
        answer = await client.http.ask(question, self.silence_s)
        if answer.status in REDIRECTS:
            # A client would send its request, with its key, to where this leads.
            answer.close()
            raise Refusal(
                "bad_gateway",
                f"{self.server} redirects to another address (it answered with {answer.status}): "
                "send the request to the path that it means.",
            )
        return answer


async def _until_turn(request: Request) -> str:
    """Wait until the request may be passed on. Returns the server's place."""
    while True:
        for part in (await request.next_piece()).parts:
            if isinstance(part, Text):
                return part.text
