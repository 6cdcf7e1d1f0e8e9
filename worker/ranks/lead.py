"""Rank 0's side: what it does to batches and to kept prompts is told first."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from worker.mlx_lm.generator import Generator, LogitsProcessor, RowCaches, Sampler, Stepped, Tap
from worker.prompt_cache.blocks import Block, Cutter
from worker.ranks.links import LeaderLink
from worker.ranks.orders import (
    Close,
    Cut,
    Forget,
    Insert,
    Join,
    Open,
    Order,
    Place,
    Remove,
    Snapshot,
    Step,
    Take,
    Trim,
)
from worker.ranks.tokens import leading


class Lead:
    """Tells the followers. Everything is called by the engine thread."""

    def __init__(self, link: LeaderLink, group: Any) -> None:
        self._link = link
        self._group = group
        # The next one, of batches and of what is kept.
        self._number = 1
        self._generators: dict[int, LeadingGenerator] = {}
        # Of blocks and snapshots, by their identity: they are compared by nothing else.
        self._kept: dict[int, int] = {}
        self._forgotten: list[int] = []
        # Caches that were joined, until a row has them.
        self._joined: dict[int, int] = {}

    def tell(self, order: Order) -> None:
        if self._forgotten:
            forgotten, self._forgotten = self._forgotten, []
            self._link.tell(Forget(forgotten))
        self._link.tell(order)

    def rest(self) -> None:
        """Nothing is to be computed for now: what is not kept any more can go."""
        if self._forgotten:
            self.tell(Trim())

    def take(self, limit_bytes: int, beside_bytes: int) -> None:
        self.tell(Take(limit_bytes, beside_bytes))

    def generator(self, tap: Tap, sampler: Sampler, rows: int, prompts: int) -> LeadingGenerator:
        number = self.next_numbers(1)
        self.tell(Open(number, rows, prompts))
        sampler = leading(sampler, self._group)
        made = LeadingGenerator(self, number, tap, sampler, rows, prompts)
        self._generators[number] = made
        return made

    def closed(self, number: int) -> None:
        if self._generators.pop(number, None) is not None:
            self.tell(Close(number))

    def joined(self, caches: list[Any] | None) -> int | None:
        """The number of caches that were made of what is kept."""
        return None if caches is None else self._joined.pop(id(caches), None)

    # Of what is kept

    def place(self, caches: list[Any], row: int) -> Place:
        """Where mlx-lm has these.

        Raises:
            RuntimeError: nowhere.
        """
        for number, each in self._generators.items():
            if (found := each.place(caches, row)) is not None:
                return Place(number, *found)
        raise RuntimeError("A row is to be kept that is in no batch.")

    def next_numbers(self, count: int) -> int:
        """The first of so many that nothing else has."""
        first = self._number
        self._number += count
        return first

    def keep(self, blocks: Sequence[Block], number: int) -> None:
        """These have numbers from this one on."""
        for at, block in enumerate(blocks, start=number):
            self._kept[id(block)] = at
            weakref.finalize(block, self._forget, id(block)).atexit = False

    def number_of(self, block: Block) -> int:
        return self._kept[id(block)]

    def note_joined(self, caches: list[Any], number: int) -> None:
        self._joined[id(caches)] = number

    def _forget(self, identity: int) -> None:
        self._forgotten.append(self._kept.pop(identity))


class LeadingGenerator(Generator):
    """A batch in all ranks."""

    def __init__(
        self, lead: Lead, number: int, tap: Tap, sampler: Sampler, rows: int, prompts: int
    ) -> None:
        super().__init__(tap, sampler, rows, prompts, lends=False)
        self._lead = lead
        self._number = number
        # Of rows that ended with the last step.
        self._ended: dict[int, RowCaches] = {}

    def insert(
        self,
        segments: list[list[int]],
        max_tokens: int,
        stop_token_ids: Sequence[int],
        caches: list[Any] | None = None,
        seen: list[int] | None = None,
        processors: Sequence[LogitsProcessor] = (),
    ) -> int:
        joined = self._lead.joined(caches)
        self._lead.tell(Insert(self._number, segments, max_tokens, list(stop_token_ids), joined))
        return super().insert(segments, max_tokens, stop_token_ids, caches, seen, processors)

    def remove(self, rows: list[int]) -> None:
        self._lead.tell(Remove(self._number, rows))
        super().remove(rows)

    def step(self, chunk: int = 0, *, watched: bool = False) -> Stepped:
        self._lead.tell(Step(self._number, chunk, watched))
        stepped = super().step(chunk, watched=watched)
        finish_step(self.tap, watched=watched)
        self._ended = stepped.ended
        return stepped

    def close(self) -> None:
        super().close()
        self._lead.closed(self._number)

    def place(self, caches: list[Any], row: int) -> Any:
        if caches is self.answer_caches:
            return "answer", row
        if caches is self.prompt_caches:
            return "prompt", row
        own = (("ended", uid) for uid, each in self._ended.items() if each.caches is caches)
        return next(own, None)


def finish_step(tap: Tap, *, watched: bool) -> None:
    """Whoever looks at a prompt's logits has the last layer's collective operations done, which
    nobody needs otherwise: then all ranks have to.
    """
    if watched and tap.last is not None:
        mx.eval(tap.last)


class LeadingCutter(Cutter):
    """Blocks are cut in all ranks, and forgotten in all when nobody here refers to them."""

    def __init__(self, lead: Lead, model: Any, make_caches: Callable[[], list[Any]]) -> None:
        super().__init__(model, make_caches)
        self._lead = lead

    def cut(self, caches: list[Any], row: int, first: int, last: int) -> list[Block]:
        number = self._lead.next_numbers(last - first)
        self._lead.tell(Cut(self._lead.place(caches, row), first, last, number))
        blocks = super().cut(caches, row, first, last)
        self._lead.keep(blocks, number)
        return blocks

    def snapshot(self, caches: list[Any], row: int) -> Block:
        number = self._lead.next_numbers(1)
        self._lead.tell(Snapshot(self._lead.place(caches, row), number))
        block = super().snapshot(caches, row)
        self._lead.keep([block], number)
        return block

    def join(self, blocks: Sequence[Block], snapshot: Block | None) -> list[Any]:
        number = self._lead.next_numbers(1)
        kept = [self._lead.number_of(each) for each in blocks]
        of_snapshot = None if snapshot is None else self._lead.number_of(snapshot)
        self._lead.tell(Join(kept, of_snapshot, number))
        caches = super().join(blocks, snapshot)
        self._lead.note_joined(caches, number)
        return caches
