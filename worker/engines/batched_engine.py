"""Continuous batching with mlx-lm's BatchGenerator, within a memory limit that changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from time import perf_counter
from typing import Any, Final

from worker.engines.pace import PrefillPace
from worker.engines.placement import Placement
from worker.engines.queued_engine import QueuedEngine
from worker.engines.room import (
    BatchSize,
    CacheRoom,
    compiles_kernels,
    grouping,
    largest_chunk,
    step_bytes,
)
from worker.engines.row import SequenceRow
from worker.engines.row_batch import AHEAD_TOKENS, PREFILL_ROWS, PictureContext, RowBatch, sizes_of
from worker.engines.row_computer import EngineStatistics, RowComputer
from worker.engines.sequence import BrokenSequence, EngineNeed, Sequence, Token
from worker.guesses.costs import StepCosts
from worker.guesses.guesser import Shares
from worker.guesses.row_rates import MOST_ROWS
from worker.mlx_lm.batching_trial import takes_groups
from worker.mlx_lm.caches import takes_padding, takes_padding_again
from worker.mlx_lm.generator import Generator, MakeGenerator
from worker.mlx_lm.guessing import Draft
from worker.mlx_lm.row_groups import ONE_GROUP
from worker.prompt_cache.cache import PromptCache
from worker.vision import Vision

# A step passes over so many sequences that wait for their batch.
_MOST_PASSED: Final = 16
# Chunks aim at this share of their time bound: chunks of one length differ by a third in time, and
# must stay within the bound while streams run.
_CAUTION: Final = 0.75
# The engine asks for memory so many tokens before a row needs it.
_HORIZON_TOKENS: Final = 512


class BatchedEngine(QueuedEngine):
    """Runs sequences in batches, which sequences join and leave between steps.

    mlx-lm takes in all rows that it is given, even if memory is too short. So sequences that don't
    fit wait in this engine. If the batches outgrow the limit, or the limit shrinks, rows are put
    aside and computed anew later. The rows of the lowest priority are put aside first, and among
    these the last that joined.

    A batch has groups of rows of similar length. Every row is padded to the longest row of its
    group. A sequence gets another batch if its padding would cost more than reading the weights,
    or would not fit the limit: this may be so for models that can't have groups, and while a long
    prompt is being computed. Batches take turns.
    """

    batching = True
    ahead_tokens = AHEAD_TOKENS

    def __init__(
        self,
        model: Any,
        eos_token_ids: Iterable[int],
        max_concurrency: int | None,
        room: CacheRoom,
        prompt_cache: PromptCache | None = None,
        stall_s: float = 0.1,
        make_generator: MakeGenerator = Generator,
        *,
        guesses: bool = True,
        draft: Draft | None = None,
        vision: Vision | None = None,
        groups: bool | None = None,
    ) -> None:
        """At most `max_concurrency` rows are in the batches; None: as many as make the
        batches faster. A chunk of prompts may hold up rows that decode for about `stall_s` seconds.
        With several ranks `make_generator` makes generators that compute in the other ranks, too.
        Without `guesses` the `draft` guesses nothing either. `vision` is the model if it looks at
        pictures. `groups`: rows may be in several groups; None: this is tried.
        """
        super().__init__(room, prompt_cache)
        self._make_generator = make_generator
        alone = make_generator is Generator
        # Rank 0 can't try a model without the others.
        padding = not alone or takes_padding(model)
        # The prompts of a batch have different lengths, and so have the chunks of their ends.
        again = padding and (vision is None or takes_padding_again(model))
        self._prompts = PREFILL_ROWS if again else 1
        self.step_costs = StepCosts()
        # Other ranks take one token a row in a step.
        guesses = guesses and alone and padding
        self._learned = EngineStatistics(
            self.step_costs, Shares() if guesses else None, draft, Shares()
        )
        self._model = model
        groups = alone and (takes_groups(model) if groups is None else groups)
        self._grouping = grouping(room.shape) if groups else ONE_GROUP
        # Only batches with groups join each other.
        self._computer = None if self._grouping is ONE_GROUP else self._new_computer()
        self._looking = None if vision is None else PictureContext(vision, prompt_cache)
        self._eos_token_ids = tuple(eos_token_ids)
        self._configured_rows = max_concurrency
        self._worth_bytes = max(room.weight_bytes, step_bytes())
        self._batches: deque[RowBatch] = deque()
        # The batch of the last step, until its blocks are stored in the prompt cache.
        self._stepped: RowBatch | None = None
        self._stall_s = _CAUTION * stall_s
        self._pace = PrefillPace(
            largest_chunk(),
            beside_decoding_s=self._stall_s,
            pair_elements=room.pair_elements,
            compiles=compiles_kernels(),
        )
        self._begun = 0

    @property
    def active(self) -> int:
        return self._rows

    @property
    def most_rows(self) -> int:
        return self._configured_rows or self.step_costs.rates.most_rows()

    @property
    def short(self) -> bool:
        """Whether the first waiting sequence doesn't fit the limit. A sequence that fits may wait
        too, if it has just come.
        """
        if self._rows >= self.most_rows:
            return False
        fetches = self._keeper.fetches if self._keeper is not None else lambda _: False
        first = next(
            (sequence for sequence in self._waiting if not fetches(sequence.request_id)), None
        )
        if first is None:
            return False
        return not self._placement().has_room(len(first.token_ids) + AHEAD_TOKENS)

    def _rows_need(self) -> EngineNeed:
        sizes = self._sizes()
        used_bytes = self._room.needed_bytes(sizes) if sizes else 0
        rows = [row for batch in self._batches for row in batch.rows]
        free_rows = max(0, self.most_rows - len(rows))
        joining = [
            min(
                len(sequence.token_ids) + _HORIZON_TOKENS,
                len(sequence.token_ids) + sequence.max_tokens,
            )
            for sequence in list(self._waiting)[:free_rows]
        ]
        if not rows and not joining:
            return EngineNeed(0, 0, 0)
        match [row_batch for row_batch in self._batches if len(row_batch)]:
            case []:
                wanted = sizes_of(self._grouping, joining)
            case [batch]:
                wanted = batch.sizes(joining, _soon_tokens)
            case batches:
                wanted = [size for batch in batches for size in batch.sizes(length=_soon_tokens)]
                wanted += [BatchSize(1, tokens) for tokens in joining]
        last = self._last_to_put_aside()
        alone = BatchSize(1, (last[1].tokens if last else joining[0]) + AHEAD_TOKENS)
        if self._waiting:
            first = BatchSize(1, len(self._waiting[0].token_ids) + AHEAD_TOKENS)
            if not rows or not self._room.holds([first]):
                # Sequences behind the first may run before it, but the first is the one that waits
                # for memory.
                alone = first
        return EngineNeed(
            used_bytes,
            # Just before its end a row is one step longer than `wanted` says.
            max(used_bytes, self._room.needed_bytes(wanted)),
            self._room.needed_bytes([alone]),
            last[1].number if last and last[0].prefills(last[1]) else 0,
        )

    def remove(self, request_ids: Iterable[str]) -> None:
        removed = set(request_ids)
        self._forget(removed)
        for batch in self._batches:
            batch.remove(removed)

    def step(self) -> list[Token]:
        if self._stepped is not None:
            self.store_blocks()
        if self._keeper is not None:
            self._keeper.cache.collect()
        self.make_room()
        self._join_batches()
        self._admit_waiting()
        if not self._batches:
            return []
        batch = self._batches[0]
        self._batches.rotate(-1)
        others_decode = any(
            row_batch.decodes for row_batch in self._batches if row_batch is not batch
        )
        prefilling = batch.prefilling
        decoding = [row for row in batch.rows if row not in prefilling] or prefilling
        began_s = perf_counter()
        tokens = batch.step(beside_decoding=others_decode, share_s=self._share_s(batch))
        seconds = perf_counter() - began_s
        self._costs.add(
            [sequence_row.sequence.sharer for sequence_row in prefilling], batch.prefill_s
        )
        self._costs.add([row.sequence.sharer for row in decoding], seconds - batch.prefill_s)
        self._stepped = batch
        for row in batch.collect_spoilt():
            self._retry_cold(row)
        return tokens

    def store_blocks(self) -> None:
        batch, self._stepped = self._stepped, None
        if batch is None:
            if self._keeper is not None:
                self._keeper.cache.store()
            return
        ended = batch.ended_rows()
        if self._keeper is not None:
            self._keeper.store_blocks(batch.cached_rows(), ended, self._sizes())
        if not len(batch) and len(self._batches) > 1:
            self._close(batch)

    def make_room(self) -> None:
        """Put rows aside until the other rows fit the limit. Then drop cached blocks that don't fit
        beside them.
        """
        while self._rows and not self._room.holds(self._sizes()):
            choices = [
                (row_batch, *row_batch.next_to_put_aside())
                for row_batch in self._batches
                if len(row_batch)
            ]
            batch, uid, _ = min(choices, key=lambda pair: pair[2].sequence.priority)
            self._add_first(batch.put_aside(uid))
        if self._keeper is not None:
            self._keeper.give_way(self._sizes())

    def remove_broken(self) -> list[BrokenSequence]:
        return [broken for batch in self._batches for broken in batch.remove_broken()]

    def recompute_all(self) -> bool:
        if self._make_generator is not Generator:
            # The step that failed here may have succeeded in other ranks, so caches would differ.
            return False
        self._stepped = None
        batches, self._batches = self._batches, deque()
        rows = [row for batch in batches for row in batch.rows]
        for row in sorted(rows, key=lambda sequence_row: sequence_row.number, reverse=True):
            self._add_first(row.sequence.rest(row.generated))
        for batch in batches:
            batch.close()
        if self._computer is not None:
            self._computer = self._new_computer()
        self.clear_prompts()
        self._pace.shorten()
        return True

    def close(self) -> None:
        self._stepped = None
        for batch in list(self._batches):
            self._close(batch)
        del self._model, self._computer
        self._looking = None

    @property
    def _rows(self) -> int:
        return sum(len(batch) for batch in self._batches)

    def _share_s(self, batch: RowBatch) -> float:
        """The seconds for which the chunk of this batch may hold up rows that decode. Between two
        tokens of a row each batch has a turn, so the chunks of all batches share `stall_s`.
        """
        others = [row_batch for row_batch in self._batches if row_batch is not batch]
        prefilling = sum(bool(other.prefilling) for other in others)
        left_s = self._stall_s - sum(other.prefill_s for other in others)
        return max(0.0, min(left_s, self._stall_s / (1 + prefilling)))

    def _last_to_put_aside(self) -> tuple[RowBatch, SequenceRow] | None:
        """The row that would be put aside last, and its batch; None: there are no rows."""
        rows = [(batch, row) for batch in self._batches for row in batch.rows]
        return max(
            rows, key=lambda pair: (pair[1].sequence.priority, -pair[1].number), default=None
        )

    def _sizes(self) -> list[BatchSize]:
        return [size for batch in self._batches for size in batch.sizes()]

    def _admit_waiting(self) -> None:
        """Let waiting sequences join batches, or begin a batch.

        A sequence may be overtaken by those behind it. If it waits for blocks from disk, any
        sequence may overtake it. If its batch takes no sequence now, or it waits for a loan,
        sequences may overtake it that leave room for it; a step passes over few of these, since
        each look at a sequence takes time. If it doesn't fit the limit, one sequence may overtake
        it, and only while nothing runs.
        """
        overtaken = False
        passed = 0
        placement: Placement | None = None
        for sequence in list(self._waiting):
            rows = self._rows
            if rows + passed >= self.most_rows or passed >= _MOST_PASSED or (overtaken and rows):
                return
            placement = placement or self._placement()
            if self._keeper is not None and self._keeper.waits(
                sequence,
                placement.sizes,
                [row for row_batch in self._batches for row in row_batch.prefilling],
            ):
                continue
            tokens = len(sequence.token_ids) + AHEAD_TOKENS
            batch = self._place(placement, tokens)
            if (
                batch is not None
                and batch.takes(self._uncached_tokens(sequence))
                and not self._waits_for_room(placement, batch, sequence)
            ):
                self._insert(placement, batch, sequence)
                self._remove_from_queue(sequence)
            elif batch is not None:
                placement.leave_room(batch, tokens)
                passed += 1
            elif rows:
                return
            else:
                overtaken = True

    def _join_batches(self) -> None:
        """Let the rows of a batch that computes no prompt join another batch, if the model takes
        groups. So there are several batches only while several compute prompts.
        """
        batches = [row_batch for row_batch in self._batches if len(row_batch)]
        if self._computer is None or len(batches) < 2:
            return
        batch = min(batches, key=lambda row_batch: (bool(row_batch.prefilling), len(row_batch)))
        other = max((row_batch for row_batch in batches if row_batch is not batch), key=len)
        # The rows exist twice until they have joined.
        joining = [row.tokens + AHEAD_TOKENS for row in batch.rows]
        sizes = [
            size
            for row_batch in self._batches
            for size in row_batch.sizes(joining if row_batch is other else ())
        ]
        if not batch.prefilling and self._room.holds(sizes):
            other.merge(batch)
            self._close(batch)

    def _uncached_tokens(self, sequence: Sequence) -> int:
        cached_tokens = 0 if self._keeper is None else self._keeper.cached_tokens(sequence)
        return len(sequence.token_ids) - cached_tokens

    def _insert(self, placement: Placement, batch: RowBatch, sequence: Sequence) -> None:
        self._begun += 1
        taken = None
        if self._keeper is not None:
            self._keeper.give_way(_joined(placement, batch, sequence), sequence.path)
            taken = self._keeper.restore(sequence)
        batch.insert(sequence, self._begun, taken)
        placement.join(batch, len(sequence.token_ids) + AHEAD_TOKENS)

    def _waits_for_room(self, placement: Placement, batch: RowBatch, sequence: Sequence) -> bool:
        return self._keeper is not None and self._keeper.waits_for_room(
            sequence, _joined(placement, batch, sequence)
        )

    def _placement(self) -> Placement:
        return Placement(self._room, self._grouping, self._batches, self._worth_bytes)

    def _place(self, placement: Placement, tokens: int) -> RowBatch | None:
        """The batch that a sequence of `tokens` tokens should join, perhaps a new one; None: the
        sequence has to wait.
        """
        batch = placement.best(tokens)
        if batch is None and placement.may_open(tokens):
            batch = self._open()
            placement.open(batch)
        return batch

    def _open(self) -> RowBatch:
        batch = RowBatch(
            self._computer or self._new_computer(),
            self._eos_token_ids,
            self._configured_rows or MOST_ROWS,
            self._pace,
            self._on_prefill,
            self._prompts,
            self._looking,
        )
        self._batches.append(batch)
        return batch

    def _new_computer(self) -> RowComputer:
        working_bytes = self._room.working_bytes
        if self._make_generator is not Generator:
            return RowComputer(self._model, working_bytes, make_generator=self._make_generator)
        return RowComputer(self._model, working_bytes, self._learned, self._grouping)

    def _on_prefill(self, tokens: int, seconds: float) -> None:
        if self._keeper is not None:
            self._keeper.cache.speeds.observe_prefill(tokens, seconds)

    def _close(self, batch: RowBatch) -> None:
        self._batches.remove(batch)
        batch.close()


def _joined(placement: Placement, batch: RowBatch, sequence: Sequence) -> list[BatchSize]:
    """The sizes of all batches once the sequence has joined `batch`. Its cached blocks count a
    second time, as a batch of one row, since they exist twice until they are merged.
    """
    tokens = len(sequence.token_ids)
    return [*placement.joined(batch, tokens + AHEAD_TOKENS), BatchSize(1, tokens)]


def _soon_tokens(row: SequenceRow) -> int:
    """The length of a row `_HORIZON_TOKENS` later, or at its end."""
    return min(row.tokens + _HORIZON_TOKENS, row.most_tokens)
