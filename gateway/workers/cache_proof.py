"""What the workers of a model have proven of its prompt cache."""

from __future__ import annotations

import time
from typing import Final

from msgspec import Struct

from protocol.life import CacheProven, CacheQuarantined

_WRONG: Final = (
    "cached prompts were found to be wrong more than once: a clear of the prompt cache "
    "turns it on again"
)


class CacheProofState(Struct, kw_only=True):
    """What was proven since the gateway's start, and found to be wrong since the last clear.
    `proven_tokens` were computed anew, and the bytes of `proven_blocks` compared. `failures` counts
    the times that blocks were wrong. `off` says why the model goes on without a prompt cache, if it
    does. `last_at` is a Unix time in seconds.
    """

    proven_tokens: int = 0
    proven_blocks: int = 0
    quarantined_blocks: int = 0
    failures: int = 0
    off: str = ""
    last_at: float


class CacheProof:
    """The record of a model, which outlives its workers. `state` None: there is nothing to tell.
    `quarantined_blocks` counts all since the gateway's start.
    """

    def __init__(self) -> None:
        self.state: CacheProofState | None = None
        self.quarantined_blocks = 0

    @property
    def proven_tokens(self) -> int:
        return 0 if self.state is None else self.state.proven_tokens

    @property
    def failures(self) -> int:
        return 0 if self.state is None else self.state.failures

    def record_proven(self, message: CacheProven) -> None:
        state = self._touched()
        state.proven_tokens += message.tokens
        state.proven_blocks += message.blocks
        state.failures += message.failures
        if message.off:
            state.off = _WRONG

    def record_quarantined(self, message: CacheQuarantined) -> None:
        self.quarantined_blocks += message.blocks
        self._touched().quarantined_blocks += message.blocks

    def clear(self) -> None:
        """Forget what was wrong: the cache is empty."""
        if self.state is not None:
            self.state.quarantined_blocks = self.state.failures = 0
            self.state.off = ""

    def _touched(self) -> CacheProofState:
        if self.state is None:
            self.state = CacheProofState(last_at=time.time())
        self.state.last_at = time.time()
        return self.state
