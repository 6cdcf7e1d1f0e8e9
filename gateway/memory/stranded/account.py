"""How much one worker has wired, as far as the machine's wired pages tell. No I/O.

They tell it at the moments when it must show: wired pages rise while a worker loads and while it
first computes, may fall when it rests, rise again when it goes on, and fall when it ends.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

# Of loading and computing, after which a rise is no longer its own: its weights are wired by then.
_YOUNG_S: Final = 60.0
# What a worker unwires when it stops, or wires when it goes on, shows within so long.
PROMPT_S: Final = 5.0
# Its end may be known only after its pages have come back.
_TEARDOWN_S: Final = 15.0
# Memory has come back a minute after an end.
RETURNS_S: Final = 60.0
# Between two readings, with some delay.
_STEP_S: Final = 1.5
# Less than this part still wired after a rest: it was unwired.
_UNWIRED: Final = 0.7
_PROOF: Final = 0.3
_ALL: Final = 0.9
# Less than this part of what it holds is not taken for what it wires.
_PLAUSIBLE: Final = 0.25
_RESTS: Final = 2


class Claim(NamedTuple):
    """What a worker has wired and its life has shown, for the gateway that may find it dead.

    `judged`, `unclear` and `tells` as of an account that ended now.
    """

    model_id: str
    held_bytes: int
    most_bytes: int
    wired_bytes: int
    judged: bool
    unclear: bool
    tells: bool
    rests_kept: int
    rests_fallen: int


class Account:
    """Bytes, and seconds on the caller's clock.

    `wired_bytes` is what it is thought to have wired now, or to have left wired once it has ended;
    `most_bytes` the highest that ever was. `expected_bytes` is by how much wired pages should rise
    when it goes on, `climbed_bytes` by how much they did. `mixed`: another wired in the same
    moments, so nobody knows how much of it was whose. `swings`: what it unwires when it stops
    it was seen to wire again. Once it has ended, it is `judged` if it
    computed to the last, which takes wired pages, or was seen to keep them at rest.
    """

    def __init__(
        self,
        pid: int,
        model_id: str,
        now: float,
        *,
        usual_share: float = 1.0,
        usually_keeps: bool = False,
    ) -> None:
        """With what earlier lives of the model have shown."""
        self.pid = pid
        self._usual_share = usual_share
        self._usually_keeps = usually_keeps
        self.model_id = model_id
        self.since = now
        self.held_bytes = 0
        self.wired_bytes = self.most_bytes = 0
        self.expected_bytes = self.climbed_bytes = 0
        self.works = self._goes_on = False
        self.mixed = False
        self.judged = False
        self.swings = False
        self.changed_at = self.young_at = now
        self.ended_at: float | None = None
        self._worked_s = self._computed_s = 0.0
        self._loads = False
        self._due_bytes = 0
        self._due_until = now
        self._usual_bytes: int | None = None
        self._at_rest_bytes: int | None = None
        self.rests_kept = self.rests_fallen = 0
        self._falls: deque[tuple[float, int]] = deque()

    @classmethod
    def of_claim(cls, claim: Claim, pid: int, now: float) -> Account:
        """Of a worker that has ended while nobody looked."""
        account = cls(pid, claim.model_id, now)
        account.held_bytes = claim.held_bytes
        account.wired_bytes, account.most_bytes = claim.wired_bytes, claim.most_bytes
        account.mixed = claim.unclear
        account._computed_s = PROMPT_S if claim.tells else 0.0
        account.rests_kept, account.rests_fallen = claim.rests_kept, claim.rests_fallen
        account.end(now)
        account.judged = claim.judged
        return account

    def claim(self, now: float) -> Claim:
        """What would have to come back if it died now."""
        return Claim(
            self.model_id,
            self.held_bytes,
            self.most_bytes,
            self.wired_bytes,
            self._judged(now),
            self.unclear,
            self.tells,
            self.rests_kept,
            self.rests_fallen,
        )

    @property
    def young(self) -> bool:
        """What it has is being wired."""
        if not self.works:
            return False
        # However long it has loaded: some wire when they first compute.
        return self._loads or self._worked_s < _YOUNG_S or self._computed_s < 2 * PROMPT_S

    @property
    def unclear(self) -> bool:
        """Whose the pages are: unless all of those that wired at once have wired all they do."""
        return self.mixed and self.most_bytes < self.held_bytes * self._usual_share * _ALL

    @property
    def tells(self) -> bool:
        """It has computed for long enough to have wired what it wires."""
        return self._computed_s >= PROMPT_S and not self.unclear

    @property
    def share(self) -> float:
        """Of what it holds, the most that it had wired."""
        return self.most_bytes / max(self.held_bytes, 1)

    @property
    def room_bytes(self) -> int:
        """What it may wire beside what it has."""
        most_bytes = self.held_bytes if self.young else min(self.most_bytes, self.held_bytes)
        return max(0, most_bytes - self.wired_bytes)

    @property
    def missed_bytes(self) -> int:
        """What should have risen when it went on, and did not."""
        return max(0, self.expected_bytes - self.climbed_bytes)

    def proves(self, now: float) -> bool:
        """It wires what it holds, and gives it back: this much was seen to rise and to fall."""
        began_at = self.ended_at if self.ended_at is not None else self.changed_at
        told = self.ended_at is not None or (not self.works and self._usual_bytes is None)
        return (
            told
            and now - began_at <= _YOUNG_S
            and not self.unclear
            and self.most_bytes >= self.held_bytes * _PLAUSIBLE
            and self.wired_bytes <= self.most_bytes * _PROOF
        )

    def observe(
        self, now: float, step_s: float, held_bytes: int, *, loads: bool, works: bool
    ) -> None:
        """It holds so much, and loads or computes."""
        self.held_bytes = held_bytes if works else max(held_bytes, self.most_bytes)
        self._loads = loads
        if self.young:
            self.young_at = now
        self._goes_on = works
        if works and not self.works:
            self._go_on()
            self.works, self.changed_at = True, now
        elif works:
            self._worked_s += step_s
            self._computed_s += 0.0 if loads else step_s
            if now - self.changed_at >= PROMPT_S and self._keeps:
                # Computing takes wired pages: what has fallen meanwhile was another's.
                self.wired_bytes = min(self.most_bytes, held_bytes)
        elif self._at_rest_bytes is not None and now - self.changed_at >= 2 * PROMPT_S:
            if self._at_rest_bytes >= self.held_bytes * _PLAUSIBLE:
                fallen = self.wired_bytes < self._at_rest_bytes * _UNWIRED
                self.rests_fallen += fallen
                self.rests_kept += not fallen
            self._at_rest_bytes = None

    def settle(self, now: float) -> None:
        """What moved up to this reading has been told; from now on it rests, if it has stopped."""
        if self.works and not self._goes_on:
            self._stop(now)
            self.works, self.changed_at = False, now

    def end(self, now: float) -> None:
        """Its process is gone."""
        self.judged = self._judged(now)
        if self.works:
            if self._keeps:
                self.wired_bytes = min(self.most_bytes, self.held_bytes)
            self._own_falls(now, _TEARDOWN_S)
        self.works = False
        self.ended_at = now
        self._due_bytes, self._due_until = self.wired_bytes, now + RETURNS_S

    def climb(self, size_bytes: int) -> None:
        """So much of a rise is its own."""
        self.wired_bytes += size_bytes
        self.climbed_bytes += size_bytes
        self.most_bytes = max(self.most_bytes, self.wired_bytes)

    def take_due(self, now: float, size_bytes: int) -> int:
        """How much of a fall is certainly its own, as it has just stopped or ended."""
        if now > self._due_until:
            return 0
        taken = min(size_bytes, self._due_bytes, self.wired_bytes)
        self._due_bytes -= taken
        self.wired_bytes -= taken
        return taken

    def fall(self, now: float, size_bytes: int) -> None:
        """So much of a fall may be its own."""
        if self.works:
            self._falls.append((now, size_bytes))
            while now - self._falls[0][0] > _TEARDOWN_S:
                self._falls.popleft()
        else:
            self.wired_bytes = max(0, self.wired_bytes - size_bytes)

    def _judged(self, now: float) -> bool:
        rests = not self.works and now - self.changed_at > PROMPT_S
        return not self.unclear and (not rests or self._keeps)

    @property
    def _keeps(self) -> bool:
        if self._usually_keeps:
            return self.rests_fallen <= self.rests_kept + _RESTS
        return self.rests_kept >= _RESTS and self.rests_kept > 2 * self.rests_fallen

    def _own_falls(self, now: float, within_s: float) -> None:
        """What fell while it seemed to compute may have been its own."""
        fallen_bytes = sum(size for at, size in self._falls if now - at <= within_s)
        self.wired_bytes = max(0, self.wired_bytes - fallen_bytes)

    def _go_on(self) -> None:
        if self.mixed and self.wired_bytes <= self.most_bytes * _PROOF:
            # Another chance to see what it wires.
            self.mixed = False
            self.most_bytes, self._worked_s = self.wired_bytes, 0.0
        lost_bytes = self.most_bytes - self.wired_bytes
        usual_bytes = lost_bytes if self._usual_bytes is None else self._usual_bytes
        self.expected_bytes = min(lost_bytes, usual_bytes)
        self.climbed_bytes = 0
        self._at_rest_bytes = None

    def _stop(self, now: float) -> None:
        usual_bytes = self._usual_bytes or 0
        self.swings = usual_bytes >= self.climbed_bytes * _UNWIRED
        if now - self.changed_at >= PROMPT_S and self.expected_bytes:
            self._usual_bytes = self.climbed_bytes
        self._due_bytes, self._due_until = self.climbed_bytes, now + PROMPT_S
        self._at_rest_bytes = self.wired_bytes
        self._own_falls(now, _STEP_S)
        self._falls.clear()
