"""The messages between a gateway and an agent, as JSON.

Each request has the header `Authorization: Bearer KEY`. A gateway opens a lease, and then asks
again and again for news of the lease's ranks: each such request is a turn. A rank belongs to one
lease, and ends with the lease.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from gateway.system.child import ExitStatus
from gateway.system.memory_reading import Footprint, Pressure

# The version of these messages. A gateway and an agent with different versions start no ranks
# together.
API: Final = 1
# The error code for a lease that is over, as long as its ranks are being ended. Once they have
# ended, the code is "not_found".
LEASE_OVER: Final = "model_unavailable"

_LONGEST: Final = 4096
_MOST_WORDS: Final = 64
_LARGEST: Final = (1 << 53) - 1

_Word = Annotated[str, Meta(max_length=_LONGEST)]
_Name = Annotated[str, Meta(min_length=1, max_length=200)]
_Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
_Count = Annotated[int, Meta(ge=0, le=_LARGEST)]


class HostMemoryBody(Struct, frozen=True):
    """The memory of a host, in bytes. All ranks may hold `budget_bytes` together, and hold
    `held_bytes` now; `free_bytes` of the budget are neither held by ranks nor promised to them. The
    other fields are about the whole machine.
    """

    budget_bytes: int
    held_bytes: int
    free_bytes: int
    total_bytes: int
    available_bytes: int
    pressure: Pressure | None


class HostBody(Struct, frozen=True):
    """An agent and its host. `api` is the version of these messages, and `version` is Bulkhead's.
    `versions` must be the same on all hosts of a model. `ranks` is the number of ranks on the host.
    """

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
    """A gateway asks for a lease. `gateway` is the gateway's name, for people."""

    api: int
    gateway: _Name
    versions: Annotated[dict[_Name, _Name], Meta(max_length=_MOST_WORDS)]


class Opened(Struct, frozen=True):
    """The new lease. The agent ends its ranks after `lease_s` seconds without a turn."""

    lease: str
    lease_s: float


class Ports(Struct, frozen=True):
    count: Annotated[int, Meta(ge=1, le=64)]


class PortsBody(Struct, frozen=True):
    ports: tuple[int, ...]


class OrderBody(Struct, frozen=True):
    """An order to start a rank, with the fields of `RankOrder`. The gateway chooses the `id`, so
    that it can end the rank even if the agent's answer is lost. `secret` is in Base64.
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
    """A gateway asks that a rank be promised `wanted_bytes`."""

    wanted_bytes: _Count


class Promised(Struct, frozen=True):
    """The bytes that the rank is promised from now on: fewer than were wanted if the budget has no
    room for more.
    """

    promised_bytes: int


class LeaseTurn(Struct, frozen=True):
    """A gateway asks for news. `confirmed` is the number of the last answer that the gateway got.
    `unwanted` are ids of ranks that must end.
    """

    confirmed: _Count
    unwanted: Annotated[tuple[_Id, ...], Meta(max_length=1024)] = ()


class PrintedLine(Struct, frozen=True):
    """A line that a rank has printed. `rank` is the rank's id."""

    rank: str
    text: str


class RankEnded(Struct, frozen=True):
    """How a rank ended. `rank` is the rank's id, and `reason` tells the end in words. With
    `by_host` the agent ended the rank by itself.
    """

    rank: str
    status: ExitStatus
    reason: str
    by_host: bool = False


class RankNews(Struct, frozen=True):
    """The answer to a turn: all news that the gateway hasn't confirmed. `lost_lines` counts lines
    that were dropped, as the ranks printed faster than the gateway asked.
    """

    number: int
    lines: tuple[PrintedLine, ...] = ()
    lost_lines: int = 0
    ended: tuple[RankEnded, ...] = ()


class FootprintBody(Struct, frozen=True):
    footprint: Footprint
