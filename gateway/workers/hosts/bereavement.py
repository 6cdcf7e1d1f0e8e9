"""Which rank has taken the others along. No I/O.

When one is lost, the others end by themselves or by the signals that follow, and the news of that
come in any order: a host elsewhere tells later of the death that began it than rank 0 ends of it.
So it is judged by how each has ended, and by whom rank 0 has missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from msgspec import Struct

from gateway.workers.hosts.host import THIS_MACHINE, RankEnd
from gateway.workers.ladder import Step
from gateway.workers.process import ExitStatus
from protocol.ranks import LEFT_ALONE

_UNKNOWN: Final = ExitStatus(None, None)
_UNHEARD: Final = "rank 0 heard nothing of it any more"
# What a step ends processes by, or leaves them to end by.
_SIGNALS: Final[Mapping[Step | None, tuple[str, ...]]] = {
    Step.TERMINATE: ("SIGTERM",),
    Step.KILL: ("SIGTERM", "SIGKILL"),
}


class Loss(Struct, frozen=True):
    """`reason` names the rank, its host, and how it ended; `status` is that of the whole."""

    reason: str
    status: ExitStatus


class _Guilt(IntEnum):
    """How surely an end began the others', the surest first."""

    # No loss of another rank does that to a process.
    FOREIGN = 0
    MISSED = 1
    # Such an end may follow from the loss of another one, but the first may not.
    FAULT = 2
    NONE = 3


class _Ended(Struct, frozen=True):
    """`step` is the last one that was taken on it before."""

    rank: int
    host: str
    end: RankEnd
    step: Step | None

    @property
    def faulty(self) -> bool:
        status = self.end.status
        if status is None or self.end.by_host:
            return True
        if status.signal is not None:
            return status.signal not in _SIGNALS.get(self.step, ())
        return self.step is None and status.code not in (0, LEFT_ALONE)


class Bereavement:
    """Is told what happens to the ranks of one model until all have ended, as long as nobody has
    ordered that.
    """

    def __init__(self) -> None:
        self._missed: tuple[int, str] | None = None
        self._ended: list[_Ended] = []
        self._in_order = False

    def missed(self, rank: int, host: str) -> None:
        """Rank 0 says that it has lost this one."""
        if self._missed is None:
            self._missed = (rank, host)

    def ended(self, rank: int, host: str, end: RankEnd, step: Step | None) -> None:
        """One has ended, after this step."""
        if self._in_order:
            return
        self._ended.append(_Ended(rank, host, end, step))
        # By itself, when nothing was to do any more: however the others end, they began nothing.
        well = end.status is not None and end.status.code == 0
        self._in_order = well and rank == 0 and step is None

    @property
    def loss(self) -> Loss | None:
        """By what is known so far; None: none was lost."""
        first = min(self._ended, key=self._guilt, default=None)
        if first is not None and self._guilt(first) is not _Guilt.NONE:
            how = first.end.reason if first.faulty or first.step is None else _UNHEARD
            return self._loss(first.rank, first.host, how, first.end.status)
        if self._missed is not None:
            return self._loss(*self._missed, _UNHEARD, None)
        if any(_left_alone(each) for each in self._ended if each.rank):
            return self._loss(0, THIS_MACHINE, "the others heard nothing of it any more", None)
        return None

    def _guilt(self, ended: _Ended) -> _Guilt:
        status = ended.end.status
        killed = status is not None and status.signal == "SIGKILL"
        if ended.faulty and (status is None or ended.end.by_host or killed):
            return _Guilt.FOREIGN
        if self._missed is not None and ended.rank == self._missed[0]:
            return _Guilt.MISSED
        return _Guilt.FAULT if ended.faulty else _Guilt.NONE

    def _loss(self, rank: int, host: str, how: str, status: ExitStatus | None) -> Loss:
        # Code 0 would say that all is well.
        statuses = (status, *(each.end.status for each in self._ended if each.rank == 0))
        telling = (each for each in statuses if each is not None and each.code != 0)
        return Loss(f"rank {rank} on {host} was lost ({how})", next(telling, _UNKNOWN))


def _left_alone(ended: _Ended) -> bool:
    status = ended.end.status
    return status is not None and status.code == LEFT_ALONE and ended.step is None
