"""Why a request can't be run."""

from __future__ import annotations

from protocol.answers import RequestErrorCode, RequestFailed, RequestField


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
