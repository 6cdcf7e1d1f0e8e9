"""The messages between two gateways while one replaces the other."""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from gateway.requests.request import RequestState
from gateway.server.upgrade.state import GatewayState
from gateway.system.refusal import RefusalState
from protocol.answers import Delta, Embedded, Usage
from protocol.message_base import digest


class HandoverMessage(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of all messages. Each message is sent in a frame of its own."""


# Messages of the successor, before it gets the state


class Introduction(HandoverMessage, frozen=True, tag="introduction"):
    """The successor has read its configuration and is ready. Every version can read this
    message.
    """

    version: str
    protocol: str
    handover: str
    pid: int


class Failure(HandoverMessage, frozen=True, tag="failure"):
    """The successor can't take over, for the `reason`, and ends."""

    reason: str


# Messages of the present gateway


class Handover(HandoverMessage, frozen=True, tag="handover"):
    """The state that the successor continues. The workers have moved by now and send nothing.
    `earlier` is the number of gateways before the present one that still serve clients.
    """

    state: GatewayState
    earlier: int


class Submitted(HandoverMessage, frozen=True, tag="submitted"):
    """A request that came to the present gateway after it sent its state."""

    number: int
    model: str
    request: RequestState


class Cancelled(HandoverMessage, frozen=True, tag="cancelled"):
    number: int


class Spent(HandoverMessage, frozen=True, tag="spent"):
    """The tokens of an answer of the present gateway, which count for the key `name`."""

    name: str
    usage: Usage


class Released(HandoverMessage, frozen=True, tag="released"):
    """The successor reads the output of this incarnation from now on. `begun` is the part of a line
    that was read already. `incarnation` 0: the present gateway has nothing left but clients.
    """

    incarnation: int
    begun: bytes


class Finished(HandoverMessage, frozen=True, tag="finished"):
    """The present gateway has served its last client."""


# Messages of the successor, once it serves


class Serving(HandoverMessage, frozen=True, tag="serving"):
    """The successor has taken everything over."""


class Began(HandoverMessage, frozen=True, tag="began"):
    """A worker has got the request. Sent again when another worker gets the request."""

    number: int


class Delivered(HandoverMessage, frozen=True, tag="delivered"):
    number: int
    delta: Delta


class VectorsCame(HandoverMessage, frozen=True, tag="vectors"):
    number: int
    part: Embedded


class Refused(HandoverMessage, frozen=True, tag="refused"):
    number: int
    refusal: RefusalState


FromPredecessor: TypeAlias = Handover | Submitted | Cancelled | Spent | Released | Finished
FromSuccessor: TypeAlias = (
    Introduction | Failure | Serving | Began | Delivered | VectorsCame | Refused
)

# Raise this, as in `protocol.messages`, when a message changes its meaning but not its fields.
_MEANING: Final = 2
HANDOVER_VERSION: Final = f"{_MEANING}-{digest(FromPredecessor | FromSuccessor)}"
