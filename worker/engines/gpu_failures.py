"""Failures of the GPU that pass. They end no process: what runs is put aside, and computed anew.

MLX raises such a failure as RuntimeError at the next wait (0.32.0 and later): "[METAL] Command
buffer execution failed: Caused GPU Timeout Error
(00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from worker.engines.sequence import Engine
from worker.mlx_lm.wiring import synchronize

_KIND: Final = re.compile(r"CommandBufferCallbackError(\w+)")
# A command took too long, made the screen wait, or was there when another process's command was
# given up. Other failures come again, as an address that isn't mapped; and after ignored
# submissions all commands fail.
_PASSING: Final = frozenset({"Timeout", "ImpactingInteractivity", "InnocentVictim"})


def passing_kind(error: BaseException) -> str | None:
    """The kind of a failure after which this process can go on; None: it is none of these."""
    found = _KIND.search(str(error)) if isinstance(error, RuntimeError) else None
    return found[1] if found is not None and found[1] in _PASSING else None


logger = logging.getLogger("worker")

# So many failures within so long don't pass: another process may do better.
_MOST: Final = 8
_WITHIN_S: Final = 600.0
# One of each stream, and some more.
_MOST_ECHOES: Final = 4


class GpuRecovery:
    """Has one engine begin anew after a failure."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=_MOST)

    def recover(self, error: RuntimeError) -> None:
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
    """Wait until the commands that depended on the failed one have failed too: each says so at a
    wait.
    """
    for _ in range(_MOST_ECHOES):
        try:
            synchronize()
        except RuntimeError as echo:
            if passing_kind(echo) is None:
                raise
        else:
            return
