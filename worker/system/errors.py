"""Errors of a load, of one request and of the GPU.

MLX (0.32.0 and later) raises a GPU failure as RuntimeError when the program waits for the GPU next:
"[METAL] Command buffer execution failed: Caused GPU Timeout Error
(00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
"""

from __future__ import annotations

import re
from typing import Final

from protocol.answers import RequestErrorCode, RequestFailed, RequestField

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
