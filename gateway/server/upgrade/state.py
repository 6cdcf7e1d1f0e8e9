"""The state with which the next gateway goes on. Each object makes its own part, and continues from
that part in the next gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from gateway.access.keys import ApiKeys
from gateway.access.limits import Book
from gateway.http.app import Parts
from gateway.mailbox.mailbox import Mailbox, MailboxState
from gateway.models.compartment import ModelState
from gateway.models.fleet import Fleet
from gateway.requests.request import Request, RequestState
from gateway.system.clock import present_clock
from gateway.system.events import Event
from gateway.workers.starter import Channel


class CannotTakeOverError(Exception):
    """The state of the earlier gateway can't be continued; the text says why."""


class GatewayState(Struct, frozen=True, kw_only=True):
    """`incarnation` is the first number that no worker has had. `usage` is the usage of each key,
    by days. `away_s` is the `away_s` of the gateway's `PresentClock`.
    """

    models: tuple[ModelState, ...]
    incarnation: int
    events: tuple[Event, ...]
    usage: Book
    mailbox: MailboxState
    away_s: float


def gateway_state(
    parts: Parts, number: Callable[[Request], int], channels: Mapping[str, Channel]
) -> GatewayState:
    """The state of this gateway. `number` gives a request its number. `channels` are the channels
    at which the successor listens, by model.

    Raises:
        ProcessGoneError, OSError: a worker has ended.
    """
    fleet = parts.fleet
    return GatewayState(
        models=tuple(
            supervisor.state_for(number, channels.get(supervisor.model.id))
            for supervisor in fleet.roster.everyone
        ),
        incarnation=fleet.next_incarnation,
        events=fleet.events.kept,
        usage=parts.keys.book,
        mailbox=parts.mailbox.state,
        away_s=present_clock().away_s,
    )


def restore_clock(state: GatewayState) -> None:
    """Continue the clock. This must come before any code reads the clock."""
    present_clock().restore(state.away_s)


def restore(
    state: GatewayState,
    fleet: Fleet,
    keys: ApiKeys,
    mailbox: Mailbox,
    outputs: Mapping[int, int],
    requests: Callable[[str, Sequence[tuple[int, RequestState]]], Sequence[Request]],
) -> None:
    """Continue everything else. `outputs` are the descriptors that workers print to, by
    incarnation. `requests` continues requests of a model.

    Raises:
        CannotTakeOverError, ProcessGoneError, OSError: this gateway can't go on from the state.
    """
    fleet.events.restore(state.events)
    keys.restore(state.usage)
    mailbox.restore(state.mailbox)
    fitting = [model for model in state.models if _fits(fleet, model)]
    for model in state.models:
        if model not in fitting and (model.worker or model.running or model.waiting):
            raise CannotTakeOverError(
                f"{model.id!r} is configured in another way than it was loaded: apply that "
                "first, with `bulkhead config reload`"
            )
    for model in fitting:
        worker = model.worker
        fleet.roster.configured[model.id].restore(
            model,
            None if worker is None else outputs.get(worker.incarnation),
            requests(model.id, model.running),
            requests(model.id, model.waiting),
        )


def _fits(fleet: Fleet, model: ModelState) -> bool:
    """Whether the model is configured, and its worker has the settings that are configured."""
    supervisor = fleet.roster.configured.get(model.id)
    if supervisor is None:
        return False
    return model.worker is None or supervisor.model.load_values == model.told
