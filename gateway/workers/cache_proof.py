"""What the workers of a model have proven of its prompt cache."""

from __future__ import annotations

import time
from typing import Final

from msgspec import Struct

from gateway.workers.cache_failures import CacheFailures
from protocol.life import MOST_CACHE_FAILURES, CacheProven, CacheQuarantined

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

    def __init__(self, model_id: str, failures: CacheFailures) -> None:
        """`failures` has those that earlier gateways recorded."""
        self._model_id = model_id
        self._failures = failures
        self.state: CacheProofState | None = None
        if self.failures:
            self._touched().off = _WRONG if self.failures >= MOST_CACHE_FAILURES else ""
        self.quarantined_blocks = 0

    @property
    def proven_tokens(self) -> int:
        return 0 if self.state is None else self.state.proven_tokens

    @property
    def failures(self) -> int:
        return self._failures.of(self._model_id)

    def record_proven(self, message: CacheProven) -> None:
        state = self._touched()
        state.proven_tokens += message.tokens
        state.proven_blocks += message.blocks
        self._failures.record(self._model_id, self.failures + message.failures)
        state.failures = self.failures
        if message.off:
            state.off = _WRONG

    def record_quarantined(self, message: CacheQuarantined) -> None:
        self.quarantined_blocks += message.blocks
        self._touched().quarantined_blocks += message.blocks

    def clear(self) -> None:
        """Forget what was wrong: the cache is empty."""
        self._failures.record(self._model_id, 0)
        if self.state is not None:
            self.state.quarantined_blocks = self.state.failures = 0
            self.state.off = ""

    def _touched(self) -> CacheProofState:
        if self.state is None:
            self.state = CacheProofState(failures=self.failures, last_at=time.time())
        self.state.last_at = time.time()
        return self.state
