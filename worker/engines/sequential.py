"""The engine that runs one sequence at a time, for models whose caches can't be merged into a
batch, and models that look at pictures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias

from protocol.answers import FinishReason
from worker.engines.decoding import Caches, DecodedToken, RowSampler, decode
from worker.engines.pace import PrefillPace
from worker.engines.queued_engine import QueuedEngine
from worker.engines.room import BatchSize, CacheRoom, compiles_kernels, largest_chunk
from worker.engines.row import CachedRow, SequenceRow
from worker.engines.row_batch import to_block_end
from worker.engines.sequence import BrokenSequence, EngineNeed, Sequence, Token
from worker.guesses.costs import StepCosts
from worker.mlx_lm.decoding_row import RowToken
from worker.mlx_lm.generator import LARGE_VOCABULARY, stream
from worker.prompt_cache.cache import PromptCache
from worker.sampling.scores import scored_chunk
from worker.system.errors import one_sentence, passing_kind
from worker.vision import PictureInputs

logger = logging.getLogger("worker")

# Makes the model for one sequence from the tokens, the pictures, and the number of tokens that the
# caches have seen.
MakePrompt: TypeAlias = Callable[[list[int], PictureInputs | None, int], Any]


@dataclass(eq=False)
class _RunningSequence:
    """The sequence that runs. `tokens` None: its prompt is being computed."""

    row: SequenceRow
    caches: list[Any]
    # The model for this sequence alone; None: the engine's model computes it.
    model: Any = None
    tokens: Iterator[DecodedToken] | None = None
    sampler: RowSampler | None = None

    @property
    def left(self) -> int:
        """How many tokens of the prompt are left to compute, without the last one, with which
        decoding begins.
        """
        return len(self.row.sequence.token_ids) - 1 - self.row.seen_tokens


class SequentialEngine(QueuedEngine):
    """Runs one sequence at a time, by priority and then in the order in which they came."""

    batching = False
    most_rows = 1
    step_costs: StepCosts | None = None
    ahead_tokens = 1

    def __init__(
        self,
        model: Any,
        eos_token_ids: Iterable[int],
        room: CacheRoom,
        caches: Caches | None = None,
        prompt_cache: PromptCache | None = None,
        make_prompt: MakePrompt | None = None,
    ) -> None:
        """Without `caches` mlx-lm's caches for the model are used. `make_prompt` is for a model
        that looks at pictures.
        """
        super().__init__(room, prompt_cache)
        self._model = model
        self._caches = Caches(model) if caches is None else caches
        self._eos_token_ids = frozenset(eos_token_ids)
        self._run: _RunningSequence | None = None
        # The sequence of the last step, until its blocks are stored in the prompt cache.
        self._stepped: _RunningSequence | None = None
        self._pace = PrefillPace(
            largest_chunk(),
            pair_elements=room.pair_elements,
            compiles=compiles_kernels(),
        )
        self._begun = 0
        self._make_prompt = make_prompt
        self._unfit: list[BrokenSequence] = []
        self._vocabulary = LARGE_VOCABULARY

    @property
    def active(self) -> int:
        return 0 if self._run is None else 1

    @property
    def short(self) -> bool:
        if self._run is not None or not self._waiting or self._next_fits:
            return False
        return self._keeper is None or not self._keeper.fetches(self._waiting[0].request_id)

    def _rows_need(self) -> EngineNeed:
        if self._run is not None:
            bytes_ = self._room.needed_bytes(self._sizes())
            return EngineNeed(bytes_, bytes_, bytes_, 0 if self._run.row.generated else self._begun)
        if self._waiting:
            bytes_ = self._room.needed_bytes([_size_of(self._waiting[0])])
            return EngineNeed(0, bytes_, bytes_)
        return EngineNeed(0, 0, 0)

    def make_room(self) -> None:
        if self._run is not None and not self._room.holds(self._sizes()):
            self._put_aside(self._run.row)
        if self._keeper is not None:
            self._keeper.give_way(self._sizes())

    def remove(self, request_ids: Iterable[str]) -> None:
        removed = set(request_ids)
        self._forget(removed)
        if self._run is not None and self._run.row.sequence.request_id in removed:
            self._run = None

    def step(self) -> list[Token]:
        """Compute a chunk of the prompt, or a token."""
        if self._stepped is not None:
            self.store_blocks()
        if self._keeper is not None:
            self._keeper.cache.collect()
        self.make_room()
        if self._run is None:
            self._start_next()
        run = self._run
        if run is None:
            return []
        began_s = perf_counter()
        tokens: list[Token] = []
        if run.tokens is not None or not self._computes_prompt(run):
            tokens += self._generate(run)
        self._costs.add([run.row.sequence.sharer], perf_counter() - began_s)
        return tokens

    def store_blocks(self) -> None:
        run, self._stepped = self._stepped, None
        if run is not None:
            self._store_run(run, ended=run is not self._run)
        elif self._keeper is not None:
            self._keeper.cache.store()

    def remove_broken(self) -> list[BrokenSequence]:
        broken, self._unfit = self._unfit, []
        run = self._run
        reason = None if run is None or run.sampler is None else run.sampler.remove_broken()
        if run is not None and reason is not None:
            self._run = None
            broken.append(BrokenSequence(run.row.sequence.request_id, reason))
        return broken

    def recompute_all(self) -> bool:
        if self._run is not None:
            self._put_aside(self._run.row)
        self._stepped = None
        self.clear_prompts()
        self._pace.shorten()
        return True

    def close(self) -> None:
        self._waiting.clear()
        self._run = self._stepped = self._make_prompt = None
        self._model = None
        del self._caches

    def _put_aside(self, row: SequenceRow) -> None:
        self._add_first(row.sequence.rest(row.generated))
        self._run = None

    def _sizes(self) -> list[BatchSize]:
        """The size of the running sequence after the next step; empty: no sequence runs."""
        if self._run is None:
            return []
        return [BatchSize(1, self._run.row.tokens + 1)]

    @property
    def _next_fits(self) -> bool:
        return self._room.holds([_size_of(self._waiting[0])])

    def _start_next(self) -> None:
        if not self._waiting:
            return
        sequence = self._waiting[0]
        sizes = [_size_of(sequence)]
        if not self._next_fits:
            return
        taken = None
        if self._keeper is not None:
            if self._keeper.waits(sequence, sizes, []):
                return
            if self._keeper.waits_for_room(sequence, sizes):
                return
            self._keeper.give_way(sizes, sequence.path)
            taken = self._keeper.restore(sequence)
        self._remove_from_queue(sequence)
        self._begun += 1
        done = 0 if taken is None else taken.tokens
        caches = self._caches.make() if taken is None else taken.caches
        self._run = _RunningSequence(SequenceRow.of(sequence, done), caches)

    def _computes_prompt(self, run: _RunningSequence) -> bool:
        """Compute a chunk of the prompt if some is left. Returns whether this step is for the
        prompt.
        """
        sequence = run.row.sequence
        try:
            if self._make_prompt is not None and run.model is None:
                self._start_prompt(run, self._make_prompt)
            if run.left > 0:
                self._prefill(run)
                return True
        except Exception as error:
            # If pictures and tokens don't fit each other, each model raises an error of its own
            # kind.
            if sequence.pictures is None or passing_kind(error) is not None:
                raise
            logger.exception("A prompt with pictures can't be computed")
            self._unfit.append(
                BrokenSequence(sequence.request_id, one_sentence(error), pictures=True)
            )
            self._run = None
            return True
        return False

    def _start_prompt(self, run: _RunningSequence, make_prompt: MakePrompt) -> None:
        row, sequence = run.row, run.row.sequence
        with stream():
            run.model = make_prompt(sequence.token_ids, sequence.pictures, row.seen_tokens)
            if run.model.whole and row.seen_tokens and sequence.pictures is not None:
                # The model computes this prompt only as a whole, so cached blocks are of no use.
                run.caches = self._caches.make()
                row.forget_cached()
                run.model = make_prompt(sequence.token_ids, sequence.pictures, 0)

    def _prefill(self, run: _RunningSequence) -> None:
        """Compute a chunk of the prompt.

        mlx-lm's own loop gives nothing back before the whole prompt is computed. Until then the
        sequence could not be cancelled, and no memory could be recalled.
        """
        row = run.row
        began_s, begin = perf_counter(), row.seen_tokens
        chunk = self._pace.chunk(rows=1, decoding=False, context=begin)
        length = min(run.left, to_block_end(chunk, row.uncached_tokens))
        if run.model is not None and run.model.whole:
            length = run.left
        if (boundary := row.next_boundary) is not None:
            length = min(length, boundary - begin)
        if row.prompt_scores is not None:
            length = min(length, scored_chunk(1, self._vocabulary, self._room.working_bytes))
        self._vocabulary = row.compute_prompt(
            self._caches.run if run.model is None else run.model, run.caches, length
        )
        seconds = perf_counter() - began_s
        shows_speed = self._pace.observe(length, seconds, begin)
        if self._keeper is not None:
            if shows_speed:
                self._keeper.cache.speeds.observe_prefill(length, seconds)
            self._store_run(run, prefills=True)

    def _generate(self, run: _RunningSequence) -> list[Token]:
        """The next token; none if its logits aren't valid."""
        row, sequence = run.row, run.row.sequence
        if run.tokens is None:
            run.tokens = self._decode(run)
        token_id, score, valid = next(run.tokens)
        if not valid:
            self._run = None
            self._retry_cold(row)
            return []
        finish_reason: FinishReason | None = None
        ends = token_id in self._eos_token_ids and sequence.ends_at_eos
        if ends or token_id in sequence.stop_token_ids:
            finish_reason = "stop"
        elif len(row.generated) + 1 >= sequence.max_tokens:
            finish_reason = "length"
        token = row.record_token(RowToken(0, token_id, finish_reason), score)
        row.seen_tokens = row.tokens
        self._stepped = run
        if finish_reason is not None:
            self._run = None
        return [token]

    def _decode(self, run: _RunningSequence) -> Iterator[DecodedToken]:
        sequence = run.row.sequence
        run.sampler = RowSampler(sequence, run.model or self._model)
        return decode(sequence, run.caches, run.sampler)

    def _store_run(
        self, run: _RunningSequence, *, prefills: bool = False, ended: bool = False
    ) -> None:
        if self._keeper is None or run.row.cached_blocks is None:
            return
        cached = [CachedRow(run.row, run.caches, 0, prefills)]
        # A sequence that has ended needs no room any more, so `_sizes` is empty then. Its caches
        # still exist.
        self._keeper.store_blocks([] if ended else cached, cached if ended else [], self._sizes())


def _size_of(sequence: Sequence) -> BatchSize:
    return BatchSize(1, len(sequence.token_ids) + 1)
