"""Everything that this gateway has, on its way to the next one.

Until that one says that it serves, all can be undone: workers hold back what they have to say, and
are told to stay if it doesn't come up.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from gateway.http.app import Parts
from gateway.requests.request import Request
from gateway.server.upgrade.messages import Cancelled, Estate, Failure, Serving, Spent, Submitted
from gateway.server.upgrade.relay import Relay
from gateway.server.upgrade.successor import SuccessorProcess, UnfitError
from gateway.system.clock import present_clock
from gateway.system.refusal import Refusal
from protocol.moves import Move

_MOVE_S: Final = 15.0
_SERVE_S: Final = 60.0


class Handover:
    """One attempt. `relay` has the requests once it is carried out."""

    def __init__(self, parts: Parts, earlier: int) -> None:
        """`earlier` gateways before this one still serve clients."""
        self.relay = Relay()
        self._parts = parts
        self._earlier = earlier

    async def until_settled(self) -> None:
        """No worker is on its way up or out from here on. Raises: UnfitError."""
        seconds = self._parts.fleet.settings.workers.load_timeout_s
        try:
            await self._parts.fleet.until_settled(seconds)
        except TimeoutError:
            raise UnfitError(
                f"models were still being loaded or unloaded after {seconds:g} s"
            ) from None

    async def carry_out(self, successor: SuccessorProcess) -> None:
        """Returns once the successor serves. Raises: UnfitError, OSError, ProcessGoneError: it is
        to be undone.
        """
        check_ranks(self._parts)
        fleet, parts = self._parts.fleet, self._parts
        channels = fleet.hand_over(self.relay)
        workers = {
            each.model.id: each.worker for each in fleet.roster.everyone if each.worker is not None
        }
        orders = {
            model_id: Move(
                address=fleet.channel_address(channels[model_id]),
                key=channels[model_id].workers_key,
                parent=successor.pid,
            )
            for model_id in workers
        }
        moved = await asyncio.gather(
            *(each.move(orders[model_id], _MOVE_S) for model_id, each in workers.items())
        )
        if not all(moved):
            raise UnfitError("a worker didn't let itself be handed over: see its log")
        making = parts.mailbox.hand_over()
        parts.keys.forward(self.relay.spend)
        estate = Estate(
            models=tuple(
                each.state_for(self.relay.number, channels.get(each.model.id))
                for each in fleet.roster.everyone
            ),
            incarnation=fleet.next_incarnation,
            events=fleet.events.kept,
            book=parts.keys.book,
            making=tuple(making),
            earlier=self._earlier,
            away_s=present_clock().away_s,
        )
        for each in workers.values():
            successor.passage.send(b"prnt", each.incarnation, os.dup(each.output))
        try:
            async with asyncio.timeout(_SERVE_S):
                await successor.passage.sent()
                successor.frames.send(estate)
                await self._until_it_serves(successor)
        except TimeoutError:
            raise UnfitError(f"it did not serve within {_SERVE_S:g} s") from None

    def undo(self) -> None:
        """This gateway goes on, and what came in meanwhile is its own."""
        parts = self._parts
        parts.mailbox.take_back()
        parts.keys.forward(None)
        parts.fleet.take_back()
        for order in self.relay.undo():
            match order:
                case Submitted(number=number, model=model_id):
                    self._submit(model_id, self.relay.request(number))
                case Cancelled(number=number):
                    request = self.relay.request(number)
                    for each in parts.fleet.roster.everyone:
                        each.traffic.cancel(request)
                case Spent(name=name, usage=usage):
                    parts.keys.account(name, usage)

    async def _until_it_serves(self, successor: SuccessorProcess) -> None:
        """Workers may settle with it before it takes clients. Raises: UnfitError."""
        while True:
            match await successor.frames.receive():
                case Serving():
                    return
                case Failure(reason=reason):
                    raise UnfitError(reason)
                case None:
                    raise UnfitError(f"while it took over {await successor.last_words()}")
                case message:
                    self.relay.receive(message)

    def _submit(self, model_id: str, request: Request) -> None:
        for each in self._parts.fleet.roster.everyone:
            if each.model.id == model_id:
                try:
                    each.submit(request)
                except Refusal as refusal:
                    request.refuse(refusal)


def check_ranks(parts: Parts) -> None:
    """Raises: UnfitError: rank 0 is followed by processes that watch this gateway, or an agent that
    does, and that nobody could tell to watch another.
    """
    for each in parts.fleet.roster.everyone:
        if each.worker is not None and each.worker.followers is not None:
            name = each.model.id
            raise UnfitError(
                f"{name!r} is loaded with several ranks, which can't be handed over: "
                f"`bulkhead unload {name} --hold` first and `bulkhead load {name}` afterwards, "
                "or restart the gateway"
            )
