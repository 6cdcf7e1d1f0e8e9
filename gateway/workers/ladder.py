"""The ladder: the steps that end a worker, each with the time before the next step.

SIGKILL is the last step. On macOS a killed process with much wired memory can leave that memory
stranded until the next boot; a process that ends by itself gives all of it back (omlx#2184).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class LadderStep(StrEnum):
    """A step of the ladder. Its text completes a sentence about a worker that ended after the step,
    or outlived the step.
    """

    DUMP = "dumping its stacks"
    ASK = "being asked to stop"
    TERMINATE = "SIGTERM"
    KILL = "SIGKILL"


class Rung(NamedTuple):
    step: LadderStep
    deadline_s: float


_SHORTEST_S: Final = 5.0
_LONGEST_S: Final = 60.0
_S_PER_GB: Final = 0.5
_SHORTENED: Final = 0.4
_DUMP_S: Final = 0.5
# A hung worker that is larger gets SIGTERM before SIGKILL. SIGKILL has stranded hundreds of GB, and
# the largest machines have 512.
_LARGE_BYTES: Final = 64_000_000_000
_AFTER_FAILURE_S: Final = 2.0
_AFTER_FAILURE_S_PER_GB: Final = 0.05
_LONGEST_AFTER_FAILURE_S: Final = 20.0
# The wait after SIGKILL, before the operator is told that the process survived.
_AFTER_KILL_S: Final = 10.0


def polite(footprint_bytes: int | None) -> tuple[Rung, ...]:
    """The ladder for unload, restart and shutdown. The more memory a worker gives back, the longer
    its exit takes.
    """
    return _rungs(_patience_s(footprint_bytes))


def shortened(footprint_bytes: int | None) -> tuple[Rung, ...]:
    """The ladder for kill: the steps of `polite`, with less time."""
    return _rungs(_patience_s(footprint_bytes) * _SHORTENED)


def hung(footprint_bytes: int | None) -> tuple[Rung, ...]:
    """The ladder for a worker that hangs. The worker prints its stacks first, and isn't asked to
    stop. A large worker gets SIGTERM before SIGKILL, as the memory that SIGKILL could strand is
    worth the wait.
    """
    rungs = (Rung(LadderStep.DUMP, _DUMP_S), Rung(LadderStep.KILL, _AFTER_KILL_S))
    if (footprint_bytes or 0) < _LARGE_BYTES:
        return rungs
    return (rungs[0], Rung(LadderStep.TERMINATE, _patience_s(footprint_bytes) / 2), rungs[1])


def orphaned(footprint_bytes: int | None) -> tuple[Rung, ...]:
    """The ladder for a worker without its gateway: nobody can ask the worker to stop any more."""
    return _rungs(_patience_s(footprint_bytes))[1:]


def after_rank_failure(footprint_bytes: int | None) -> tuple[Rung, ...]:
    """The ladder for the ranks of a model that has lost a rank. Most ranks notice the loss and end
    at once. A rank that waits for the lost one within a step would wait for ever.
    """
    patience_s = _AFTER_FAILURE_S + _AFTER_FAILURE_S_PER_GB * (footprint_bytes or 0) / 1e9
    return (
        Rung(LadderStep.TERMINATE, min(patience_s, _LONGEST_AFTER_FAILURE_S)),
        Rung(LadderStep.KILL, _AFTER_KILL_S),
    )


def immediate() -> tuple[Rung, ...]:
    """The ladder for kill by force."""
    return (Rung(LadderStep.KILL, _AFTER_KILL_S),)


def longest_s() -> float:
    """Seconds that the end of the largest worker may take."""
    return sum(each.deadline_s for each in _rungs(_LONGEST_S))


def _patience_s(footprint_bytes: int | None) -> float:
    return min(_LONGEST_S, _SHORTEST_S + _S_PER_GB * (footprint_bytes or 0) / 1e9)


def _rungs(patience_s: float) -> tuple[Rung, ...]:
    return (
        Rung(LadderStep.ASK, patience_s),
        Rung(LadderStep.TERMINATE, patience_s / 2),
        Rung(LadderStep.KILL, _AFTER_KILL_S),
    )
