"""What is counted of one model's requests while they run. No I/O; the caller brings the time."""

from __future__ import annotations

from typing import Final

from gateway.requests.timing import Timing
from gateway.system.tasks import Histogram

# In seconds, as all of these. A prompt that is found again takes milliseconds, a long one minutes.
FIRST_TOKEN_S: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
    *(2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0),
)
BETWEEN_TOKENS_S: Final = (
    *(0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
QUEUE_S: Final = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
LOAD_S: Final = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


class ModelMeter:
    """`prompt_tokens` are those of prompts whose answer has begun, `generated_tokens` those that
    came; `parked` and `resumed` count requests that lost their worker, and that went on.

    Who asks only whether the model works isn't counted.
    """

    def __init__(self) -> None:
        self.first_token_s = Histogram(FIRST_TOKEN_S)
        self.between_tokens_s = Histogram(BETWEEN_TOKENS_S)
        self.queue_s = Histogram(QUEUE_S)
        self.load_s = Histogram(LOAD_S)
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.parked = 0
        self.resumed = 0

    def sent(self, timing: Timing, now: float) -> None:
        """A worker has it."""
        if timing.queue_s is None:
            timing.queue_s = now - timing.arrived_at
            self.queue_s.observe(timing.queue_s)

    def tokens(self, timing: Timing, count: int, now: float) -> None:
        """So many more of an answer have come, at once: they share the time since the last ones."""
        self.generated_tokens += count
        if timing.last_token_at is None:
            timing.first_token_s = now - timing.arrived_at
            self.first_token_s.observe(timing.first_token_s)
        else:
            self.between_tokens_s.observe((now - timing.last_token_at) / count, count)
        timing.last_token_at = now
