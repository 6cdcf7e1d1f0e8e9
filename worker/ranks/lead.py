"""The side of rank 0: it waits for the followers, and tells them each operation on batches and on
cached prompts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import msgspec

from protocol.life import Load
from worker.mlx_lm.decoding_row import RowCaches
from worker.mlx_lm.generator import Generator, NewRow, Sampler, StepResult, Tap
from worker.prompt_cache.blocks import Block, Cutter
from worker.ranks.group import join, split_model, versions
from worker.ranks.links import (
    CloseBatch,
    CutBlocks,
    ForgetBlocks,
    InsertRow,
    JoinBlocks,
    LeaderLink,
    LoadPart,
    OpenBatch,
    RankOrder,
    RemoveRows,
    RowPlace,
    SetLimit,
    StepBatch,
    TakeSnapshot,
    TrimMemory,
)
from worker.system.errors import ModelError


class RankLeader:
    """The load of a model of several ranks, as rank 0 does it. `gather` sets `lead`."""

    lead: Lead

    def __init__(self, command: Load, on_lost: Callable[[int], None]) -> None:
        """Another thread calls `on_lost` with the number of a rank that is lost.

        Raises:
            ModelError: the endpoint can't be bound, or several ranks can't compute such a model.
        """
        if command.ranks is None:
            raise ModelError("A model of one process has no ranks.")
        for key, asked in (
            ("adapter", command.adapter_path),
            ("draft_model", command.draft_path),
            ("pictures", command.pictures),
        ):
            if asked:
                raise ModelError(f"{key}: a model of several ranks can't have that.")
        self._command = command
        self._ranks = command.ranks
        self._on_lost = on_lost
        self._closing = False
        self._group: Any = None
        self._link = LeaderLink(self._ranks, self._lost)

    def gather(self, should_stop: Callable[[], bool]) -> None:
        """Wait for the followers, order them to load, and make a group with them.

        Raises:
            ModelError, LoadAbandonedError.
        """
        self._link.gather(versions(), should_stop)
        # Followers don't need the keys of the channels.
        ranks = msgspec.structs.replace(self._ranks, keys=(b"", b""))
        self._link.send(LoadPart(msgspec.structs.replace(self._command, ranks=ranks)))
        self._group = join(self._ranks, 0)
        self.lead = Lead(self._link, self._group)

    def part(self, model: Any, config: dict[str, Any]) -> None:
        """Reduce a model to the part of rank 0. Raises: ModelError."""
        split_model(model, config, self._group, self._ranks.split)

    def until_loaded(self, should_stop: Callable[[], bool]) -> None:
        """Wait until all followers have their parts. Raises: ModelError, LoadAbandonedError."""
        self._link.until_loaded(should_stop)

    def close(self) -> None:
        """End the followers, and close the channels."""
        self._closing = True
        self._link.finish()
        self._link.close()

    def _lost(self, rank: int) -> None:
        if not self._closing:
            self._on_lost(rank)


class Lead:
    """Tells the followers all operations of rank 0. Only the engine thread calls the methods."""

    def __init__(self, link: LeaderLink, group: Any) -> None:
        self._link = link
        self._group = group
        # The next number for a batch, a block or a snapshot.
        self._number = 1
        self._generators: dict[int, LeadingGenerator] = {}
        # The numbers of blocks and snapshots, by the identity of these objects.
        self._numbers: dict[int, int] = {}
        self._forgotten: list[int] = []
        # The numbers of joined caches, by the identity of these lists, until a row gets them.
        self._joined: dict[int, int] = {}

    def send(self, order: RankOrder) -> None:
        if self._forgotten:
            forgotten, self._forgotten = self._forgotten, []
            self._link.send(ForgetBlocks(forgotten))
        self._link.send(order)

    def rest(self) -> None:
        """Have the followers drop blocks that rank 0 has dropped, while nothing is computed."""
        if self._forgotten:
            self.send(TrimMemory())

    def set_limit(self, limit_bytes: int, beside_bytes: int) -> None:
        self.send(SetLimit(limit_bytes, beside_bytes))

    def generator(self, tap: Tap, sampler: Sampler, rows: int, prompts: int) -> LeadingGenerator:
        number = self.next_numbers(1)
        self.send(OpenBatch(number, rows, prompts))
        sampler = leading(sampler, self._group)
        generator = LeadingGenerator(self, number, tap, sampler, rows, prompts)
        self._generators[number] = generator
        return generator

    def close_batch(self, number: int) -> None:
        if self._generators.pop(number, None) is not None:
            self.send(CloseBatch(number))

    def joined(self, caches: list[Any] | None) -> int | None:
        """The number of these caches, if they were joined from blocks; None: the row gets new
        caches.
        """
        return None if caches is None else self._joined.pop(id(caches), None)

    def place(self, caches: list[Any], row: int) -> RowPlace:
        """Where followers find the caches of a row. `row` is the index of the row in `caches`.

        Raises:
            RuntimeError: no batch has these caches.
        """
        for number, generator in self._generators.items():
            if (place := generator.place(caches, row)) is not None:
                return RowPlace(number, *place)
        raise RuntimeError("A row is to be cached that is in no batch.")

    def next_numbers(self, count: int) -> int:
        """Reserve so many numbers; returns the first."""
        first = self._number
        self._number += count
        return first

    def number_blocks(self, blocks: Sequence[Block], number: int) -> None:
        """Number these blocks, beginning with `number`. Followers drop a block after rank 0 has
        dropped it.
        """
        for block_number, block in enumerate(blocks, start=number):
            self._numbers[id(block)] = block_number
            weakref.finalize(block, self._forget, id(block)).atexit = False

    def number_of(self, block: Block) -> int:
        return self._numbers[id(block)]

    def record_joined(self, caches: list[Any], number: int) -> None:
        self._joined[id(caches)] = number

    def _forget(self, identity: int) -> None:
        self._forgotten.append(self._numbers.pop(identity))


class LeadingGenerator(Generator):
    """A batch of rank 0 whose operations the followers repeat."""

    def __init__(
        self, lead: Lead, number: int, tap: Tap, sampler: Sampler, rows: int, prompts: int
    ) -> None:
        super().__init__(tap, sampler, rows, prompts, lends=False)
        self._lead = lead
        self._number = number
        # The caches of rows that ended with the last step.
        self._ended: dict[int, RowCaches] = {}

    def insert(self, row: NewRow) -> int:
        joined, ends = self._lead.joined(row.caches), list(row.stop_token_ids)
        self._lead.send(InsertRow(self._number, row.segments, row.max_tokens, ends, joined))
        return super().insert(row)

    def remove(self, rows: list[int]) -> None:
        self._lead.send(RemoveRows(self._number, rows))
        super().remove(rows)

    def step(self, chunk: int = 0, *, watched: bool = False) -> StepResult:
        self._lead.send(StepBatch(self._number, chunk, watched))
        stepped = super().step(chunk, watched=watched)
        finish_step(self.tap, watched=watched)
        self._ended = stepped.ended
        return stepped

    def close(self) -> None:
        super().close()
        self._lead.close_batch(self._number)

    def place(self, caches: list[Any], row: int) -> Any:
        if caches is self.answer_caches:
            return "answer", row
        if caches is self.prompt_caches:
            return "prompt", row
        ended = (("ended", uid) for uid, at_end in self._ended.items() if at_end.caches is caches)
        return next(ended, None)


class LeadingCutter(Cutter):
    """Cuts blocks in all ranks. A follower drops a block when rank 0 has no reference to it any
    more.
    """

    def __init__(self, lead: Lead, model: Any, make_caches: Callable[[], list[Any]]) -> None:
        super().__init__(model, make_caches)
        self._lead = lead

    def cut(self, caches: list[Any], row: int, first: int, last: int) -> list[Block]:
        number = self._lead.next_numbers(last - first)
        self._lead.send(CutBlocks(self._lead.place(caches, row), first, last, number))
        blocks = super().cut(caches, row, first, last)
        self._lead.number_blocks(blocks, number)
        return blocks

    def snapshot(self, caches: list[Any], row: int) -> Block:
        number = self._lead.next_numbers(1)
        self._lead.send(TakeSnapshot(self._lead.place(caches, row), number))
        block = super().snapshot(caches, row)
        self._lead.number_blocks([block], number)
        return block

    def join(self, blocks: Sequence[Block], snapshot: Block | None) -> list[Any]:
        number = self._lead.next_numbers(1)
        numbers = [self._lead.number_of(block) for block in blocks]
        of_snapshot = None if snapshot is None else self._lead.number_of(snapshot)
        self._lead.send(JoinBlocks(numbers, of_snapshot, number))
        caches = super().join(blocks, snapshot)
        self._lead.record_joined(caches, number)
        return caches


def leading(sampler: Sampler, group: Any) -> Sampler:
    """A sampler of rank 0 that also gives its tokens to the followers. This is a part of MLX's lazy
    computation, so the next step begins without a wait for the tokens.
    """

    def sample(logprobs: mx.array) -> mx.array:
        chosen = sampler(logprobs).astype(mx.uint32)
        return mx.distributed.all_sum(chosen, group=group)

    return sample


def following(group: Any) -> Sampler:
    """A sampler of a follower. It gets rank 0's tokens from a sum over all ranks, to which
    followers add zeros.
    """

    def sample(logprobs: mx.array) -> mx.array:
        nothing = mx.zeros((logprobs.shape[0],), dtype=mx.uint32)
        # Collective operations must have the same order in all ranks: this one comes last in a
        # step.
        (behind,) = mx.depends([nothing], [logprobs])
        return mx.distributed.all_sum(behind, group=group)

    return sample


def finish_step(tap: Tap, *, watched: bool) -> None:
    """Compute the logits of a step's prompts if they are `watched`. When rank 0 reads them, this
    computes collective operations of the last layer, so all ranks must compute the logits.
    """
    if watched and tap.last is not None:
        mx.eval(tap.last)
