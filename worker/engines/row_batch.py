"""One batch of sequences, which mlx-lm computes together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, Final, NamedTuple

from worker.engines.lone import LonePrompt
from worker.engines.pace import PrefillPace
from worker.engines.room import BatchSize
from worker.engines.row import CachedRow, SequenceRow
from worker.engines.row_computer import RowComputer
from worker.engines.sequence import BrokenSequence, Sequence, Token
from worker.mlx_lm.added_caches import shift_row
from worker.mlx_lm.caches import make_caches
from worker.mlx_lm.decoding_row import RowCaches
from worker.mlx_lm.generator import NewRow, StepResult
from worker.mlx_lm.row_groups import Grouping, GroupSize
from worker.prompt_cache.cache import PromptCache, RestoredCaches
from worker.prompt_cache.path import BLOCK_TOKENS
from worker.sampling.scores import scored_chunk
from worker.system.errors import one_sentence, passing_kind
from worker.vision import Vision

logger = logging.getLogger("worker")

# As many prompts are computed together if one chunk takes all of them, otherwise fewer.
PREFILL_ROWS: Final = 64
_ROWS_OF_CHUNKS: Final = 8
# A chunk of so many tokens over all rows is computed efficiently.
_ENOUGH_TOKENS: Final = 512
_MUCH_LONGER: Final = 2
# A step adds a token to a row. Before this token is given out, the next one is begun. Guesses take
# what is left of the memory that a cache has grown to.
AHEAD_TOKENS: Final = 2


class PictureContext(NamedTuple):
    """A model that looks at pictures, and the prompt cache that keeps what the model sees."""

    vision: Vision
    prompt_cache: PromptCache | None


class RowBatch:
    """A batch of rows. Sequences join and leave between steps."""

    def __init__(
        self,
        computer: RowComputer,
        eos_token_ids: tuple[int, ...],
        max_rows: int,
        pace: PrefillPace,
        on_prefill: Callable[[int, float], None],
        prompts: int = PREFILL_ROWS,
        looking: PictureContext | None = None,
    ) -> None:
        """`on_prefill` is called with the tokens and the seconds of each chunk. At most `prompts`
        prompts are computed at a time. `looking` None: no sequence has pictures.
        """
        self._looking = looking
        self._tap, self._sampler, self._guesser = computer.tap, computer.sampler, computer.guesser
        self._working_bytes, self._grouping = computer.working_bytes, computer.grouping
        self._prompts = min(prompts, max_rows)
        self._generator = computer.generator(max_rows, self._prompts)
        self._eos_token_ids = eos_token_ids
        self._pace = pace
        self._on_prefill = on_prefill
        # Seconds that the last step spent on prompts.
        self.prefill_s = 0.0
        # Rows that have ended, with their caches, until `ended_rows` takes them.
        self._ended: list[tuple[SequenceRow, RowCaches]] = []
        # Rows by mlx-lm's number, in the order in which they joined.
        self._rows: dict[int, SequenceRow] = {}
        self._prefilling: set[int] = set()
        # Rows in prefill that have only the last token of their prompt left. mlx-lm computes this
        # token with the next step.
        self._at_end: set[int] = set()
        # The prompts that are computed alone, the first one now. Their rows have numbers below 0
        # until they join mlx-lm's batch.
        self._lone: dict[int, LonePrompt] = {}
        self._unfit: list[BrokenSequence] = []
        self._spoilt: list[SequenceRow] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> Iterable[SequenceRow]:
        return self._rows.values()

    def takes(self, tokens: int) -> bool:
        """Whether a sequence that has `tokens` tokens to compute may join now."""
        if self._has_most_prompts or self._would_split:
            return False
        return self._fits_chunk(tokens) or not self._fills_chunks(tokens)

    @property
    def _has_most_prompts(self) -> bool:
        """Whether no more prompts may be computed at a time."""
        return self._running_prompts >= self._prompts

    @property
    def _would_split(self) -> bool:
        """Whether a row has only the last token of its prompt left: mlx-lm would merge a sequence
        with this row, and split both in the next step, and each part costs a copy of the batch.
        """
        return bool(self._at_end)

    def _fits_chunk(self, tokens: int) -> bool:
        """Whether one chunk takes all prompts and one of `tokens` tokens. Such prompts are computed
        together, since each group that joins the rows that decode costs two steps and a copy of
        their caches.
        """
        longest_tokens = max([tokens, *self._left_tokens])
        return self._pace.fits_chunk(self._running_prompts + 1, longest_tokens)

    def _fills_chunks(self, tokens: int) -> bool:
        """Whether the rows in prefill fill chunks, which read the caches of each of these rows. A
        row with many more than `tokens` tokens left doesn't count: the sequence must not wait for
        it.
        """
        if self._running_prompts >= _ROWS_OF_CHUNKS:
            return True
        limit_tokens = _MUCH_LONGER * tokens
        return sum(left for left in self._left_tokens if left <= limit_tokens) >= _ENOUGH_TOKENS

    @property
    def _running_prompts(self) -> int:
        return len(self._prefilling) + len(self._lone)

    @property
    def _left_tokens(self) -> list[int]:
        """The tokens that are left of each prompt that mlx-lm computes."""
        return [row.tokens - row.seen_tokens for row in self._together]

    def prefills_beyond(self, tokens: int) -> bool:
        """Whether a row in prefill has seen many more than `tokens` tokens. A sequence of `tokens`
        tokens would be padded to the length of that row. Then each token of the sequence would look
        at as many earlier places as a token of that row does.
        """
        most_tokens = _MUCH_LONGER * (tokens + _ENOUGH_TOKENS)
        return any(row.seen_tokens > most_tokens for row in self._together)

    def prefills(self, row: SequenceRow) -> bool:
        """Whether this row is computing its prompt."""
        return any(sequence_row is row for sequence_row in self.prefilling)

    @property
    def decodes(self) -> bool:
        return len(self._rows) > self._running_prompts

    def sizes(
        self, joining: Iterable[int] = (), length: Callable[[SequenceRow], int] | None = None
    ) -> list[BatchSize]:
        """The sizes of the groups of rows after the next step, once rows of the lengths `joining`
        have joined. With `length` each row counts with that many tokens.
        """
        return sizes_of(self._grouping, joining, self.group_sizes(length))

    def group_sizes(self, length: Callable[[SequenceRow], int] | None = None) -> list[GroupSize]:
        """The groups of rows after the next step. With `length` each row counts with that many
        tokens.
        """
        length = length or _next_tokens
        groups = []
        decoding: set[int] = set()
        for size, uids in self._generator.groups:
            longest_tokens = max(length(self._rows[index]) for index in uids)
            groups.append(size._replace(longest_tokens=longest_tokens))
            decoding.update(uids)
        for uid, row in self._rows.items():
            if uid not in decoding:
                groups = self._grouping.placed(groups, length(row))
        return groups

    def insert(self, sequence: Sequence, number: int, taken: RestoredCaches | None = None) -> None:
        """Add a sequence as the row `number`. `taken` has caches of its first tokens, from the
        prompt cache.
        """
        row = SequenceRow.of(sequence, 0 if taken is None else taken.tokens, number)
        caches = None if taken is None else taken.caches
        if self._looking is not None and sequence.pictures is not None:
            shift = self._looking.vision.shift_behind(sequence.pictures, row.seen_tokens)
            caches = make_caches(self._tap) if caches is None else caches
            if shift is None:
                self._rows[-number] = row
                self._lone[-number] = self._alone(row, caches)
                return
            shift_row(caches, shift)
        self._join(row, caches)

    def _alone(self, row: SequenceRow, caches: list[Any]) -> LonePrompt:
        assert self._looking is not None
        vision, prompt_cache = self._looking
        return LonePrompt(row, caches, vision, lambda: make_caches(self._tap), prompt_cache)

    def _join(self, row: SequenceRow, caches: list[Any] | None) -> int:
        """Have a row join mlx-lm's batch. `caches` have seen `row.seen_tokens` tokens."""
        sequence, done = row.sequence, row.seen_tokens
        ends = self._eos_token_ids if sequence.ends_at_eos else ()
        uid = self._generator.insert(
            NewRow(
                _segments(sequence, done),
                sequence.max_tokens,
                (*ends, *sequence.stop_token_ids),
                caches,
                sequence.token_ids[:done],
                [] if sequence.budget is None else [sequence.budget],
            )
        )
        sequence.join(self._sampler, uid)
        if self._guesser is not None:
            self._guesser.add(uid, sequence.token_ids, sequence.prediction)
        self._rows[uid] = row
        self._prefilling.add(uid)
        return uid

    def merge(self, other: RowBatch) -> None:
        """Take in all rows of another batch, which decode. Both share their `RowComputer`."""
        self._generator.merge(other._generator)
        rows = [*self._rows.items(), *other._rows.items()]
        self._rows = dict(sorted(rows, key=lambda pair: pair[1].number))
        other._rows = {}

    def remove(self, request_ids: set[str]) -> None:
        """Take rows out. Unknown ids are ignored."""
        self._remove_rows(
            [uid for uid, row in self._rows.items() if row.sequence.request_id in request_ids]
        )

    def next_to_put_aside(self) -> tuple[int, SequenceRow]:
        """The row to put aside next, and mlx-lm's number of this row. Of the rows with the lowest
        priority it is the last one that joined.
        """
        return min(reversed(self._rows.items()), key=lambda pair: pair[1].sequence.priority)

    def put_aside(self, uid: int) -> Sequence:
        """Take a row out by mlx-lm's number. Returns the rest of its sequence."""
        row = self._rows[uid]
        self._remove_rows([uid])
        return row.sequence.rest(row.generated)

    def step(self, *, beside_decoding: bool, share_s: float) -> list[Token]:
        """Compute one step.

        With `beside_decoding`, rows of another batch decode, and wait for this step. `share_s`
        bounds the seconds for which the prompts of this batch may hold up rows that decode.
        """
        self.prefill_s = 0.0
        decoding = self.decodes or beside_decoding
        if self._lone:
            # Prompts of both kinds share the time.
            shared_s = share_s / 2 if self._prefilling else share_s
            self._compute_lone(decoding=decoding, share_s=shared_s)
            share_s = max(0.0, share_s - self.prefill_s)
        if not self._prefilling:
            responses = self._generator.step().tokens
        else:
            responses = self._step_with_prefill(decoding=decoding, share_s=share_s).tokens
        # Reading scores may fail, so it comes before any row counts its token.
        scores = [self._sampler.next_score(token.uid) for token in responses]
        tokens = []
        for response, score in zip(responses, scores, strict=True):
            row = self._rows[response.uid]
            tokens.append(row.record_token(response, score))
            # The caches have seen the token that is given out, since mlx-lm has begun the next one.
            row.seen_tokens = row.tokens
            if response.prompt_cache is not None:
                self._ended.append((row, response.prompt_cache))
                self._forget(response.uid)
        if spoilt := self._generator.spoilt:
            self._remove_spoilt(spoilt)
        return tokens

    def _remove_spoilt(self, uids: list[int]) -> None:
        self._spoilt += [self._rows[uid] for uid in uids]
        self._generator.remove_spoilt(uids)
        for uid in uids:
            self._forget(uid)

    def collect_spoilt(self) -> list[SequenceRow]:
        """The rows that left with the last step because their logits weren't valid."""
        spoilt, self._spoilt = self._spoilt, []
        return spoilt

    def remove_broken(self) -> list[BrokenSequence]:
        """Take out rows that can't go on."""
        reasons = self._sampler.remove_broken()
        broken = [
            BrokenSequence(self._rows[uid].sequence.request_id, why) for uid, why in reasons.items()
        ]
        self._remove_rows(list(reasons))
        unfit, self._unfit = self._unfit, []
        return broken + unfit

    def close(self) -> None:
        self._generator.close()
        del self._generator

    def _compute_lone(self, *, decoding: bool, share_s: float) -> None:
        """Look at the pictures of the first prompt that is computed alone, or compute a chunk of
        this prompt. At its end the row joins mlx-lm's batch.
        """
        uid, lone = next(iter(self._lone.items()))
        row, began_s = lone.row, perf_counter()
        try:
            if not lone.has_looked:
                lone.look()
            elif lone.left > 0:
                context = row.seen_tokens
                chunk = self._pace.chunk(1, decoding, context, share_s)
                tokens = lone.advance(to_block_end(chunk, row.uncached_tokens), self._working_bytes)
                seconds = perf_counter() - began_s
                if self._pace.observe(tokens, seconds, context):
                    self._on_prefill(tokens, seconds)
        except Exception as error:
            # If pictures and tokens don't fit each other, each model raises an error of its own
            # kind.
            if passing_kind(error) is not None:
                raise
            logger.exception("A prompt with pictures can't be computed")
            request_id = row.sequence.request_id
            self._unfit.append(BrokenSequence(request_id, one_sentence(error), pictures=True))
            self._remove_rows([uid])
            return
        self.prefill_s = perf_counter() - began_s
        if lone.left <= 0:
            del self._lone[uid], self._rows[uid]
            # mlx-lm computes the last token with the next step.
            self._at_end.add(self._join(row, lone.caches))

    def _step_with_prefill(self, *, decoding: bool, share_s: float) -> StepResult:
        rows = len(self._prefilling)
        context = max(sequence_row.seen_tokens for sequence_row in self._together)
        # mlx-lm computes the last token of a prompt with the next step.
        left = max(self._left_tokens) - 1
        chunk = self._pace.chunk(rows, decoding, context, share_s, left)
        watched = any(self._rows[uid].prompt_scores is not None for uid in self._prefilling)
        if watched:
            chunk = min(chunk, scored_chunk(rows, self._tap.vocabulary, self._working_bytes))
        uncached = (self._rows[uid].uncached_tokens for uid in self._prefilling - self._at_end)
        chunk = to_block_end(chunk, max(uncached, default=0))
        stepped = self._generator.step(chunk, watched=watched)
        scored_s = 0.0
        if watched:
            began_s = perf_counter()
            self._score_prompts([prompt for prompt in stepped.prompts if not prompt.end_of_prompt])
            scored_s = perf_counter() - began_s
        prefill_s = stepped.prompt_s + scored_s
        self.prefill_s += prefill_s
        if self._pace.observe(stepped.prompt_tokens, prefill_s, context):
            self._on_prefill(stepped.prompt_tokens, stepped.prompt_s)
        for response in stepped.prompts:
            row = self._rows[response.uid]
            row.seen_tokens = _seen(row, response)
            if response.end_of_prompt:
                self._prefilling.discard(response.uid)
                self._at_end.discard(response.uid)
                continue
            if row.seen_tokens >= row.tokens - 1:
                self._at_end.add(response.uid)
        return stepped

    def _score_prompts(self, responses: list[Any]) -> None:
        """Score the prompt tokens of the last chunk. `responses` are mlx-lm's for the rows of the
        chunk, in the order of the rows.
        """
        if not responses:
            return
        logits = self._tap.pop_logits()
        for place, response in enumerate(responses):
            row = self._rows[response.uid]
            # `seen_tokens` still has the value from before the chunk.
            row.score_prompt(logits[place], _seen(row, response))

    @property
    def prefilling(self) -> list[SequenceRow]:
        """The rows whose prompts are being computed."""
        return [*self._together, *(prompt.row for prompt in self._lone.values())]

    @property
    def _together(self) -> list[SequenceRow]:
        """The rows whose prompts mlx-lm computes."""
        return [self._rows[uid] for uid in self._prefilling]

    def cached_rows(self) -> list[CachedRow]:
        """The running rows whose blocks the prompt cache may store, with their caches. For use
        between two steps.
        """
        places = self._generator.places()
        for uid, lone in self._lone.items():
            places[uid] = RowCaches(lone.caches, 0)
        # In the order of the groups, since blocks of one group are cut together.
        return [
            CachedRow(
                self._rows[uid], *place, prefills=uid in self._prefilling or uid in self._lone
            )
            for uid, place in places.items()
            if self._rows[uid].cached_blocks is not None
        ]

    def ended_rows(self) -> list[CachedRow]:
        """The rows that ended since the last call, and whose blocks the prompt cache may store."""
        ended, self._ended = self._ended, []
        return [CachedRow(row, *caches) for row, caches in ended if row.cached_blocks is not None]

    def _remove_rows(self, uids: list[int]) -> None:
        joined = [uid for uid in uids if uid not in self._lone]
        if joined:
            self._generator.remove(joined)
        for uid in uids:
            self._forget(uid)

    def _forget(self, uid: int) -> None:
        if self._lone.pop(uid, None) is not None:
            del self._rows[uid]
            return
        self._sampler.remove(uid)
        if self._guesser is not None:
            self._guesser.remove(uid)
        del self._rows[uid]
        self._prefilling.discard(uid)
        self._at_end.discard(uid)


def sizes_of(
    grouping: Grouping, lengths: Iterable[int], groups: Iterable[GroupSize] = ()
) -> list[BatchSize]:
    """The sizes of `groups` once rows of these lengths have joined."""
    sizes = list(groups)
    for length in lengths:
        sizes = grouping.placed(sizes, length)
    return [BatchSize(size.places, size.longest_tokens) for size in sizes]


def _next_tokens(row: SequenceRow) -> int:
    return row.tokens + AHEAD_TOKENS


def to_block_end(tokens: int, uncached_tokens: int) -> int:
    """The length of a chunk of at most `tokens` tokens. It ends with a block of the row that has
    `uncached_tokens` tokens which the prompt cache doesn't have, unless it is too short for that.
    """
    beyond = uncached_tokens % BLOCK_TOKENS
    whole = (beyond + tokens) // BLOCK_TOKENS * BLOCK_TOKENS
    return whole - beyond if whole else tokens


def _seen(row: SequenceRow, response: Any) -> int:
    """How many tokens the row's caches have seen after a step. `response` is mlx-lm's, which counts
    the tokens since the row joined.
    """
    done, all_tokens = response.progress
    return len(row.sequence.token_ids) - int(all_tokens - done)


def _segments(sequence: Sequence, done: int) -> list[list[int]]:
    """The tokens of a prompt after the first `done`, cut where snapshots are to be made."""
    boundaries = () if sequence.path is None else sequence.path.boundaries
    places = [boundary * BLOCK_TOKENS for boundary in boundaries if boundary * BLOCK_TOKENS > done]
    ends = [*places, len(sequence.token_ids)]
    return [
        sequence.token_ids[begin:end]
        for begin, end in zip([done, *places], ends, strict=True)
        if begin < end
    ]
