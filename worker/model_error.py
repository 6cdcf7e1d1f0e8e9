"""Why a model can't be loaded."""

from __future__ import annotations

from typing import Final

_LONGEST_REASON: Final = 500


class ModelError(Exception):
    """Why a model can't be loaded, in one sentence. `permanent` until its files change."""

    def __init__(self, reason: str, *, permanent: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.permanent = permanent


class LoadAbandonedError(Exception):
    """The worker was told to stop in mid-load."""


def one_sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if not text or isinstance(error, KeyError | TypeError | AttributeError):
        text = f"{type(error).__name__} {text}".strip()
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"
