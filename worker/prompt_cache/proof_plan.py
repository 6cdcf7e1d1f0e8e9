"""What to prove of the cache next, and when: a policy. And the bounds of what counts as equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

# The share of a rest that proofs may take.
SHARE: Final = 0.05
# A proof begins when the model has been at rest for so long.
QUIET_S: Final = 10.0

Task: TypeAlias = Literal["memory", "disk", "content"]

# When a task is through, it begins again after so many seconds. Prompts are found all the while.
_AGAIN_S: Final[dict[Task, float]] = {"memory": 600.0, "disk": 6 * 3600.0, "content": 60.0}
# A difference is a fault from so many times the largest noise on. The noise of few prompts was
# measured, and that of other prompts is some times as large.
_FACTOR: Final = 8.0
# Unrelated keys or values differ by more than 1.
_MOST_DISTANCE: Final = 0.5
_LEAST_DIVERGENCE: Final = 1e-3
# Unrelated distributions diverge by up to ln 2, which is 0.69.
_MOST_DIVERGENCE: Final = 0.3


class ProofPlan:
    """Chooses tasks in turn, such that all together take a share of the time. Times are seconds on
    the caller's clock.
    """

    def __init__(self, now: float) -> None:
        self._due_at: dict[Task, float] = dict.fromkeys(_AGAIN_S, now)
        self._not_before = now

    def wait_s(self, now: float) -> float:
        """How long the model must be at rest before the next task may begin."""
        return max(QUIET_S, self._not_before - now, min(self._due_at.values()) - now)

    def next(self, now: float) -> Task | None:
        """The task that has waited longest; None: none may begin now."""
        if now < self._not_before:
            return None
        task = min(self._due_at, key=self._due_at.__getitem__)
        return task if self._due_at[task] <= now else None

    def done(self, task: Task, began_at: float, now: float, *, more: bool) -> None:
        """Note that a part of a task was done. `more`: other parts of the task are left."""
        self._not_before = now + (now - began_at) * (1 / SHARE - 1)
        self._due_at[task] = now if more else now + _AGAIN_S[task]


class NoiseBounds:
    """The bounds that follow from measured noise. A distance is that of the keys, of the values, or
    of the states of one layer; a divergence is that of two distributions of the next token.
    """

    def __init__(self, least_distance: float) -> None:
        """Two arrays whose distance is within `least_distance` are equal anyway."""
        self._distances: list[float] = []
        self._divergence = _LEAST_DIVERGENCE
        self._least = least_distance

    def observe(self, distances: Sequence[float], divergence: float) -> None:
        """Take over noise: the same tokens were computed in two ways."""
        self._distances = self._distances or [self._least] * len(distances)
        pairs = zip(self._distances, distances, strict=True)
        self._distances = [
            min(_MOST_DISTANCE, max(bound, _FACTOR * distance)) for bound, distance in pairs
        ]
        self._divergence = min(_MOST_DIVERGENCE, max(self._divergence, _FACTOR * divergence))

    def fault(self, distances: Sequence[float], divergence: float) -> str | None:
        """What is beyond its bound, in words; None: nothing."""
        for place, (bound, distance) in enumerate(zip(self._distances, distances, strict=True)):
            # A comparison with something that is no number is false.
            if not distance <= bound:
                return f"array {place} differs by {distance:.2g}, and noise by {bound:.2g} at most"
        if not divergence <= self._divergence:
            return (
                f"the next token's distribution diverges by {divergence:.2g} nats, and by "
                f"{self._divergence:.2g} at most for noise"
            )
        return None

    @property
    def largest(self) -> tuple[float, float]:
        """The largest bound of a distance, and the bound of a divergence."""
        return max(self._distances, default=self._least), self._divergence
