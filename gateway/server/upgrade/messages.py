"""What two gateways tell each other while one replaces the other."""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from gateway.access.accounts import Book
from gateway.mailbox.entry import Name
from gateway.models.compartment import ModelState
from gateway.requests.request import RequestState
from gateway.system.events import Event
from gateway.system.refusal import RefusalState
from protocol.answers import Delta, Embedded, Usage
from protocol.shape import digest


class Told(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of everything that travels alone in a frame."""


# From the successor, before it has anything


class Introduction(Told, frozen=True, tag="introduction"):
    """The successor has read its configuration and could begin. Every version can read this."""

    version: str
    protocol: str
    handover: str
    pid: int


class Failure(Told, frozen=True, tag="failure"):
    """It can't go on, for this reason, and ends."""

    reason: str


# From the present gateway


class Estate(Told, frozen=True, tag="estate"):
    """All that the successor goes on from. Workers have moved by now and are silent.

    `incarnation` is the first free number. `book` is what was used under each key, by days.
    `making` are answers of the mailbox that the present gateway goes on with. `earlier` gateways
    before it still serve clients. `away_s` is of the clock that stands still over a sleep.
    """

    models: tuple[ModelState, ...]
    incarnation: int
    events: tuple[Event, ...]
    book: Book
    making: tuple[Name, ...]
    earlier: int
    away_s: float


class Submitted(Told, frozen=True, tag="submitted"):
    """A request that came to the present gateway after its estate was sent."""

    number: int
    model: str
    request: RequestState


class Cancelled(Told, frozen=True, tag="cancelled"):
    number: int


class Spent(Told, frozen=True, tag="spent"):
    """What was used under a key, by an answer that the present gateway gave."""

    name: str
    usage: Usage


class Released(Told, frozen=True, tag="released"):
    """What this incarnation prints is the successor's to read, after what was read of a line."""

    incarnation: int
    begun: bytes


class Finished(Told, frozen=True, tag="finished"):
    """The last client of the earlier gateway is served."""


# From the successor, once it serves


class Serving(Told, frozen=True, tag="serving"):
    """It has taken everything over."""


class Began(Told, frozen=True, tag="began"):
    """A worker has the request, anew if it had one before."""

    number: int


class Delivered(Told, frozen=True, tag="delivered"):
    number: int
    delta: Delta


class VectorsCame(Told, frozen=True, tag="vectors"):
    number: int
    part: Embedded


class Refused(Told, frozen=True, tag="refused"):
    number: int
    refusal: RefusalState


FromPredecessor: TypeAlias = Estate | Submitted | Cancelled | Spent | Released | Finished
FromSuccessor: TypeAlias = (
    Introduction | Failure | Serving | Began | Delivered | VectorsCame | Refused
)

# As `protocol.messages`: raised when something means something else than before.
_MEANING: Final = 1
HANDOVER_VERSION: Final = f"{_MEANING}-{digest(FromPredecessor | FromSuccessor)}"
