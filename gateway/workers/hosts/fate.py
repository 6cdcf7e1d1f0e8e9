"""What becomes of the ranks of one incarnation. No I/O; the caller brings what happens.

They are one compartment, whatever host each of them is on:

1. A rank that ends although nobody has asked for it takes all others along at once.
2. A follower that ends by itself, without a fault, was told so by rank 0, which is about to end or
   to say why. If it does neither within `LEADER_FOLLOWS_S`, the follower was lost after all.
3. Once they are being ended no other is started; one that was on its way is told by itself.
4. It is over when rank 0 has ended, all others that were started have, and none comes any more.
"""

from __future__ import annotations

from typing import Final

from gateway.workers.hosts.bereavement import Bereavement, Loss
from gateway.workers.hosts.host import THIS_MACHINE, RankEnd
from gateway.workers.ladder import Step

# As long as the largest worker has to give everything back.
LEADER_FOLLOWS_S: Final = 60.0


class Fate:
    """Rank 0 is there from the beginning, the others follow."""

    def __init__(self) -> None:
        self._bereavement = Bereavement()
        # One has ended although nobody had asked for it.
        self._bereaved = False
        self._leader_ended = False
        self._running: set[int] = set()
        self._still_comes = True
        self._ending = False
        self._step: Step | None = None
        # The follower that rule 2 is about, and its host.
        self._left: tuple[int, str] | None = None

    @property
    def loss(self) -> Loss | None:
        """Which of them has taken the others along, if one has, by what is known so far."""
        return self._bereavement.loss if self._bereaved else None

    @property
    def may_start(self) -> bool:
        return not self._ending and not self._leader_ended

    @property
    def followers_gone(self) -> bool:
        """None of them is left, and none comes any more."""
        return not self._still_comes and not self._running

    @property
    def over(self) -> bool:
        return self._leader_ended and self.followers_gone

    def started(self, rank: int) -> Step | None:
        """A follower is there, or may be: how it is to be ended at once, if the others were told
        while it was on its way.
        """
        self._running.add(rank)
        if self.may_start:
            return None
        return Step.KILL if self._step is Step.KILL else Step.TERMINATE

    def none_more(self) -> None:
        """No other follower comes."""
        self._still_comes = False

    def end(self) -> None:
        """Somebody is about to end all of them."""
        self._ending = True

    def take(self, step: Step) -> None:
        """All that are there are told this."""
        self._ending = True
        self._step = step

    def follower_ended(self, rank: int, host: str, end: RankEnd) -> float | None:
        """In how many seconds all others are to be ended, if `must_end` says so then; None: nothing
        follows, as of one that is told twice.
        """
        if rank not in self._running:
            return None
        self._running.discard(rank)
        if self._asked:
            return None
        self._bereavement.ended(rank, host, end, self._sign)
        if self._bereaved:
            return None
        if not end.by_host and end.status is not None and end.status.code == 0:
            self._left = self._left or (rank, host)
            return LEADER_FOLLOWS_S
        self._bereaved = True
        return 0.0

    def leader_ended(self, end: RankEnd) -> float | None:
        """As `follower_ended`."""
        self._leader_ended = True
        if self._asked:
            return None
        self._bereavement.ended(0, THIS_MACHINE, end, self._sign)
        if self._bereaved:
            return None
        self._bereaved = True
        return None if self.followers_gone else 0.0

    def missed(self, rank: int, host: str) -> None:
        """Rank 0 says that it has lost this one."""
        self._bereavement.missed(rank, host)

    def must_end(self) -> bool:
        """Whether nobody has seen to it meanwhile."""
        if self._ending or self.over:
            return False
        if self._left is not None and not self._bereaved:
            self._bereavement.missed(*self._left)
        self._bereaved = True
        return True

    @property
    def _asked(self) -> bool:
        """Whether they are being ended for another reason than the end of one."""
        return self._ending and not self._bereaved

    @property
    def _sign(self) -> Step | None:
        """What processes may end by, if they haven't ended by themselves."""
        return self._step if self._step in (Step.TERMINATE, Step.KILL) else None
