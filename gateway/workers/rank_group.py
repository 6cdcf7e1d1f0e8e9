"""When the ranks of one incarnation end, and which rank has failed first. No I/O; the caller passes
the events.

All ranks belong to one model, and end together, on whichever hosts they run:

1. When a rank ends without an order, all other ranks are ended at once.
2. A follower that ends by itself with exit code 0 has got that order from rank 0, which is about to
   end, too. If rank 0 still runs after `LEADER_FOLLOWS_S`, all ranks are ended. Then the follower
   counts as the lost rank, unless rank 0 has reported another one.
3. Once the ranks are being ended, no follower is started any more. A follower whose start was under
   way is ended, too.
4. The group is over when rank 0 and all started followers have ended, and no start is under way.

When one rank fails, the other ranks end by themselves or by signals, and the news of their ends
come in any order: another host may report the first failure after rank 0 has ended because of it.
So the first failure is judged by how each rank has ended, and by which rank rank 0 has reported as
lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from msgspec import Struct

from gateway.system.child import ExitStatus
from gateway.workers.host import THIS_MACHINE, RankEnd
from gateway.workers.shutdown_steps import ShutdownStep
from protocol.process import LEFT_ALONE

_UNKNOWN: Final = ExitStatus(None, None)
_UNHEARD: Final = "rank 0 heard nothing of it any more"
# The signals by which a process may end after a shutdown step.
_SIGNALS: Final[Mapping[ShutdownStep | None, tuple[str, ...]]] = {
    ShutdownStep.TERMINATE: ("SIGTERM",),
    ShutdownStep.KILL: ("SIGTERM", "SIGKILL"),
}


class Loss(Struct, frozen=True):
    """The loss of a rank. `reason` names the rank and its host, and says how the rank ended.
    `status` counts as the exit status of the whole worker.
    """

    reason: str
    status: ExitStatus


class _Certainty(IntEnum):
    """How surely the end of a rank was the first failure. The surest comes first."""

    # The loss of another rank can't cause such an end.
    FOREIGN = 0
    # Rank 0 has reported the rank as lost.
    MISSED = 1
    # The end is a fault, but the loss of another rank may have caused it.
    FAULT = 2
    NONE = 3


class _Ended(Struct, frozen=True):
    """The end of a rank. `step` is the last step of the ladder that was taken on the rank."""

    rank: int
    host: str
    end: RankEnd
    step: ShutdownStep | None

    @property
    def faulty(self) -> bool:
        status = self.end.status
        if status is None or self.end.by_host:
            return True
        if status.signal is not None:
            return status.signal not in _SIGNALS.get(self.step, ())
        return self.step is None and status.code not in (0, LEFT_ALONE)


class RankFailure:
    """Finds the first failure when ranks of one model end without an order."""

    def __init__(self) -> None:
        self._missed: tuple[int, str] | None = None
        self._ended: list[_Ended] = []
        self._in_order = False

    def missed(self, rank: int, host: str) -> None:
        """Note that rank 0 has reported this rank as lost."""
        if self._missed is None:
            self._missed = (rank, host)

    def ended(self, rank: int, host: str, end: RankEnd, step: ShutdownStep | None) -> None:
        """Note the end of a rank. `step` is the last step that was taken on the rank."""
        if self._in_order:
            return
        self._ended.append(_Ended(rank, host, end, step))
        # Rank 0 has ended in order, so the ends of followers are no failures.
        well = end.status is not None and end.status.code == 0
        self._in_order = well and rank == 0 and step is None

    @property
    def loss(self) -> Loss | None:
        """The first failure, as far as it is known; None: no rank was lost."""
        first = min(self._ended, key=self._certainty, default=None)
        if first is not None and self._certainty(first) is not _Certainty.NONE:
            how = first.end.reason if first.faulty or first.step is None else _UNHEARD
            return self._loss(first.rank, first.host, how, first.end.status)
        if self._missed is not None:
            return self._loss(*self._missed, _UNHEARD, None)
        if any(_left_alone(ended) for ended in self._ended if ended.rank):
            return self._loss(0, THIS_MACHINE, "the others heard nothing of it any more", None)
        return None

    def _certainty(self, ended: _Ended) -> _Certainty:
        status = ended.end.status
        killed = status is not None and status.signal == "SIGKILL"
        if ended.faulty and (status is None or ended.end.by_host or killed):
            return _Certainty.FOREIGN
        if self._missed is not None and ended.rank == self._missed[0]:
            return _Certainty.MISSED
        return _Certainty.FAULT if ended.faulty else _Certainty.NONE

    def _loss(self, rank: int, host: str, how: str, status: ExitStatus | None) -> Loss:
        # The loss can't have exit code 0, which would say that no rank was lost.
        statuses = (status, *(ended.end.status for ended in self._ended if ended.rank == 0))
        telling = (
            exit_status
            for exit_status in statuses
            if exit_status is not None and exit_status.code != 0
        )
        return Loss(f"rank {rank} on {host} was lost ({how})", next(telling, _UNKNOWN))


def _left_alone(ended: _Ended) -> bool:
    status = ended.end.status
    return status is not None and status.code == LEFT_ALONE and ended.step is None


# Rule 2 waits so long for the end of rank 0: within this time the largest worker gives all its
# memory back.
LEADER_FOLLOWS_S: Final = 60.0


class RankGroup:
    """The fate of all ranks of one incarnation. Rank 0 runs from the beginning; followers are
    started later.
    """

    def __init__(self) -> None:
        self._rank_failure = RankFailure()
        # Whether a rank has ended without an order.
        self._failed = False
        self._leader_ended = False
        self._running: set[int] = set()
        self._still_comes = True
        self._ending = False
        self._step: ShutdownStep | None = None
        # The follower that rule 2 is about, and its host.
        self._left: tuple[int, str] | None = None

    @property
    def loss(self) -> Loss | None:
        """The failure that has ended all ranks, as far as it is known; None: there is none."""
        return self._rank_failure.loss if self._failed else None

    @property
    def may_start(self) -> bool:
        return not self._ending and not self._leader_ended

    @property
    def followers_gone(self) -> bool:
        """Whether no follower runs, and no start of a follower is under way."""
        return not self._still_comes and not self._running

    @property
    def over(self) -> bool:
        return self._leader_ended and self.followers_gone

    def started(self, rank: int) -> ShutdownStep | None:
        """Note that a follower was started, or may have been started. If the ranks are being ended
        already, return the step that must be taken on this follower at once.
        """
        self._running.add(rank)
        if self.may_start:
            return None
        return ShutdownStep.KILL if self._step is ShutdownStep.KILL else ShutdownStep.TERMINATE

    def none_more(self) -> None:
        """Note that no other follower is started."""
        self._still_comes = False

    def end(self) -> None:
        """Note that all ranks are about to be ended."""
        self._ending = True

    def record_step(self, step: ShutdownStep) -> None:
        """Record that this step is applied to all ranks."""
        self._ending = True
        self._step = step

    def follower_ended(self, rank: int, host: str, end: RankEnd) -> float | None:
        """Note the end of a follower. Returns seconds after which `must_end` is to be called; if
        that returns True, all ranks are to be ended. None: nothing follows, as when the end of this
        follower was noted before.
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
        """Note the end of rank 0. Returns the same as `follower_ended`."""
        self._leader_ended = True
        if self._asked:
            return None
        self._rank_failure.ended(0, THIS_MACHINE, end, self._sign)
        if self._failed:
            return None
        self._failed = True
        return None if self.followers_gone else 0.0

    def missed(self, rank: int, host: str) -> None:
        """Note that rank 0 has reported this rank as lost."""
        self._rank_failure.missed(rank, host)

    def must_end(self) -> bool:
        """Whether all ranks must be ended now, because of a failure that this notes. False: they
        are being ended already, or have all ended.
        """
        if self._ending or self.over:
            return False
        if self._left is not None and not self._failed:
            self._rank_failure.missed(*self._left)
        self._failed = True
        return True

    @property
    def _asked(self) -> bool:
        """Whether the ranks are being ended by an order, and not because of a failure."""
        return self._ending and not self._failed

    @property
    def _sign(self) -> ShutdownStep | None:
        """The last step, if a process may end by its signal; otherwise None."""
        return self._step if self._step in (ShutdownStep.TERMINATE, ShutdownStep.KILL) else None
