"""A failure of the GPU that passes ends no process and is nobody's fault: what runs is put aside,
and computed anew in shorter chunks.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from worker.engines.gpu_failure import passing_kind
from worker.engines.sequence import Engine
from worker.mlx_lm.wiring import synchronize

logger = logging.getLogger("worker")

# So many within so long don't pass: another process may do better.
_MOST: Final = 8
_WITHIN_S: Final = 600.0
# One of each stream, and some more.
_MOST_ECHOES: Final = 4


class Healing:
    """Of one engine."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=_MOST)

    def heal(self, error: RuntimeError) -> None:
        """Have the engine begin anew.

        Raises:
            RuntimeError: the same one, if that can't help; or one that does.
        """
        kind = passing_kind(error)
        now = self._clock()
        often = len(self._failures) == _MOST and now - self._failures[0] < _WITHIN_S
        if kind is None or often:
            raise error
        self._failures.append(now)
        _settle()
        if not self._engine.begin_anew():
            raise error
        logger.warning(
            "The GPU gave up a command (%s). What was running is computed anew, in shorter chunks.",
            kind,
        )


def _settle() -> None:
    """What depended on the command fails as well, and says so wherever it is waited for."""
    for _ in range(_MOST_ECHOES):
        try:
            synchronize()
        except RuntimeError as echo:
            if passing_kind(echo) is None:
                raise
        else:
            return
