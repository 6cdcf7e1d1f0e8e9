"""What the gateway learns of a request's prompt while workers have it: for the question why the
answer began late.
"""

from __future__ import annotations

from array import array
from typing import Final

from gateway.requests.use import Timing
from protocol.answers import Usage
from protocol.life import PromptCaching
from protocol.message_base import BYTES_PER_TOKEN

# The prompt cache of a worker has blocks of so many tokens.
MARK_TOKENS: Final = 64
_MARK_BYTES: Final = MARK_TOKENS * BYTES_PER_TOKEN


class Trace:
    """The trace of one request. `marks` has a hash of each 64 tokens of the prompt, the last ones
    left out. The worker had the number `incarnation`; 0: no worker had the request yet. `usage` is
    None until the answer has ended.
    """

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.fingerprint = ""
        self.prompts = PromptCaching()
        self.incarnation = 0
        self.prompt_tokens = 0
        self.marks: array[int] = array("q")
        self.usage: Usage | None = None

    def sent(self, fingerprint: str, prompts: PromptCaching, incarnation: int) -> None:
        self.fingerprint, self.prompts, self.incarnation = fingerprint, prompts, incarnation

    def rendered(self, token_ids: bytes) -> None:
        """Note the whole prompt, as packed token ids."""
        self.prompt_tokens = len(token_ids) // BYTES_PER_TOKEN
        last = len(token_ids) - _MARK_BYTES
        self.marks = array(
            "q",
            [
                hash(token_ids[begin : begin + _MARK_BYTES])
                for begin in range(0, last + 1, _MARK_BYTES)
            ],
        )
