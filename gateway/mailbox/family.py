"""How one API writes down what the mailbox keeps."""

from __future__ import annotations

from typing import Protocol

from gateway.mailbox.entry import Outcome
from gateway.models.choices import Format
from gateway.requests.request import Request
from gateway.system.refusal import Refusal


class Family(Protocol):
    """`body` is that of an answer which isn't there yet. Events have numbers, where the API numbers
    them.
    """

    def form(self, form: bytes, request: Request, first_number: int) -> Format:
        """The writer of an answer that begins now; its next event has this number."""

    def failure(self, body: bytes, refusal: Refusal) -> Outcome:
        """How an answer ends that fails."""

    def cancellation(self, body: bytes) -> Outcome:
        """How an answer ends that its owner has cancelled."""

    def first_events(self, body: bytes, number: int) -> bytes:
        """Of an answer that waits for its turn."""

    def last_event(self, outcome: Outcome, number: int) -> bytes:
        """Of a stream that ends without the rest of its answer."""
