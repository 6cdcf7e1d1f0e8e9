"""When the ranks of one incarnation end, and which rank has failed first. No I/O; the caller brings
the events.

All ranks are one compartment, whichever host each of them is on:

1. When a rank ends without an order, all others are ended at once.
2. A follower that ends by itself, without a fault, was told so by rank 0, which is about to end or
   to say why. If rank 0 does neither within `LEADER_FOLLOWS_S`, the follower has failed after all.
3. Once the ranks are being ended no other is started; one that was on its way is ended too.
4. The group is over when rank 0 and all others that were started have ended, and none is started
   any more.

When one rank fails, the others end by themselves or by the signals that follow, and the news come
in any order: a host elsewhere may report the first failure after rank 0 has ended of it. So the
first failure is judged by how each rank has ended, and by which rank rank 0 has missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from msgspec import Struct

from gateway.workers.host import THIS_MACHINE, RankEnd
from gateway.workers.ladder import LadderStep
from gateway.workers.process import ExitStatus
from protocol.process import LEFT_ALONE

_UNKNOWN: Final = ExitStatus(None, None)
_UNHEARD: Final = "rank 0 heard nothing of it any more"
# The signals that a process may end by after a step.
_SIGNALS: Final[Mapping[LadderStep | None, tuple[str, ...]]] = {
    LadderStep.TERMINATE: ("SIGTERM",),
    LadderStep.KILL: ("SIGTERM", "SIGKILL"),
}


class Loss(Struct, frozen=True):
    """`reason` names the rank, its host, and how it ended; `status` stands for all ranks."""

    reason: str
    status: ExitStatus


class _Guilt(IntEnum):
    """How surely the end of a rank caused those of the others, the surest first."""

    # The loss of another rank can't end a process so.
    FOREIGN = 0
    MISSED = 1
    # The loss of another rank may end a process so, but the first failure is among such ends.
    FAULT = 2
    NONE = 3


class _Ended(Struct, frozen=True):
    """A rank that has ended, after `step` was taken on it."""

    rank: int
    host: str
    end: RankEnd
    step: LadderStep | None

    @property
    def faulty(self) -> bool:
        status = self.end.status
        if status is None or self.end.by_host:
            return True
        if status.signal is not None:
            return status.signal not in _SIGNALS.get(self.step, ())
        return self.step is None and status.code not in (0, LEFT_ALONE)


class RankFailure:
    """Finds the first failure among the ranks of one model that end without an order."""

    def __init__(self) -> None:
        self._missed: tuple[int, str] | None = None
        self._ended: list[_Ended] = []
        self._in_order = False

    def missed(self, rank: int, host: str) -> None:
        """Rank 0 says that it has lost this one."""
        if self._missed is None:
            self._missed = (rank, host)

    def ended(self, rank: int, host: str, end: RankEnd, step: LadderStep | None) -> None:
        """A rank has ended, after this step."""
        if self._in_order:
            return
        self._ended.append(_Ended(rank, host, end, step))
        # Rank 0 ended when its work was done: the ends of the others are no failures.
        well = end.status is not None and end.status.code == 0
        self._in_order = well and rank == 0 and step is None

    @property
    def loss(self) -> Loss | None:
        """The first failure, as far as it is known; None: no rank was lost."""
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
        # Code 0 would say that no rank was lost.
        statuses = (status, *(each.end.status for each in self._ended if each.rank == 0))
        telling = (each for each in statuses if each is not None and each.code != 0)
        return Loss(f"rank {rank} on {host} was lost ({how})", next(telling, _UNKNOWN))


def _left_alone(ended: _Ended) -> bool:
    status = ended.end.status
    return status is not None and status.code == LEFT_ALONE and ended.step is None


# The time in which the largest worker gives all its memory back.
LEADER_FOLLOWS_S: Final = 60.0


class RankGroup:
    """The fate of all ranks. Rank 0 is there from the beginning; followers are started."""

    def __init__(self) -> None:
        self._rank_failure = RankFailure()
        # A rank has ended without an order.
        self._failed = False
        self._leader_ended = False
        self._running: set[int] = set()
        self._still_comes = True
        self._ending = False
        self._step: LadderStep | None = None
        # The follower that rule 2 is about, and its host.
        self._left: tuple[int, str] | None = None

    @property
    def loss(self) -> Loss | None:
        """The failure that has ended all ranks, as far as it is known; None: none has."""
        return self._rank_failure.loss if self._failed else None

    @property
    def may_start(self) -> bool:
        return not self._ending and not self._leader_ended

    @property
    def followers_gone(self) -> bool:
        """No follower is left, and none is started any more."""
        return not self._still_comes and not self._running

    @property
    def over(self) -> bool:
        return self._leader_ended and self.followers_gone

    def started(self, rank: int) -> LadderStep | None:
        """A follower was started, or may have been. Returns the step to end it by at once, if the
        others are being ended already.
        """
        self._running.add(rank)
        if self.may_start:
            return None
        return LadderStep.KILL if self._step is LadderStep.KILL else LadderStep.TERMINATE

    def none_more(self) -> None:
        """No other follower is started."""
        self._still_comes = False

    def end(self) -> None:
        """All ranks are about to be ended."""
        self._ending = True

    def take(self, step: LadderStep) -> None:
        """This step is taken on all ranks."""
        self._ending = True
        self._step = step

    def follower_ended(self, rank: int, host: str, end: RankEnd) -> float | None:
        """Returns the seconds after which all others are to be ended, if `must_end` says so then;
        None: nothing follows, as of a rank whose end was told before.
        """
        if rank not in self._running:
            return None
        self._running.discard(rank)
        if self._asked:
            return None
        self._rank_failure.ended(rank, host, end, self._sign)
        if self._failed:
            return None
        if not end.by_host and end.status is not None and end.status.code == 0:
            self._left = self._left or (rank, host)
            return LEADER_FOLLOWS_S
        self._failed = True
        return 0.0

    def leader_ended(self, end: RankEnd) -> float | None:
        """As `follower_ended`."""
        self._leader_ended = True
        if self._asked:
            return None
        self._rank_failure.ended(0, THIS_MACHINE, end, self._sign)
        if self._failed:
            return None
        self._failed = True
        return None if self.followers_gone else 0.0

    def missed(self, rank: int, host: str) -> None:
        """Rank 0 says that it has lost this one."""
        self._rank_failure.missed(rank, host)

    def must_end(self) -> bool:
        """Whether all others must be ended now, as they aren't being ended yet."""
        if self._ending or self.over:
            return False
        if self._left is not None and not self._failed:
            self._rank_failure.missed(*self._left)
        self._failed = True
        return True

    @property
    def _asked(self) -> bool:
        """The ranks are being ended by an order, not as one has failed."""
        return self._ending and not self._failed

    @property
    def _sign(self) -> LadderStep | None:
        """The last step that may have ended a process."""
        return self._step if self._step in (LadderStep.TERMINATE, LadderStep.KILL) else None
