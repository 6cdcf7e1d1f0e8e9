"""What a gateway and an agent send each other, as JSON.

All of it under `Authorization: Bearer KEY`. A gateway opens a lease and then asks for news of it in
turns; ranks belong to a lease, and end with it.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from gateway.system.memory_reading import Footprint, Pressure
from gateway.workers.process import ExitStatus

# Of these messages. Who speaks another one is told so, and starts nothing.
API: Final = 1
# The code of an answer about a lease whose ranks are being ended. One that has none left isn't
# known any more.
LEASE_OVER: Final = "model_unavailable"

_LONGEST: Final = 4096
_MOST_WORDS: Final = 64
_LARGEST: Final = (1 << 53) - 1

_Word = Annotated[str, Meta(max_length=_LONGEST)]
_Name = Annotated[str, Meta(min_length=1, max_length=200)]
_Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
_Count = Annotated[int, Meta(ge=0, le=_LARGEST)]


class HostMemoryBody(Struct, frozen=True):
    """Bytes. `held_bytes` is what its ranks hold, `free_bytes` what of the budget nobody holds or
    was promised; the total, the available memory and the pressure are the machine's.
    """

    budget_bytes: int
    held_bytes: int
    free_bytes: int
    total_bytes: int
    available_bytes: int
    pressure: Pressure | None


class HostBody(Struct, frozen=True):
    """What an agent is. `versions` are those that must agree between the hosts of one model."""

    api: int
    version: str
    hostname: str
    system: str
    back_end: str
    pid: int
    versions: dict[str, str]
    memory: HostMemoryBody
    ranks: int


class Opening(Struct, frozen=True):
    """A gateway begins; `gateway` says to people which one."""

    api: int
    gateway: _Name
    versions: Annotated[dict[_Name, _Name], Meta(max_length=_MOST_WORDS)]


class Opened(Struct, frozen=True):
    """`lease_s`: without a turn for so long its ranks end."""

    lease: str
    lease_s: float


class Ports(Struct, frozen=True):
    count: Annotated[int, Meta(ge=1, le=64)]


class PortsBody(Struct, frozen=True):
    ports: tuple[int, ...]


class OrderBody(Struct, frozen=True):
    """As `RankOrder`. The gateway chooses the `id`, so that it can end what it got no answer to.
    `secret` is in Base64.
    """

    id: _Id
    name: _Name
    incarnation: _Count
    rank: Annotated[int, Meta(ge=0, le=1023)]
    arguments: Annotated[tuple[_Word, ...], Meta(max_length=_MOST_WORDS)]
    environment: Annotated[dict[_Name, _Word], Meta(max_length=_MOST_WORDS)]
    secret: Annotated[bytes, Meta(max_length=_LONGEST)]
    needed_bytes: _Count


class Started(Struct, frozen=True):
    pid: int


class MemoryWish(Struct, frozen=True):
    """A rank is to be promised so much."""

    wanted_bytes: _Count


class Promised(Struct, frozen=True):
    """It is promised so much, which is less than was wanted where there isn't so much."""

    promised_bytes: int


class LeaseTurn(Struct, frozen=True):
    """`confirmed` is the number of the last answer that the gateway has got; `unwanted` are ranks
    that it knows nothing of, and that must end.
    """

    confirmed: _Count
    unwanted: Annotated[tuple[_Id, ...], Meta(max_length=1024)] = ()


class PrintedLine(Struct, frozen=True):
    """What a rank has printed."""

    rank: str
    text: str


class RankEnded(Struct, frozen=True):
    """How a rank ended, and why if the agent ended it by itself: then `by_host` is true."""

    rank: str
    status: ExitStatus
    reason: str
    by_host: bool = False


class RankNews(Struct, frozen=True):
    """The answer to a turn: what has happened since the one before. `lost_lines` were printed
    faster than they were asked for.
    """

    number: int
    lines: tuple[PrintedLine, ...] = ()
    lost_lines: int = 0
    ended: tuple[RankEnded, ...] = ()


class FootprintBody(Struct, frozen=True):
    footprint: Footprint
