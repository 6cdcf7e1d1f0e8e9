"""The common part of both engines: the queue of sequences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from math import inf

from worker.engines.keeper import PromptKeeper
from worker.engines.room import CacheRoom
from worker.engines.row import SequenceRow
from worker.engines.sequence import EngineNeed, Sequence, SpoiltSequence
from worker.engines.turns import SharerSeconds, Turns
from worker.prompt_cache.cache import PromptCache


class QueuedEngine(ABC):
    """The queue of an engine, in which sequences wait until there is memory for them."""

    # A sequence that begins needs room for so many tokens beyond its own.
    ahead_tokens: int

    def __init__(self, room: CacheRoom, prompt_cache: PromptCache | None) -> None:
        self._room = room
        self._keeper = None if prompt_cache is None else PromptKeeper(prompt_cache, room)
        self._waiting: deque[Sequence] = deque()
        self._turns = Turns()
        # The numbers of the turns of waiting sequences that haven't begun before.
        self._numbers: dict[str, float] = {}
        self._costs = SharerSeconds()
        self._spoilt: list[SpoiltSequence] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def fetching(self) -> bool:
        return self._keeper is not None and self._keeper.fetching

    @property
    def need(self) -> EngineNeed:
        rows = self._rows_need()
        return rows if self._keeper is None else self._keeper.beside(rows)

    @abstractmethod
    def _rows_need(self) -> EngineNeed:
        """The needs of the sequences, without the prompt cache."""

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait, by its priority and then by the turn of its sharer."""
        number = self._turns.reserve(sequence.sharer, sequence.share, len(sequence.token_ids))
        self._numbers[sequence.request_id] = number
        place = len(self._waiting)
        while place and self._order(self._waiting[place - 1]) > self._order(sequence):
            place -= 1
        self._waiting.insert(place, sequence)

    def _order(self, sequence: Sequence) -> tuple[int, float]:
        return -sequence.priority, self._numbers.get(sequence.request_id, -inf)

    def _remove_from_queue(self, sequence: Sequence) -> None:
        """Take a sequence out of the queue, as it begins."""
        self._waiting.remove(sequence)
        if (number := self._numbers.pop(sequence.request_id, None)) is not None:
            self._turns.start(number)

    def collect_costs(self) -> dict[str, float]:
        return self._costs.collect()

    def remove_hopeless(self) -> list[Sequence]:
        hopeless = [
            waiting
            for waiting in self._waiting
            if not self._room.could_hold(len(waiting.token_ids) + self.ahead_tokens)
        ]
        if hopeless:
            self._forget({waiting.request_id for waiting in hopeless})
        return hopeless

    def _retry_cold(self, row: SequenceRow) -> None:
        """Have the sequence of a row whose logits weren't valid go on without cached blocks, unless
        it did so already. Its blocks that may be to blame are not found any more.
        """
        goes_on = not row.sequence.cold
        if goes_on:
            self._add_first(row.sequence.rest(row.generated).as_cold())
        blocks = 0 if self._keeper is None else self._keeper.quarantine_row(row)
        self._spoilt.append(SpoiltSequence(row.sequence.request_id, goes_on, blocks))

    def collect_spoilt(self) -> list[SpoiltSequence]:
        spoilt, self._spoilt = self._spoilt, []
        return spoilt

    def clear_prompts(self) -> int:
        return 0 if self._keeper is None else self._keeper.cache.clear()

    def _add_first(self, sequence: Sequence) -> None:
        """Put a sequence that has run already before the waiting sequences of its priority."""
        place = 0
        while place < len(self._waiting) and self._waiting[place].priority > sequence.priority:
            place += 1
        self._waiting.insert(place, sequence)

    def _forget(self, request_ids: set[str]) -> None:
        """Drop these requests from the queue, and give up reading their blocks."""
        self._waiting = deque(
            waiting for waiting in self._waiting if waiting.request_id not in request_ids
        )
        for request_id in request_ids:
            self._numbers.pop(request_id, None)
        if self._keeper is not None:
            self._keeper.forget(request_ids)
