"""What engines take and give."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from protocol.messages import FinishReason
from worker.engines.need import Need
from worker.sampling.processors import LogitsProcessor
from worker.sampling.settings import RowSampling


@dataclass(frozen=True)
class Sequence:
    """A request ready for the engine. `sampling` None is greedy."""

    request_id: str
    token_ids: list[int]
    max_tokens: int
    sampling: RowSampling | None
    ignore_eos: bool
    priority: int = 0
    processors: tuple[LogitsProcessor, ...] = ()

    def rest(self, generated: list[int]) -> Sequence:
        """What is left to do for another turn in an engine."""
        done = len(generated)
        return replace(
            self,
            token_ids=self.token_ids + generated,
            max_tokens=self.max_tokens - done,
            # mlx-lm samples a step ahead of what it gives out.
            sampling=None if self.sampling is None else self.sampling.again_after(done),
        )


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
    def need(self) -> Need:
        """What it could use of memory."""

    @property
    def short(self) -> bool:
        """Sequences wait for memory alone."""

    def make_room(self) -> None:
        """Put aside what is beyond the limit, to be computed anew when there is room."""

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
