"""What a worker has said of itself, and what follows from when it said so."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from gateway.workers.worker_memory import WorkerMemory
from protocol.answers import Embedded, Output
from protocol.life import Ability, Heartbeat, Ready
from protocol.memory import Need
from protocol.messages import WorkerMessage
from protocol.requests import SamplingDefaults

# Orders to let go of prompts that a worker hasn't answered yet.
_MOST_CLEARS: Final = 16


class WorkerReport:
    """By its last word. Once the model is loaded: `fingerprint`, `abilities` and `sampling` are the
    model's, `context_tokens` those in force. `short_of_memory` counts requests in it that wait for
    memory alone. `tokens_per_s` is of the last window.
    """

    def __init__(self, memory: WorkerMemory) -> None:
        self.context_tokens: int | None = None
        self.short_of_memory = 0
        self.fingerprint: str | None = None
        self.abilities: tuple[Ability, ...] = ("text",)
        self.sampling = SamplingDefaults()
        self.tokens_per_s: float | None = None
        self._memory = memory
        self._loop = asyncio.get_running_loop()
        self._last_step_at: float | None = None
        self._tokens = 0
        self._tokens_counted_at = self._loop.time()

    @property
    def last_step_age_s(self) -> float | None:
        return None if self._last_step_at is None else self._loop.time() - self._last_step_at

    def note(self, message: WorkerMessage) -> None:
        match message:
            case Output(deltas=deltas):
                self._note_step(sum(len(delta.token_ids) for delta in deltas))
            case Embedded(tokens=tokens):
                self._note_step(tokens)
            case Heartbeat(step_age_s=age_s, memory=memory, prompt_cache_bytes=prompt_bytes):
                self._memory.heard(memory, prompt_bytes)
                if age_s is not None:
                    self._last_step_at = self._loop.time() - age_s
            case Ready():
                self._memory.loaded(message.weight_bytes, message.memory)
                self.context_tokens = message.context_tokens
                self.fingerprint = message.fingerprint
                self.abilities = message.abilities
                self.sampling = message.sampling
            case Need(context_tokens=context_tokens, held=held):
                self.context_tokens = context_tokens
                self.short_of_memory = held
            case _:
                pass

    def count_tokens(self) -> None:
        """Close one window of the tokens-per-second figure."""
        now = self._loop.time()
        self.tokens_per_s = self._tokens / max(now - self._tokens_counted_at, 1e-3)
        self._tokens, self._tokens_counted_at = 0, now

    def _note_step(self, tokens: int) -> None:
        self._last_step_at = self._loop.time()
        self._tokens += tokens


class PromptClears:
    """Orders to let go of prompts in memory, which a worker answers one after the other."""

    def __init__(self, unanswered: int = 0) -> None:
        """So many were given by an earlier gateway."""
        loop = asyncio.get_running_loop()
        self._answers: deque[asyncio.Future[int]] = deque(
            loop.create_future() for _ in range(unanswered)
        )

    def __len__(self) -> int:
        return len(self._answers)

    def order(self) -> asyncio.Future[int] | None:
        """The answer to an order that is about to be sent; None: too many have none yet."""
        if len(self._answers) >= _MOST_CLEARS:
            return None
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        return answer

    def answered(self, reclaimed_bytes: int) -> bool:
        """Whether there was an order for this."""
        if not self._answers:
            return False
        self._answers.popleft().set_result(max(0, reclaimed_bytes))
        return True

    def close(self) -> None:
        """The worker has ended: its memory is free."""
        while self._answers:
            self._answers.popleft().set_result(0)
