"""The recovery of an engine from GPU failures that pass."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from worker.mlx_lm.macos import synchronize
from worker.system.errors import passing_kind

logger = logging.getLogger("worker")

# After so many failures within this time the process ends: a new process may do better.
_MOST_FAILURES: Final = 8
_WITHIN_S: Final = 600.0
# The most failures that one failed command causes: one for each of MLX's streams, and some more.
_MOST_ECHOES: Final = 4


class GpuRecovery:
    """Has an engine begin anew after a GPU failure that passes, so that the process needn't end."""

    def __init__(
        self, recompute_all: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`recompute_all` is the engine's method; it returns False if the engine can't."""
        self._recompute_all = recompute_all
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=_MOST_FAILURES)

    def recover(self, error: RuntimeError) -> None:
        """Have the engine begin anew.

        Raises:
            RuntimeError: `error` itself, if it doesn't pass, if failures come too often, or if the
                engine can't begin anew; another error, if the GPU fails again meanwhile.
        """
        kind = passing_kind(error)
        now = self._clock()
        often = len(self._failures) == _MOST_FAILURES and now - self._failures[0] < _WITHIN_S
        if kind is None or often:
            raise error
        self._failures.append(now)
        _await_echoes()
        if not self._recompute_all():
            raise error
        logger.warning(
            "The GPU gave up a command (%s). All sequences are computed anew, in shorter chunks.",
            kind,
        )


def _await_echoes() -> None:
    """Wait until the commands that depended on the failed command have failed, too. Each of these
    failures is raised by another wait.
    """
    for _ in range(_MOST_ECHOES):
        try:
            synchronize()
        except RuntimeError as echo:
            if passing_kind(echo) is None:
                raise
        else:
            return
