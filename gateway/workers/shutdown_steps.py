"""The shutdown sequences: the steps that end a worker, each with the time before the next step.

SIGKILL is the last step. On macOS a killed process with much wired memory can leave that memory
stranded until the next boot; a process that ends by itself gives all of it back (omlx#2184).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class ShutdownStep(StrEnum):
    """A step of a shutdown sequence. Its text completes a sentence about a worker that ended after
    the step, or outlived the step.
    """

    DUMP = "dumping its stacks"
    ASK = "being asked to stop"
    TERMINATE = "SIGTERM"
    KILL = "SIGKILL"


class TimedStep(NamedTuple):
    step: ShutdownStep
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


def polite(footprint_bytes: int | None) -> tuple[TimedStep, ...]:
    """The sequence for unload, restart and shutdown. The more memory a worker gives back, the
    longer its exit takes.
    """
    return _whole(_patience_s(footprint_bytes))


def shortened(footprint_bytes: int | None) -> tuple[TimedStep, ...]:
    """The sequence for kill: the steps of `polite`, with less time."""
    return _whole(_patience_s(footprint_bytes) * _SHORTENED)


def hung(footprint_bytes: int | None) -> tuple[TimedStep, ...]:
    """The sequence for a worker that hangs. The worker prints its stacks first, and isn't asked to
    stop. A large worker gets SIGTERM before SIGKILL, as the memory that SIGKILL could strand is
    worth the wait.
    """
    steps = (TimedStep(ShutdownStep.DUMP, _DUMP_S), TimedStep(ShutdownStep.KILL, _AFTER_KILL_S))
    if (footprint_bytes or 0) < _LARGE_BYTES:
        return steps
    return (steps[0], TimedStep(ShutdownStep.TERMINATE, _patience_s(footprint_bytes) / 2), steps[1])


def orphaned(footprint_bytes: int | None) -> tuple[TimedStep, ...]:
    """The sequence for a worker without its gateway: nobody can ask the worker to stop any more."""
    return _whole(_patience_s(footprint_bytes))[1:]


def after_rank_failure(footprint_bytes: int | None) -> tuple[TimedStep, ...]:
    """The sequence for the ranks of a model that has lost a rank. Most ranks notice the loss and
    end at once. A rank that waits for the lost one within a step would wait for ever.
    """
    patience_s = _AFTER_FAILURE_S + _AFTER_FAILURE_S_PER_GB * (footprint_bytes or 0) / 1e9
    return (
        TimedStep(ShutdownStep.TERMINATE, min(patience_s, _LONGEST_AFTER_FAILURE_S)),
        TimedStep(ShutdownStep.KILL, _AFTER_KILL_S),
    )


def immediate() -> tuple[TimedStep, ...]:
    """The sequence for kill by force."""
    return (TimedStep(ShutdownStep.KILL, _AFTER_KILL_S),)


def longest_s() -> float:
    """Seconds that the end of the largest worker may take."""
    return sum(step.deadline_s for step in _whole(_LONGEST_S))


def _patience_s(footprint_bytes: int | None) -> float:
    return min(_LONGEST_S, _SHORTEST_S + _S_PER_GB * (footprint_bytes or 0) / 1e9)


def _whole(patience_s: float) -> tuple[TimedStep, ...]:
    return (
        TimedStep(ShutdownStep.ASK, patience_s),
        TimedStep(ShutdownStep.TERMINATE, patience_s / 2),
        TimedStep(ShutdownStep.KILL, _AFTER_KILL_S),
    )
