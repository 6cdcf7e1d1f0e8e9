"""The present gateway's side of an upgrade: it hands its workers and its state over.

Until the successor sends that it serves, the hand-over can be undone. Workers hold their messages
back meanwhile. If the successor fails, the workers stay with this gateway, but for those that have
connected to the successor already.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Final

from gateway.http.app import Parts
from gateway.requests.request import Request
from gateway.server.upgrade.messages import Cancelled, Failure, Handover, Serving, Spent, Submitted
from gateway.server.upgrade.state import gateway_state
from gateway.server.upgrade.successor import HandoverError, SuccessorProcess
from gateway.server.upgrade.successor_relay import Relay
from gateway.system.refusal import Refusal
from gateway.workers.starter import Channel
from gateway.workers.worker import Worker
from protocol.life import Move

_MOVE_S: Final = 15.0
_SERVE_S: Final = 60.0


async def until_settled(parts: Parts) -> None:
    """Let no worker begin to start or to end, and wait until no worker is starting or ending.

    Raises:
        HandoverError: the wait takes longer than a load may take.
    """
    seconds = parts.fleet.settings.workers.load_timeout_s
    try:
        await parts.fleet.until_settled(seconds)
    except TimeoutError:
        named = (
            f"{supervisor.model.id} is {supervisor.state}"
            for supervisor in parts.fleet.roster.everyone
            if supervisor.unsettled
        )
        raise HandoverError(
            f"models were still being loaded or unloaded after {seconds:g} s: {', '.join(named)}"
        ) from None


async def hand_over(parts: Parts, relay: Relay, successor: SuccessorProcess, earlier: int) -> None:
    """Hand the workers and the state over to the successor. Requests that come from now on wait in
    the `relay`. `earlier` is the number of gateways before this one that still serve clients.
    Returns once the successor serves.

    Raises:
        HandoverError, OSError, ProcessGoneError: the hand-over has failed and must be undone.
    """
    check_ranks(parts)
    channels = parts.fleet.hand_over(relay)
    workers = {
        supervisor.model.id: supervisor.worker
        for supervisor in parts.fleet.roster.everyone
        if supervisor.worker is not None
    }
    await _move(parts, workers, channels, successor.pid)
    parts.mailbox.suspend()
    parts.keys.forward(relay.spend)
    message = Handover(gateway_state(parts, relay.add, channels), earlier)
    for worker in workers.values():
        successor.descriptors.send(b"prnt", worker.incarnation, os.dup(worker.output))
    try:
        async with asyncio.timeout(_SERVE_S):
            await successor.descriptors.sent()
            successor.messages.send(message)
            await _until_it_serves(successor, relay)
    except TimeoutError:
        raise HandoverError(f"it did not serve within {_SERVE_S:g} s") from None


def undo(parts: Parts, relay: Relay) -> None:
    """Let this gateway go on, also with the requests that came in meanwhile."""
    parts.mailbox.go_on()
    parts.keys.forward(None)
    parts.fleet.take_back()
    for order in relay.undo():
        match order:
            case Submitted(number=number, model=model_id):
                _submit(parts, model_id, relay.request(number))
            case Cancelled(number=number):
                for supervisor in parts.fleet.roster.everyone:
                    supervisor.traffic.cancel(relay.request(number))
            case Spent(name=name, usage=usage):
                parts.keys.account(name, usage)


def check_ranks(parts: Parts) -> None:
    """Raises: HandoverError: a loaded model has several ranks. Its followers watch this gateway, or
    end with an ssh of this gateway, and can't change to another gateway.
    """
    for supervisor in parts.fleet.roster.everyone:
        if supervisor.worker is not None and supervisor.worker.followers is not None:
            name = supervisor.model.id
            raise HandoverError(
                f"{name!r} is loaded with several ranks, which can't be handed over: "
                f"`bulkhead unload {name} --hold` first and `bulkhead load {name}` afterwards, "
                "or restart the gateway"
            )


async def _move(
    parts: Parts, workers: Mapping[str, Worker], channels: Mapping[str, Channel], parent: int
) -> None:
    """Have the workers connect to the channels of their models, at which the `parent` listens."""
    orders = {
        model_id: Move(
            address=parts.fleet.channel_address(channels[model_id]),
            key=channels[model_id].workers_key,
            parent=parent,
        )
        for model_id in workers
    }
    moved = await asyncio.gather(
        *(worker.move(orders[model_id], _MOVE_S) for model_id, worker in workers.items())
    )
    if not all(moved):
        raise HandoverError("a worker didn't let itself be handed over: see its log")


async def _until_it_serves(successor: SuccessorProcess, relay: Relay) -> None:
    """Wait until the successor sends `Serving`, maybe after the first parts of answers."""
    while True:
        match await successor.messages.receive():
            case Serving():
                return
            case Failure(reason=reason):
                raise HandoverError(reason)
            case None:
                raise HandoverError(f"while it took over {await successor.describe_end()}")
            case message:
                relay.receive(message)


def _submit(parts: Parts, model_id: str, request: Request) -> None:
    for supervisor in parts.fleet.roster.everyone:
        if supervisor.model.id == model_id:
            try:
                supervisor.submit(request)
            except Refusal as refusal:
                request.refuse(refusal)
