"""mlx-lm's continuous batching: rows join and leave between steps, and one sampler serves all rows.

Prompts are computed in mlx-lm's batches. Rows that decode have a batch of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, PromptProcessingBatch, generate_step, generation_stream

# These imports replace slow operations, and make a BatchGenerator's changes of the wired limit do
# nothing.
import worker.mlx_lm.cuda
import worker.mlx_lm.macos  # noqa: F401
from worker.mlx_lm.decoding_row import DecodingRow, LogitsProcessor, RowCaches, RowToken
from worker.mlx_lm.guessing import Drafter, Guesser, ObserveStep, WithStates
from worker.mlx_lm.row_groups import ONE_GROUP, Grouping, GroupSize
from worker.mlx_lm.rows import DecodingRows

# Chooses token ids, shape (rows,), from log probabilities, shape (rows, vocabulary).
Sampler: TypeAlias = Callable[[mx.array], mx.array]
# The assumed width of logits until a model has computed some. Few models have wider logits.
LARGE_VOCABULARY: Final = 1 << 18


class NewRow(NamedTuple):
    """A row to compute. `segments` are the parts of its prompt to compute, `seen` the tokens before
    them, which `caches` have seen. The caches belong to the generator once the row is inserted.
    """

    segments: list[list[int]]
    max_tokens: int
    stop_token_ids: Sequence[int] = ()
    caches: list[Any] | None = None
    seen: Sequence[int] = ()
    processors: Sequence[LogitsProcessor] = ()


class StepResult(NamedTuple):
    """The results of a step: `prompts` are mlx-lm's responses for rows in prefill. The step
    computed `prompt_tokens` tokens of prompts in `prompt_s` seconds.
    """

    prompts: list[Any]
    tokens: list[RowToken]
    prompt_tokens: int = 0
    prompt_s: float = 0.0

    @property
    def ended(self) -> dict[int, RowCaches]:
        """The caches of rows that ended with this step, by the row's number."""
        return {token.uid: token.prompt_cache for token in self.tokens if token.prompt_cache}


class Tap:
    """The model that mlx-lm calls. It keeps the logits of the last call, since samplers get only
    log probabilities. It also keeps the rows that are sampled.
    """

    def __init__(self, model: Any) -> None:
        self.vocabulary = LARGE_VOCABULARY
        # Whether the logits of prompts are wanted. MLX doesn't compute logits that are never read.
        self.watches_prompts = False
        # Gives the states of tokens, if a drafter wants them.
        self.with_states: WithStates | None = None
        self._model = model
        self._last: mx.array | None = None
        self._rows: tuple[int, ...] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, tokens: mx.array, *arguments: Any, **options: Any) -> mx.array:
        """Compute logits, shape (rows, tokens, vocabulary), of token ids, shape (rows, tokens)."""
        logits: mx.array = self._model(tokens, *arguments, **options)
        self.vocabulary = logits.shape[-1]
        # The logits of a chunk would keep alive the arrays from which they are computed.
        wanted = tokens.shape[1] == 1 or self.watches_prompts
        self._last = logits if wanted else None
        return logits

    def decode(self, tokens: mx.array, cache: list[Any]) -> tuple[mx.array, mx.array | None]:
        """Compute logits for rows that decode, and the states of the tokens, (rows, tokens, width),
        if these are wanted.
        """
        if self.with_states is None:
            return self(tokens, cache=cache), None
        logits, states = self.with_states(tokens, cache)
        self.vocabulary = logits.shape[-1]
        self._last = logits if tokens.shape[1] == 1 else None
        return logits, states

    @property
    def last(self) -> mx.array | None:
        """The logits of the last call, if the tap still has them."""
        return self._last

    def pop_logits(self) -> mx.array:
        """Take the logits of the last call.

        Raises:
            RuntimeError: the tap has no logits.
        """
        logits, self._last = self._last, None
        if logits is None:
            raise RuntimeError("mlx-lm samples logits that the model has not computed.")
        return logits

    def rows(self) -> tuple[int, ...]:
        """The rows that are being sampled, in the order of their log probabilities.

        Raises:
            RuntimeError: no batch has noted its rows.
        """
        if self._rows is None:
            raise RuntimeError("mlx-lm samples rows, and none of its batches has noted which.")
        return self._rows

    @contextmanager
    def sampling(self, rows: Sequence[int]) -> Iterator[None]:
        """Note that mlx-lm samples these rows in the `with` block, once."""
        self._rows = tuple(rows)
        try:
            yield
        finally:
            self._rows = None


class Generator:
    """Computes rows of one model in mlx-lm's batches. A row is known by the number that `insert`
    gives it.
    """

    def __init__(
        self,
        tap: Tap,
        sampler: Sampler,
        rows: int,
        prompts: int,
        guesser: Guesser | None = None,
        observe: ObserveStep | None = None,
        drafter: Drafter | None = None,
        *,
        lends: bool = True,
        grouping: Grouping = ONE_GROUP,
        numbers: Iterator[int] | None = None,
        watches: bool = True,
    ) -> None:
        """At most `rows` rows decode at a time, and at most `prompts` prompts are computed. If a
        row ends, its last token comes with caches: with `lends` those of its whole group, otherwise
        a copy of the row's part. With a `guesser` the sampler is a `Checker`. `observe` gets the
        times of steps. Generators whose rows come together take their rows' `numbers` from one
        iterator. The `drafter` guesses when the guesser asks for that. Without `watches` all logits
        count as valid.
        """
        self.tap = tap
        tap.with_states = None if drafter is None else drafter.with_states
        self._numbers = numbers
        self._generator = BatchGenerator(
            tap,
            sampler=sampler,
            completion_batch_size=rows,
            prefill_batch_size=prompts,
        )
        # Private names, since mlx-lm has no other way to set the classes of its batches.
        self._prompts = _Prompts.empty(tap, sampler)
        self._decoding = DecodingRows(
            tap,
            sampler,
            guesser,
            observe,
            drafter,
            lends=lends,
            grouping=grouping,
            watches=watches,
        )
        self._generator._prompt_batch = self._prompts
        self._generator._generation_batch = self._decoding

    def insert(self, row: NewRow) -> int:
        """Add a row; returns its number."""
        if self._numbers is not None:
            self._generator._uid_count = next(self._numbers)
        (number,) = self._generator.insert_segments(
            [row.segments],
            max_tokens=[row.max_tokens],
            caches=[row.caches],
            all_tokens=[list(row.seen)],
            logits_processors=[list(row.processors)],
            # mlx-lm only hands these on to the batch of rows that decode.
            stop_sequences=[frozenset(row.stop_token_ids)],
        )
        return int(number)

    def remove(self, rows: list[int]) -> None:
        """Take rows out. Unknown rows are ignored."""
        self._generator.remove(rows)

    def step(self, chunk: int = 0, *, watched: bool = False) -> StepResult:
        """Decode tokens of each row that decodes, and compute `chunk` tokens of each prompt; 0 if
        there are no prompts. With `watched` the tap keeps the logits of the prompts.
        """
        self.tap.watches_prompts = watched
        if not chunk:
            return StepResult(*self._generator.next())
        self._generator.prefill_step_size = chunk
        with self._generator.stats() as stats:
            prompts, tokens = self._generator.next()
        # The prompts would count as a part of the next step.
        self._decoding.leave_out()
        return StepResult(prompts, tokens, stats.prompt_tokens, stats.prompt_time)

    @property
    def spoilt(self) -> list[int]:
        """The rows whose logits weren't valid in the last step. They have to be removed before the
        next one.
        """
        return self._decoding.spoilt

    def remove_spoilt(self, rows: list[int]) -> None:
        """Take spoilt rows out, so that nothing of them is left in the caches."""
        with mx.stream(self._generator._stream):
            self._decoding.wipe(rows)
        self.remove(rows)

    def merge(self, other: Generator) -> None:
        """Take in all rows of another generator, which decode. Both have the same sampler."""
        with mx.stream(self._generator._stream):
            self._decoding.extend(other._decoding)
            other._decoding.filter([])

    def places(self) -> dict[int, RowCaches]:
        """The caches of each row that has begun, by the row's number: those of its group. For use
        between two steps.
        """
        prompts = self._prompts
        prompt_places = {
            row: RowCaches(prompts.prompt_cache, place) for place, row in enumerate(prompts.uids)
        }
        return prompt_places | self._decoding.places

    @property
    def groups(self) -> list[tuple[GroupSize, list[int]]]:
        """The size of each group of rows that decode, and the numbers of its rows."""
        return self._decoding.groups

    @property
    def prompt_caches(self) -> list[Any]:
        """The caches of the rows in prefill."""
        caches: list[Any] = self._prompts.prompt_cache
        return caches

    @property
    def answer_caches(self) -> list[Any]:
        """The caches of the rows that decode, or of their first group."""
        caches: list[Any] = self._decoding.prompt_cache
        return caches

    def close(self) -> None:
        self._generator.close()
        del self._generator, self._prompts, self._decoding


# Makes a generator from a model, a sampler, the most rows that decode, and the most prompts that
# are computed at a time.
MakeGenerator: TypeAlias = Callable[[Tap, Sampler, int, int], Generator]


class _Prompts(PromptProcessingBatch):  # type: ignore[misc]  # mlx-lm is untyped
    """Rows in prefill. At the end of their prompts `generate` draws their first tokens."""

    def generate(self, tokens: list[list[int]]) -> DecodingRows:
        """The rows as a batch that decodes. `tokens`: the last token of each prompt."""
        rows = [
            DecodingRow(uid, [*seen, *last], most, ends, processors)
            for uid, seen, last, most, ends, processors in zip(
                self.uids,
                self.tokens,
                tokens,
                self.max_tokens,
                self.stop_sequences,
                self.logits_processors,
                strict=True,
            )
        ]
        begun = DecodingRows(self.model, self.fallback_sampler, lends=False)
        begun.start(rows, self.prompt_cache)
        # The rows have their own lists and caches by now.
        self.filter([])
        return begun


def stream() -> mx.StreamContext:
    """MLX's stream on which mlx-lm computes, for other computations that must come in order with
    mlx-lm's.
    """
    return mx.stream(generation_stream)


def decode(
    token_ids: list[int],
    model: Any,
    caches: list[Any],
    max_tokens: int,
    sampler: Sampler,
    processors: Iterable[LogitsProcessor],
) -> Iterator[int]:
    """Decode at most `max_tokens` tokens that follow `token_ids`. At the beginning the caches have
    seen all of `token_ids` but the last. When a token is given out, the caches have seen that
    token, too.
    """
    steps = generate_step(
        mx.array(token_ids[-1:]),
        model,
        max_tokens=max_tokens,
        sampler=sampler,
        logits_processors=_for_all(token_ids, processors),
        prompt_cache=caches,
    )
    for token_id, _ in steps:
        yield int(token_id)


def _for_all(token_ids: list[int], processors: Iterable[LogitsProcessor]) -> list[LogitsProcessor]:
    """Processors that get all tokens of the sequence. mlx-lm itself gives them only the tokens that
    it got or made.
    """
    processors = list(processors)
    if not processors:
        return []
    seen = mx.array(token_ids[:-1], dtype=mx.uint32)

    def of_all(processor: LogitsProcessor) -> LogitsProcessor:
        def process(tokens: mx.array, logits: mx.array) -> mx.array:
            return processor(mx.concatenate([seen, tokens.astype(mx.uint32)]), logits)

        return process

    return [of_all(processor) for processor in processors]
