"""The steps that end a worker, each with the time it gets before the next.

SIGKILL comes last: on macOS the death of a process with much wired memory can strand it until the
next boot, while the same process gives everything back when it ends by itself (omlx#2184).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class LadderStep(StrEnum):
    """The names are for sentences on a worker that ends after a step, or outlives it."""

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
# For a larger worker SIGKILL costs more than the seconds before it: hundreds of GB were stranded,
# and the largest machines have 512.
_LARGE_BYTES: Final = 64_000_000_000
_AFTER_FAILURE_S: Final = 2.0
_AFTER_FAILURE_S_PER_GB: Final = 0.05
_LONGEST_AFTER_FAILURE_S: Final = 20.0
# Waited for after SIGKILL before the operator is told that the process doesn't go.
_AFTER_KILL_S: Final = 10.0


def polite(footprint_bytes: int | None) -> tuple[Rung, ...]:
    """For unload, restart and shutdown. A clean exit takes longer the more it gives back."""
    return _rungs(_patience_s(footprint_bytes))


def shortened(footprint_bytes: int | None) -> tuple[Rung, ...]:
    """For kill: the same steps, in less time."""
    return _rungs(_patience_s(footprint_bytes) * _SHORTENED)


def hung(footprint_bytes: int | None) -> tuple[Rung, ...]:
    """For a worker that hangs: it prints its stacks first, and isn't asked. A large one gets
    SIGTERM, too, as the memory that it could strand is worth the wait.
    """
    rungs = (Rung(LadderStep.DUMP, _DUMP_S), Rung(LadderStep.KILL, _AFTER_KILL_S))
    if (footprint_bytes or 0) < _LARGE_BYTES:
        return rungs
    return (rungs[0], Rung(LadderStep.TERMINATE, _patience_s(footprint_bytes) / 2), rungs[1])


def orphaned(footprint_bytes: int | None) -> tuple[Rung, ...]:
    """For a worker that an earlier gateway has left: it can't be asked any more."""
    return _rungs(_patience_s(footprint_bytes))[1:]


def after_rank_failure(footprint_bytes: int | None) -> tuple[Rung, ...]:
    """For ranks that have lost one of them. Most notice it and end at once; a rank that waits in a
    step for the lost one would wait for ever.
    """
    patience_s = _AFTER_FAILURE_S + _AFTER_FAILURE_S_PER_GB * (footprint_bytes or 0) / 1e9
    return (
        Rung(LadderStep.TERMINATE, min(patience_s, _LONGEST_AFTER_FAILURE_S)),
        Rung(LadderStep.KILL, _AFTER_KILL_S),
    )


def immediate() -> tuple[Rung, ...]:
    """For kill by force."""
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
