"""Why a model can't be loaded."""

from __future__ import annotations

from typing import Final

from protocol.answers import RequestErrorCode, RequestFailed, RequestField

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


class PromptError(Exception):
    """A request that can't be run, with the code and sentence for its client; a field of the
    request is to blame, or a picture, by its number.
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
        """As the gateway hears of it."""
        return RequestFailed(
            request_id=request_id,
            code=self.code,
            message=self.message,
            field=self.field,
            picture=self.picture,
        )
