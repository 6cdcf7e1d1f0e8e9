"""Why a model can't be loaded, and why a request can't be run."""

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
