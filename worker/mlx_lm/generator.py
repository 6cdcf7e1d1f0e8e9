"""mlx-lm's continuous batching: rows join and leave between steps, and one sampler serves all rows.

In each step mlx-lm calls the shared sampler with the log probabilities of all rows, but doesn't say
which rows they are. So subclasses of its batches note the rows before they sample. Each token that
mlx-lm gives out is compared with the token that was chosen for its row.
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

# This import makes a BatchGenerator's changes of the wired limit do nothing.
import worker.mlx_lm.macos  # noqa: F401
from worker.mlx_lm.caches import leaves_of

# Chooses token ids, shape (rows,), from log probabilities, shape (rows, vocabulary).
Sampler: TypeAlias = Callable[[mx.array], mx.array]
# Adjusts the logits of a row, shape (1, vocabulary), by the tokens of the row.
LogitsProcessor: TypeAlias = Callable[[mx.array, mx.array], mx.array]
# The assumed width of logits until a model has computed some. Few models have wider logits.
LARGE_VOCABULARY: Final = 1 << 18


class RowCaches(NamedTuple):
    """The caches of a batch, and the index of one row in them."""

    caches: list[Any]
    place: int


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


class Stepped(NamedTuple):
    """The results of a step, as mlx-lm's own responses: `prompts` of rows in prefill, and `tokens`
    of rows that decode. If a row ends, its token's `prompt_cache` is a `RowCaches`. The step
    computed `prompt_tokens` tokens of prompts in `prompt_s` seconds.
    """

    prompts: list[Any]
    tokens: list[Any]
    prompt_tokens: int = 0
    prompt_s: float = 0.0

    @property
    def ended(self) -> dict[int, RowCaches]:
        """The caches of rows that ended with this step, by the row's number."""
        return {each.uid: each.prompt_cache for each in self.tokens if each.finish_reason}


class Tap:
    """The model that mlx-lm calls. It keeps the logits of the last call, since samplers get only
    log probabilities. It also keeps the rows that are sampled.
    """

    def __init__(self, model: Any) -> None:
        self.vocabulary = LARGE_VOCABULARY
        # Whether the logits of prompts are wanted. MLX doesn't compute logits that are never read.
        self.watches_prompts = False
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
        kept = tokens.shape[1] == 1 or self.watches_prompts
        self._last = logits if kept else None
        return logits

    @property
    def last(self) -> mx.array | None:
        """The logits of the last call, if they were kept and not taken yet."""
        return self._last

    def take(self) -> mx.array:
        """Take the logits of the last call.

        Raises:
            RuntimeError: no logits are kept.
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

    def forget_rows(self) -> None:
        self._rows = None

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
        self, tap: Tap, sampler: Sampler, rows: int, prompts: int, *, lends: bool = True
    ) -> None:
        """At most `rows` rows decode at a time, and at most `prompts` prompts are computed. If a
        row ends, its last token comes with caches: with `lends` those of the whole batch, otherwise
        a copy of the row's part.
        """
        self.tap = tap
        self._sampling = _Sampling(tap, sampler)
        self._generator = BatchGenerator(
            tap,
            sampler=self._sampling,
            completion_batch_size=rows,
            prefill_batch_size=prompts,
        )
        # Private names, since mlx-lm has no other way to set the classes of its batches.
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
        """Take rows out. Unknown rows are ignored."""
        self._generator.remove(rows)

    def step(self, chunk: int = 0, *, watched: bool = False) -> Stepped:
        """Decode a token of each row that decodes, and compute `chunk` tokens of each prompt; 0 if
        there are no prompts. With `watched` the tap keeps the logits of the prompts.

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
        """The caches of each row that has begun, by the row's number. A row has the caches of its
        batch. For use between two steps.
        """
        return {
            row: RowCaches(batch.prompt_cache, place)
            for batch in (self._prompts, self._decoding)
            for place, row in enumerate(batch.uids)
        }

    @property
    def prompt_caches(self) -> list[Any]:
        """The caches of the rows in prefill."""
        caches: list[Any] = self._prompts.prompt_cache
        return caches

    @property
    def answer_caches(self) -> list[Any]:
        """The caches of the rows that decode."""
        caches: list[Any] = self._decoding.prompt_cache
        return caches

    def close(self) -> None:
        self._generator.close()
        del self._generator, self._prompts, self._decoding


# Makes a generator from a model, a sampler, the most rows that decode, and the most prompts that
# are computed at a time.
MakeGenerator: TypeAlias = Callable[[Tap, Sampler, int, int], Generator]
# Rows, and the tokens that one call of the sampler chose for them.
_Chosen: TypeAlias = tuple[tuple[int, ...], mx.array]


class _Sampling:
    """The one sampler of all rows. It remembers the rows and the tokens of each call."""

    def __init__(self, tap: Tap, sampler: Sampler) -> None:
        self._tap = tap
        self._sampler = sampler
        self._chosen: list[_Chosen] = []

    def __call__(self, logprobs: mx.array) -> mx.array:
        rows = self._tap.rows()
        if len(rows) != logprobs.shape[0]:
            raise RuntimeError(
                f"mlx-lm samples {logprobs.shape[0]} rows, and its batch has noted {len(rows)}."
            )
        tokens = self._sampler(logprobs)
        self._tap.forget_rows()
        self._chosen.append((rows, tokens))
        return tokens

    def take(self) -> list[_Chosen]:
        """Take the rows and tokens of one step's calls. mlx-lm gives out these tokens in the next
        step.
        """
        chosen, self._chosen = self._chosen, []
        return chosen


def _check(responses: list[Any], chosen: list[_Chosen]) -> None:
    # `tolist` doesn't wait, since mlx-lm has read the tokens to give them out.
    tokens = {
        row: token
        for rows, chosen_tokens in chosen
        for row, token in zip(rows, chosen_tokens.tolist(), strict=True)  # type: ignore[arg-type]
    }
    if any(tokens.get(each.uid) != each.token for each in responses):
        raise RuntimeError("mlx-lm gives a row a token that was chosen for another one.")


class _Prompts(PromptProcessingBatch):  # type: ignore[misc]  # mlx-lm is untyped
    """Rows in prefill. At the end of their prompts `generate` samples their first tokens."""

    def generate(self, tokens: list[list[int]]) -> Any:
        with self.model.sampling(self.uids):
            return super().generate(tokens)


class _Rows(GenerationBatch):  # type: ignore[misc]
    """Rows that decode, without log probabilities for each row, which are never read.

    At the end of a step mlx-lm cuts each row's log probabilities out of the batch's, with two
    operations for each row. On a CPU MLX returns from `async_eval` once 100 small tasks are left,
    and each operation is two tasks (`MAX_ACTIVE_TASKS` in its transforms.cpp, `DISPATCHES_PER_TASK`
    in its encoder.h). If only such cuts are left then, MLX has almost no work while Python makes
    the next step.
    """

    _unread: list[None]

    # A private name. mlx-lm itself has an array for each row here.
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
    """Rows that decode, and lend their caches. The last token of a row comes with the caches of the
    whole batch. mlx-lm would copy the row's part, array by array. Rows that end together share the
    caches. The caches are to be used before the next step, which would otherwise need that memory
    twice.

    Cutting into blocks copies the caches anyway. With mlx-lm's copies before that, some rows that
    ended together held up other rows for longer than a step, on a GPU.
    """

    # The caches that come with the last tokens of rows that end in this step.
    _lent: list[Any] | None = None

    def next(self) -> Any:
        try:
            return super().next()
        finally:
            self._lent = None

    def extract_cache(self, idx: int) -> RowCaches:
        if self._lent is None:
            # The arrays of these copies stay as they are: the batch goes on with other arrays,
            # without the rows that end.
            self._lent = [copy(leaf) for leaf in leaves_of(self.prompt_cache)]
        return RowCaches(self._lent, idx)
