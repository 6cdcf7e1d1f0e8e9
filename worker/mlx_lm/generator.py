"""mlx-lm's continuous batching: rows join and leave between steps, and one sampler serves them all.

mlx-lm calls a sampler that all rows share once a step, with the log probabilities of all of them,
and doesn't say which rows they are. So the batches are of classes of our own, which tell the rows
before they sample, and each token that comes back is compared with the one chosen for its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Final, NamedTuple, TypeAlias

import mlx.core as mx
from mlx_lm.generate import (
    BatchGenerator,
    GenerationBatch,
    PromptProcessingBatch,
    StopSequences,
)

# With it, a BatchGenerator's changes of the wired limit do nothing.
import worker.mlx_lm.wiring  # noqa: F401
from worker.mlx_lm.caches import leaves_of

# Log probabilities (rows, vocabulary) to token ids (rows,).
Sampler: TypeAlias = Callable[[mx.array], mx.array]
# Of all tokens of a row and its logits (1, vocabulary), other logits.
LogitsProcessor: TypeAlias = Callable[[mx.array, mx.array], mx.array]
# Taken for the width of the logits until a model has computed any; few have more.
LARGE_VOCABULARY: Final = 1 << 18


class RowCaches(NamedTuple):
    """Caches of a batch, and the place of one row in them."""

    caches: list[Any]
    place: int


class NewRow(NamedTuple):
    """A row to compute: its prompt ends in these segments. `caches` have `seen` the tokens before
    them, and belong to the generator once the row is inserted.
    """

    segments: list[list[int]]
    max_tokens: int
    stop_token_ids: Sequence[int] = ()
    caches: list[Any] | None = None
    seen: Sequence[int] = ()
    processors: Sequence[LogitsProcessor] = ()


class Stepped(NamedTuple):
    """What a step gave, in mlx-lm's own responses: of rows whose prompt is computed, and of rows
    that decode, whose `prompt_cache` is `RowCaches` at the end of the row. The prompts had so many
    tokens in this step, which took so long.
    """

    prompts: list[Any]
    tokens: list[Any]
    prompt_tokens: int = 0
    prompt_s: float = 0.0

    @property
    def ended(self) -> dict[int, RowCaches]:
        """The caches of the rows that have ended."""
        return {each.uid: each.prompt_cache for each in self.tokens if each.finish_reason}


class Tap:
    """A model as mlx-lm calls it. Keeps the logits of the last call, of which samplers get log
    probabilities alone, and the rows that are sampled.
    """

    def __init__(self, model: Any) -> None:
        self.vocabulary = LARGE_VOCABULARY
        # Whether the logits of prompts are wanted: nobody computes what nobody looks at.
        self.watches_prompts = False
        self._model = model
        self._last: mx.array | None = None
        self._rows: tuple[int, ...] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, tokens: mx.array, *arguments: Any, **options: Any) -> mx.array:
        """Token ids (rows, tokens) to logits (rows, tokens, vocabulary)."""
        logits: mx.array = self._model(tokens, *arguments, **options)
        self.vocabulary = logits.shape[-1]
        # Logits of a chunk would keep alive the arrays that they are to be computed from.
        kept = tokens.shape[1] == 1 or self.watches_prompts
        self._last = logits if kept else None
        return logits

    @property
    def last(self) -> mx.array | None:
        """The logits of the last call, if they were kept and nobody has taken them."""
        return self._last

    def take(self) -> mx.array:
        """The logits of the last call; once.

        Raises:
            RuntimeError: there are none.
        """
        logits, self._last = self._last, None
        if logits is None:
            raise RuntimeError("mlx-lm samples what the model has not computed.")
        return logits

    def rows(self) -> tuple[int, ...]:
        """The rows that are being sampled, in the order of their log probabilities.

        Raises:
            RuntimeError: no batch has told them.
        """
        if self._rows is None:
            raise RuntimeError("mlx-lm samples rows and none of its batches has told which.")
        return self._rows

    def forget_rows(self) -> None:
        self._rows = None

    @contextmanager
    def sampling(self, rows: Sequence[int]) -> Iterator[None]:
        """These rows are sampled in the block, once."""
        self._rows = tuple(rows)
        try:
            yield
        finally:
            self._rows = None


class Generator:
    """Rows of one model. A row is known by the number that `insert` gives it."""

    def __init__(
        self, tap: Tap, sampler: Sampler, rows: int, prompts: int, *, lends: bool = True
    ) -> None:
        """At most `rows` decode at a time, and `prompts` are computed. Without `lends` the
        caches of a row that ends are copies, of that row alone.
        """
        self.tap = tap
        self._sampling = _Sampling(tap, sampler)
        self._generator = BatchGenerator(
            tap,
            sampler=self._sampling,
            completion_batch_size=rows,
            prefill_batch_size=prompts,
        )
        # Private names: mlx-lm has no other way to give it batches of another class.
        self._prompts = _Prompts.empty(tap, self._sampling)
        self._decoding = (_LendingRows if lends else _Rows).empty(tap, self._sampling)
        self._generator._prompt_batch = self._prompts
        self._generator._generation_batch = self._decoding

    def insert(self, row: NewRow) -> int:
        """Add a row; returns its number."""
        (number,) = self._generator.insert_segments(
            [row.segments],
            max_tokens=[row.max_tokens],
            caches=[row.caches],
            all_tokens=[list(row.seen)],
            logits_processors=[list(row.processors)],
            stop_sequences=[StopSequences([(each,) for each in row.stop_token_ids])],
        )
        return int(number)

    def remove(self, rows: list[int]) -> None:
        """Take rows out; unknown ones are ignored."""
        self._generator.remove(rows)

    def step(self, chunk: int = 0, *, watched: bool = False) -> Stepped:
        """A token of each row that decodes, and `chunk` tokens of each prompt, which is 0 if there
        are none. With `watched` the tap keeps the logits of the prompts.

        Raises:
            RuntimeError: mlx-lm gives a row a token that was not chosen for it.
        """
        self.tap.watches_prompts = watched
        chosen = self._sampling.take()
        if not chunk:
            stepped = Stepped(*self._generator.next())
        else:
            self._generator.prefill_step_size = chunk
            with self._generator.stats() as stats:
                prompts, tokens = self._generator.next()
            stepped = Stepped(prompts, tokens, stats.prompt_tokens, stats.prompt_time)
        _check(stepped.tokens, chosen)
        return stepped

    def places(self) -> dict[int, RowCaches]:
        """Of each row that has begun: its caches between steps, which are those of its batch."""
        return {
            row: RowCaches(batch.prompt_cache, place)
            for batch in (self._prompts, self._decoding)
            for place, row in enumerate(batch.uids)
        }

    @property
    def prompt_caches(self) -> list[Any]:
        """Of the rows whose prompt is computed."""
        caches: list[Any] = self._prompts.prompt_cache
        return caches

    @property
    def answer_caches(self) -> list[Any]:
        """Of the rows that decode."""
        caches: list[Any] = self._decoding.prompt_cache
        return caches

    def close(self) -> None:
        self._generator.close()
        del self._generator, self._prompts, self._decoding


# Of a model, with a sampler for at most so many rows, and so many prompts at a time.
MakeGenerator: TypeAlias = Callable[[Tap, Sampler, int, int], Generator]
# Rows, and what was chosen for them in one call.
_Chosen: TypeAlias = tuple[tuple[int, ...], mx.array]


class _Sampling:
    """The one sampler of all rows: it remembers for which rows it chose which tokens."""

    def __init__(self, tap: Tap, sampler: Sampler) -> None:
        self._tap = tap
        self._sampler = sampler
        self._chosen: list[_Chosen] = []

    def __call__(self, logprobs: mx.array) -> mx.array:
        rows = self._tap.rows()
        if len(rows) != logprobs.shape[0]:
            raise RuntimeError(f"mlx-lm samples {logprobs.shape[0]} rows, and told {len(rows)}.")
        tokens = self._sampler(logprobs)
        self._tap.forget_rows()
        self._chosen.append((rows, tokens))
        return tokens

    def take(self) -> list[_Chosen]:
        """The calls of one step: mlx-lm gives their tokens out in the next."""
        chosen, self._chosen = self._chosen, []
        return chosen


def _check(responses: list[Any], chosen: list[_Chosen]) -> None:
    # They are computed: mlx-lm has read them to give them out.
    tokens = {
        row: token
        for rows, chosen_tokens in chosen
        for row, token in zip(rows, chosen_tokens.tolist(), strict=True)  # type: ignore[arg-type]
    }
    if any(tokens.get(each.uid) != each.token for each in responses):
        raise RuntimeError("mlx-lm gives a row a token that was chosen for another one.")


class _Prompts(PromptProcessingBatch):  # type: ignore[misc]  # mlx-lm is untyped
    """Rows whose prompt is computed; at its end their first token is sampled, in `generate`."""

    def generate(self, tokens: list[list[int]]) -> Any:
        with self.model.sampling(self.uids):
            return super().generate(tokens)


class _Rows(GenerationBatch):  # type: ignore[misc]
    """Rows that decode, without each row's log probabilities, which nobody reads.

    mlx-lm cuts each row's out of the batch's at the end of a step, two operations a row. On a CPU
    MLX returns from `async_eval` once 100 small tasks are left, each operation being two
    (`MAX_ACTIVE_TASKS` in its transforms.cpp, `DISPATCHES_PER_TASK` in its encoder.h). Without
    these operations MLX has nothing to do while Python makes the next step.
    """

    _unread: list[None]

    # A private name. mlx-lm has an array for each row here.
    @property
    def _next_logprobs(self) -> list[None]:
        return self._unread

    @_next_logprobs.setter
    def _next_logprobs(self, logprobs: list[Any]) -> None:
        self._unread = [None] * len(logprobs)

    def next(self) -> Any:
        with self.model.sampling(self.uids):
            return super().next()

    def extract_cache(self, idx: int) -> RowCaches:
        return RowCaches(super().extract_cache(idx), 0)


class _LendingRows(_Rows):
    """With a row's last token it gives out the caches of the whole batch, where mlx-lm copies the
    row's, array by array; rows that end together have the same. To be used before the next step,
    which would need that memory twice.

    What is cut into blocks is copied then. Copied before, too, it held up the other rows for longer
    than a step on a GPU, where some ended together.
    """

    # In this step.
    _lent: list[Any] | None = None

    def next(self) -> Any:
        try:
            return super().next()
        finally:
            self._lent = None

    def extract_cache(self, idx: int) -> RowCaches:
        if self._lent is None:
            # Without rows that end a batch goes on with other arrays; these stay as they are.
            self._lent = [copy(leaf) for leaf in leaves_of(self.prompt_cache)]
        return RowCaches(self._lent, idx)
