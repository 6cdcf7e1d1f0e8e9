"""What one request has waited for. No I/O; the caller brings the time."""

from __future__ import annotations

from msgspec import Struct


class Timing(Struct):
    """In seconds: `queue_s` until a worker had it for the first time, `first_token_s` until its
    first token, both from its arrival. The other times are on the caller's clock.
    """

    arrived_at: float
    queue_s: float | None = None
    first_token_s: float | None = None
    last_token_at: float | None = None
