"""Refusals of requests, with the error codes of the HTTP API."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from gateway.system.notation import without_number

Code: TypeAlias = Literal[
    "invalid_request_error",
    "context_length_exceeded",
    "invalid_api_key",
    "permission_denied",
    "model_not_found",
    "not_found",
    "method_not_allowed",
    "request_timeout",
    "request_too_large",
    "unsupported_media_type",
    "queue_full",
    "rate_limit_exceeded",
    "headers_too_large",
    "internal_error",
    "worker_crashed",
    "model_output_invalid",
    "bad_gateway",
    "model_unavailable",
    "load_timeout",
    "overloaded",
    "shutting_down",
    "deadline_exceeded",
    "insufficient_memory",
    "storage_unavailable",
    "hub_unavailable",
    "loop_detected",
]

_STATUS: dict[Code, int] = {
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "invalid_api_key": 401,
    "permission_denied": 403,
    "model_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "request_too_large": 413,
    "unsupported_media_type": 415,
    "queue_full": 429,
    "rate_limit_exceeded": 429,
    "headers_too_large": 431,
    "internal_error": 500,
    "worker_crashed": 500,
    "model_output_invalid": 500,
    "bad_gateway": 502,
    "model_unavailable": 503,
    "load_timeout": 503,
    "overloaded": 503,
    "storage_unavailable": 503,
    "hub_unavailable": 503,
    "shutting_down": 503,
    "deadline_exceeded": 504,
    "insufficient_memory": 507,
    "loop_detected": 508,
}


def status_of(code: Code) -> int:
    """The HTTP status of a code."""
    return _STATUS[code]


class RefusalState(Struct, frozen=True):
    """A refusal as data, to be stored or sent to another process."""

    code: Code
    message: str
    param: str | None
    retry_after_s: int | None
    lasting: bool


class Refusal(Exception):
    """An error for the client: an error code of the HTTP API, and a message.

    `retry_after_s` is None if another try is pointless, or if it isn't known when one would help.
    With `lasting` clients are told not to retry. Official clients otherwise retry after every 5xx.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        lasting: bool = False,
    ) -> None:
        self.message = without_number(message)
        super().__init__(self.message)
        self.code: Code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.lasting = lasting

    @classmethod
    def of(cls, state: RefusalState) -> Refusal:
        return cls(
            state.code,
            state.message,
            param=state.param,
            retry_after_s=state.retry_after_s,
            lasting=state.lasting,
        )

    @property
    def state(self) -> RefusalState:
        return RefusalState(self.code, self.message, self.param, self.retry_after_s, self.lasting)

    def anew(self) -> Refusal:
        """A copy to be raised. A raised exception keeps alive the frames that it went through and
        all their objects, so a refusal that is stored must not be raised itself.
        """
        return Refusal.of(self.state)

    @property
    def status(self) -> int:
        return status_of(self.code)
