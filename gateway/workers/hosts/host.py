"""What supervision asks of a machine on which ranks run, be it this one or another.

A rank is one process of a model that several compute together. Rank 0 is an ordinary worker beside
the gateway; the others follow it, and are started, measured and ended through the host they are on.
"""

from __future__ import annotations

from typing import Final, Protocol

from msgspec import Struct

from gateway.system.memory_reading import Footprint
from gateway.workers.process import ExitStatus, ProcessOrder

# The name of the gateway's own.
THIS_MACHINE: Final = "this machine"


class RankOrder(ProcessOrder, frozen=True, kw_only=True):
    """What a host is to start. `needed_bytes` is what the host keeps for it, by the estimate of
    what this rank takes there.
    """

    rank: int
    needed_bytes: int = 0


class RankEnd(Struct, frozen=True):
    """How a rank's process ended. `status` None: nobody could see it, as its host is out of reach,
    and `reason` says so. `by_host`: its host ended it, for a reason of its own. `log_tail` are its
    last lines, where the gateway has not got them already.
    """

    status: ExitStatus | None
    reason: str
    by_host: bool = False
    log_tail: tuple[str, ...] = ()


class HostFigures(Struct, frozen=True):
    """What there is for ranks on a host, in bytes: what all of them may hold together, and how much
    of that nobody holds or has been promised. `versions` are those that must agree for ranks to
    understand each other, by the name of the distribution, and "protocol".
    """

    budget_bytes: int
    free_bytes: int
    versions: dict[str, str]


class RankProcess(Protocol):
    """A rank that was started. Nothing here waits for its end but `ended`."""

    @property
    def pid(self) -> int:
        """On its host."""

    async def footprint(self) -> Footprint:
        """Raises: FootprintError; OSError if no answer comes in time."""

    async def keep(self, wanted_bytes: int) -> int:
        """Have its host keep more for it: what it keeps from now on, in bytes, which is less where
        there isn't so much. Raises: OSError.
        """

    async def dump(self) -> None:
        """Have it print its stacks, and go on if it was stopped. Raises: OSError."""

    async def end(self) -> None:
        """SIGTERM: it gives back what it holds. Raises: OSError."""

    async def kill(self) -> None:
        """SIGKILL. Raises: OSError."""

    async def ended(self) -> RankEnd:
        """Wait for its end, however long it takes; any number of times. Always answers: a host out
        of reach ends its ranks itself, and this answers once it must have done so.
        """


class Host(Protocol):
    """A machine."""

    @property
    def name(self) -> str:
        """As the configuration has it, for people."""

    async def figures(self) -> HostFigures:
        """Raises: OSError if the host can't be asked, with what is wrong."""

    async def address(self) -> str:
        """An IP address at which it is reached from here. Raises: OSError."""

    async def free_ports(self, count: int) -> tuple[int, ...]:
        """TCP ports that nobody listens on now. Raises: OSError."""

    async def start(self, order: RankOrder) -> RankProcess:
        """Start a rank.

        Raises:
            NoRoomError: the host lacks memory for it now.
            OSError: it can't be started. In either case there is no process, or none for long.
        """
