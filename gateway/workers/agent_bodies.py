"""The messages between a gateway and an agent, as JSON.

All requests have `Authorization: Bearer KEY`. A gateway opens a lease and then asks for news of it
in turns; ranks belong to a lease, and end with it.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from gateway.system.memory_reading import Footprint, Pressure
from gateway.workers.process import ExitStatus

# The version of these messages. Nothing is started where the other side has another one.
API: Final = 1
# The code of an answer about a lease whose ranks are being ended. A lease without ranks that has
# ended isn't found.
LEASE_OVER: Final = "model_unavailable"

_LONGEST: Final = 4096
_MOST_WORDS: Final = 64
_LARGEST: Final = (1 << 53) - 1

_Word = Annotated[str, Meta(max_length=_LONGEST)]
_Name = Annotated[str, Meta(min_length=1, max_length=200)]
_Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
_Count = Annotated[int, Meta(ge=0, le=_LARGEST)]


class HostMemoryBody(Struct, frozen=True):
    """The memory of a host, in bytes. Its ranks hold `held_bytes`; `free_bytes` of the budget are
    neither held nor promised. The total, the available memory and the pressure are the machine's.
    """

    budget_bytes: int
    held_bytes: int
    free_bytes: int
    total_bytes: int
    available_bytes: int
    pressure: Pressure | None


class HostBody(Struct, frozen=True):
    """An agent and its host. `versions` must agree on all hosts of a model."""

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
    """A gateway opens a lease; `gateway` is its name for people."""

    api: int
    gateway: _Name
    versions: Annotated[dict[_Name, _Name], Meta(max_length=_MOST_WORDS)]


class Opened(Struct, frozen=True):
    """The new lease: its ranks end after `lease_s` without a turn."""

    lease: str
    lease_s: float


class Ports(Struct, frozen=True):
    count: Annotated[int, Meta(ge=1, le=64)]


class PortsBody(Struct, frozen=True):
    ports: tuple[int, ...]


class OrderBody(Struct, frozen=True):
    """As `RankOrder`. The gateway chooses the `id`, so that it can end a rank without having got an
    answer. `secret` is in Base64.
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
    """So many bytes are wanted for a rank."""

    wanted_bytes: _Count


class Promised(Struct, frozen=True):
    """So many bytes are promised to the rank: fewer than are wanted if there aren't as many."""

    promised_bytes: int


class LeaseTurn(Struct, frozen=True):
    """The gateway asks for news. `confirmed` is the number of the last answer that it got, and
    `unwanted` are ranks that must end.
    """

    confirmed: _Count
    unwanted: Annotated[tuple[_Id, ...], Meta(max_length=1024)] = ()


class PrintedLine(Struct, frozen=True):
    """A line that a rank has printed."""

    rank: str
    text: str


class RankEnded(Struct, frozen=True):
    """How a rank ended. `by_host`: the agent ended it for the `reason`, without an order."""

    rank: str
    status: ExitStatus
    reason: str
    by_host: bool = False


class RankNews(Struct, frozen=True):
    """The answer to a turn: the news since the last one. `lost_lines` were printed faster than
    they were asked for.
    """

    number: int
    lines: tuple[PrintedLine, ...] = ()
    lost_lines: int = 0
    ended: tuple[RankEnded, ...] = ()


class FootprintBody(Struct, frozen=True):
    footprint: Footprint
