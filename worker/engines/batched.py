"""Continuous batching with mlx-lm's BatchGenerator, within a limit that changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from mlx_lm.generate import StopSequences

from worker.engines.batch import AHEAD_TOKENS, RowBatch
from worker.engines.need import Need
from worker.engines.room import Batch, Room, largest_chunk
from worker.engines.sequence import Sequence, Token

# Batches that take turns: each turn reads the weights once.
_MOST_BATCHES: Final = 4
# What a step costs beside reading, as bytes that could be read meanwhile.
_STEP_BYTES: Final = 64_000_000
# Memory is asked for so long before rows have grown into it.
_HORIZON_TOKENS: Final = 512


class BatchedEngine:
    """Sequences join and leave batches between steps.

    mlx-lm takes in what it is given, whatever memory that needs. So what doesn't fit is kept here;
    and if the batches outgrow their room, or the room shrinks, rows leave them and are computed
    anew later: those of the lowest priority, and of these the last to come.

    A batch is dense, every row as long as its longest. Where that padding costs more to read in
    each step than reading the weights once more, or would keep a sequence out, rows of like length
    get a batch of their own, and the batches take turns.
    """

    batching = True

    def __init__(
        self,
        model: Any,
        eos_token_ids: Iterable[int],
        max_concurrency: int,
        room: Room,
        weight_bytes: int = 0,
        on_built: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_built` is called after mlx-lm has set limits of its own."""
        self._model = model
        self._until_eos = StopSequences([(token,) for token in eos_token_ids])
        self._max_concurrency = max_concurrency
        self._room = room
        self._worth_bytes = max(weight_bytes, _STEP_BYTES)
        self._on_built = on_built
        self._held: deque[Sequence] = deque()
        self._batches: deque[RowBatch] = deque()

    @property
    def active(self) -> int:
        return sum(len(each) - each.begun_later for each in self._batches)

    @property
    def waiting(self) -> int:
        return len(self._held) + sum(each.begun_later for each in self._batches)

    @property
    def short(self) -> bool:
        """The first that waits has no room; one that has just come may have it."""
        return (
            bool(self._held)
            and self._rows < self._max_concurrency
            and not self._fits(len(self._held[0].token_ids) + AHEAD_TOKENS)
        )

    @property
    def need(self) -> Need:
        sizes = self._sizes()
        used_bytes = self._room.needed_bytes(sizes) if sizes else 0
        rows = [row for batch in self._batches for row in batch.rows]
        free_rows = max(0, self._max_concurrency - len(rows))
        soon = [min(row.tokens + _HORIZON_TOKENS, row.most_tokens) for row in rows]
        soon += [
            min(len(each.token_ids) + _HORIZON_TOKENS, len(each.token_ids) + each.max_tokens)
            for each in list(self._held)[:free_rows]
        ]
        if not soon:
            return Need(0, 0, 0)
        wanted = [Batch(len(soon), max(soon))]
        if len(sizes) > 1:
            wanted = [
                *(Batch(each.rows, each.longest_tokens + _HORIZON_TOKENS) for each in sizes),
                *(Batch(1, each) for each in soon[len(rows) :]),
            ]
        alone = Batch(1, (rows[0].tokens if rows else soon[0]) + AHEAD_TOKENS)
        if self._held:
            first = Batch(1, len(self._held[0].token_ids) + AHEAD_TOKENS)
            if not rows or not self._room.holds([first]):
                # Others may run before it, but it is the one that waits.
                alone = first
        return Need(used_bytes, self._room.needed_bytes(wanted), self._room.needed_bytes([alone]))

    def add(self, sequence: Sequence) -> None:
        """Behind those of its priority."""
        place = len(self._held)
        while place and self._held[place - 1].priority < sequence.priority:
            place -= 1
        self._held.insert(place, sequence)

    def remove(self, request_ids: Iterable[str]) -> None:
        removed = set(request_ids)
        self._held = deque(each for each in self._held if each.request_id not in removed)
        for batch in self._batches:
            batch.remove(removed)

    def step(self) -> list[Token]:
        self.make_room()
        self._take_in()
        if not self._batches:
            return []
        batch = self._batches[0]
        self._batches.rotate(-1)
        others_decode = any(each.decodes for each in self._batches if each is not batch)
        tokens = batch.step(beside_decoding=others_decode)
        if not len(batch) and len(self._batches) > 1:
            self._close(batch)
        return tokens

    def make_room(self) -> None:
        """Put rows aside until the rest is within the limit."""
        while self._rows and not self._room.holds(self._sizes()):
            choices = [(each, *each.least_missed()) for each in self._batches if len(each)]
            batch, uid, _ = min(choices, key=lambda each: each[2].sequence.priority)
            self._hold_first(batch.put_aside(uid))

    def close(self) -> None:
        for batch in list(self._batches):
            self._close(batch)
        del self._model

    @property
    def _rows(self) -> int:
        return sum(len(each) for each in self._batches)

    def _hold_first(self, sequence: Sequence) -> None:
        """It ran already: before those of its priority."""
        place = 0
        while place < len(self._held) and self._held[place].priority > sequence.priority:
            place += 1
        self._held.insert(place, sequence)

    def _sizes(self) -> list[Batch]:
        return [each.size for each in self._batches if len(each)]

    def _take_in(self) -> None:
        while self._held and self._rows < self._max_concurrency:
            batch = self._place(len(self._held[0].token_ids) + AHEAD_TOKENS)
            if batch is None:
                break
            batch.insert(self._held.popleft())
        if not self._rows:
            self._take_in_another()

    def _take_in_another(self) -> None:
        """The first one waits for memory, and nothing runs: one behind it that has room may."""
        for sequence in self._held:
            batch = self._place(len(sequence.token_ids) + AHEAD_TOKENS)
            if batch is not None:
                self._held.remove(sequence)
                batch.insert(sequence)
                return

    def _fits(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens could begin."""
        joined = any(self._room.holds(self._with(each, tokens)) for each in self._batches)
        return joined or self._may_open(tokens)

    def _place(self, tokens: int) -> RowBatch | None:
        """The batch that a sequence of so many tokens should join; None: it has to wait."""
        fitting = [
            (self._padding_bytes(batch.size, tokens), batch)
            for batch in self._batches
            if self._room.holds(self._with(batch, tokens))
        ]
        least_bytes, best = min(fitting, key=lambda each: each[0], default=(0, None))
        if best is not None and least_bytes <= self._worth_bytes:
            return best
        return self._open() if self._may_open(tokens) else best

    def _may_open(self, tokens: int) -> bool:
        alone = [*self._sizes(), Batch(1, tokens)]
        return len(self._batches) < _MOST_BATCHES and self._room.holds(alone)

    def _with(self, batch: RowBatch, tokens: int) -> list[Batch]:
        joined = Batch(len(batch) + 1, max(batch.size.longest_tokens, tokens))
        return [*(each.size for each in self._batches if each is not batch and len(each)), joined]

    def _padding_bytes(self, size: Batch, tokens: int) -> int:
        """What every step would read for nothing if a sequence joined a batch."""
        shape = self._room.shape
        together = shape.batch_bytes(size.rows + 1, max(size.longest_tokens, tokens))
        return together - shape.batch_bytes(*size) - shape.batch_bytes(1, tokens)

    def _open(self) -> RowBatch:
        batch = RowBatch(self._model, self._until_eos, self._max_concurrency, largest_chunk())
        self._on_built()
        self._batches.append(batch)
        return batch

    def _close(self, batch: RowBatch) -> None:
        self._batches.remove(batch)
        batch.close()
        self._on_built()
