"""What engines take and give."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from protocol.messages import FinishReason
from worker.sampling import KeyedSampler


@dataclass(frozen=True)
class Sequence:
    """A request ready for the engine. `sampler` None is greedy."""

    request_id: str
    token_ids: list[int]
    max_tokens: int
    sampler: KeyedSampler | None
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token of one sequence; with "stop" it is the end-of-sequence token."""

    request_id: str
    token_id: int
    finish_reason: FinishReason | None


class Engine(Protocol):
    """Runs sequences. Not thread-safe: the engine thread calls everything."""

    batching: bool

    @property
    def active(self) -> int:
        """Sequences that generate or prefill."""

    @property
    def waiting(self) -> int:
        """Sequences added and not begun."""

    def add(self, sequence: Sequence) -> None: ...

    def remove(self, request_ids: Iterable[str]) -> None:
        """Drop sequences; unknown ids are ignored."""

    def step(self) -> list[Token]:
        """One decoding step of everything that decodes, and one chunk of prefill."""

    def close(self) -> None:
        """Let go of caches and of the model."""
