"""Failures: of a load, of one request, and of the GPU, which may pass.

MLX raises a failure of the GPU as RuntimeError at the next wait (0.32.0 and later): "[METAL]
Command buffer execution failed: Caused GPU Timeout Error
(00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from protocol.answers import RequestErrorCode, RequestFailed, RequestField
from worker.mlx_lm.macos import synchronize

logger = logging.getLogger("worker")

_LONGEST_REASON: Final = 500
_KIND: Final = re.compile(r"CommandBufferCallbackError(\w+)")
# A command took too long, made the screen wait, or was there when another process's command was
# given up. Other failures come again, such as an address that isn't mapped; and after ignored
# submissions all commands fail.
_PASSING: Final = frozenset({"Timeout", "ImpactingInteractivity", "InnocentVictim"})
# So many failures within so long don't pass: another process may do better.
_MOST_FAILURES: Final = 8
_WITHIN_S: Final = 600.0
# One of each stream, and some more.
_MOST_ECHOES: Final = 4


class ModelError(Exception):
    """A model can't be loaded, for a reason in one sentence. `permanent`: until its files
    change.
    """

    def __init__(self, reason: str, *, permanent: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.permanent = permanent


class LoadAbandonedError(Exception):
    """The worker was told to stop during the load."""


def one_sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if not text or isinstance(error, KeyError | TypeError | AttributeError):
        text = f"{type(error).__name__} {text}".strip()
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"


class PromptError(Exception):
    """A request that can't be run, with a code and a sentence for its client. `field` is the field
    of the request that is to blame, and `picture` the number of a picture.
    """

    def __init__(
        self,
        code: RequestErrorCode,
        message: str,
        field: RequestField | None = None,
        picture: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.picture = picture

    def told(self, request_id: str) -> RequestFailed:
        """As a message to the gateway."""
        return RequestFailed(
            request_id=request_id,
            code=self.code,
            message=self.message,
            field=self.field,
            picture=self.picture,
        )


def passing_kind(error: BaseException) -> str | None:
    """The kind of a failure of the GPU after which this process can go on; None: any other
    error.
    """
    found = _KIND.search(str(error)) if isinstance(error, RuntimeError) else None
    return found[1] if found is not None and found[1] in _PASSING else None


class GpuRecovery:
    """Has an engine begin anew after a failure of the GPU, instead of ending the process."""

    def __init__(
        self, begin_anew: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`begin_anew` is the engine's; it is False if the engine can't."""
        self._begin_anew = begin_anew
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=_MOST_FAILURES)

    def recover(self, error: RuntimeError) -> None:
        """Have the engine begin anew.

        Raises:
            RuntimeError: the same error, if a new beginning can't help; or another one on the way.
        """
        kind = passing_kind(error)
        now = self._clock()
        often = len(self._failures) == _MOST_FAILURES and now - self._failures[0] < _WITHIN_S
        if kind is None or often:
            raise error
        self._failures.append(now)
        _settle()
        if not self._begin_anew():
            raise error
        logger.warning(
            "The GPU gave up a command (%s). All sequences are computed anew, in shorter chunks.",
            kind,
        )


def _settle() -> None:
    """Wait until the commands that depended on the failed one have failed too. Each raises its
    failure at a wait.
    """
    for _ in range(_MOST_ECHOES):
        try:
            synchronize()
        except RuntimeError as echo:
            if passing_kind(echo) is None:
                raise
        else:
            return
