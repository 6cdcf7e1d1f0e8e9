"""Why a request can't be run."""

from __future__ import annotations

from protocol.messages import RequestErrorCode, RequestField


class PromptError(Exception):
    """A request that can't be run, with the code and sentence for its client."""

    def __init__(
        self, code: RequestErrorCode, message: str, field: RequestField | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
