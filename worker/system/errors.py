"""Errors of a load, of one request and of the GPU, and the recovery from GPU failures that pass.

MLX (0.32.0 and later) raises a GPU failure as RuntimeError when the program waits for the GPU next:
"[METAL] Command buffer execution failed: Caused GPU Timeout Error
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
# MLX raises RuntimeError also for what it can't compute at all, which stays so.
_LASTING: Final = re.compile(
    r"not (?:yet )?(?:supported|implemented)|no \w+ (?:implementation|back-end)|only supports"
    r"|unsupported|NYI",
    re.IGNORECASE,
)
_KIND: Final = re.compile(r"CommandBufferCallbackError(\w+)")
# The kinds of GPU failures that pass. In this order: a command took too long, made the screen wait,
# or was given up together with a command of another process. Other kinds don't pass: an address
# that isn't mapped fails again, and after ignored submissions all commands fail.
_PASSING: Final = frozenset({"Timeout", "ImpactingInteractivity", "InnocentVictim"})
# After so many failures within this time the process ends: a new process may do better.
_MOST_FAILURES: Final = 8
_WITHIN_S: Final = 600.0
# The most failures that one failed command causes: one for each of MLX's streams, and some more.
_MOST_ECHOES: Final = 4


class ModelError(Exception):
    """A model can't be loaded. `reason` is one sentence. `permanent`: another load fails too, until
    the model's files change.
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
    """A request can't be run. `message` is a sentence for the client. `field` is the field of the
    request that is to blame, and `picture` the number of the picture that is.
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

    def as_message(self, request_id: str) -> RequestFailed:
        """The error as a message to the gateway."""
        return RequestFailed(
            request_id=request_id,
            code=self.code,
            message=self.message,
            field=self.field,
            picture=self.picture,
        )


def passing_kind(error: BaseException) -> str | None:
    """The kind of a GPU failure that passes; None for any other error."""
    match = _KIND.search(str(error)) if isinstance(error, RuntimeError) else None
    return match[1] if match is not None and match[1] in _PASSING else None


def may_pass(error: Exception) -> bool:
    """Whether another attempt may succeed: memory was exhausted, a read failed, or the GPU was
    gone.
    """
    if isinstance(error, MemoryError):
        return True
    # Python's own kinds of RuntimeError tell of a program or of its input.
    return type(error) is RuntimeError and _LASTING.search(str(error)) is None


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
