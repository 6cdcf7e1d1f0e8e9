"""Responses as the mailbox keeps them."""

from __future__ import annotations

import msgspec

from gateway.http.answer import DONE
from gateway.http.responses.shape import ErrorBody, ResponseObject, decode
from gateway.http.responses.writer import Form, ResponseFormat, lifecycle_event
from gateway.mailbox.entry import AnswerOutcome, Status
from gateway.requests.choices import Format
from gateway.requests.request import Request
from gateway.system.refusal import Refusal


class ResponseFamily:
    def form(self, form: bytes, request: Request, first_number: int) -> Format:
        return ResponseFormat(Form.decode(form), request, first_number=first_number, announced=True)

    def failure(self, body: bytes, refusal: Refusal) -> AnswerOutcome:
        response = decode(body)
        response.error = ErrorBody.of(refusal)
        return _ended(response, "failed")

    def cancellation(self, body: bytes) -> AnswerOutcome:
        return _ended(decode(body), "cancelled")

    def first_events(self, body: bytes, number: int) -> bytes:
        return lifecycle_event("created", body, number) + lifecycle_event(
            "queued", body, number + 1
        )

    def last_event(self, outcome: AnswerOutcome, number: int) -> bytes:
        # OpenAI has no event for one that was cancelled.
        what = "failed" if outcome.status == "failed" else "incomplete"
        return lifecycle_event(what, outcome.body, number) + DONE


def _ended(response: ResponseObject, status: Status) -> AnswerOutcome:
    response.status = status
    return AnswerOutcome(status, 200, msgspec.json.encode(response))
