"""The caches of a model and its draft model, and the decoding of one sequence with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import mlx.core as mx

from worker.engines.sequence import Sequence
from worker.mlx_lm import decoding as mlx_lm
from worker.mlx_lm.caches import (
    can_be_merged,
    can_be_quantized,
    grows,
    in_words,
    leaves_of,
    make_caches,
)
from worker.mlx_lm.generator import Tap
from worker.mlx_lm.quantized_cache import QuantizingModel
from worker.mlx_lm.rows import LogitsProcessor
from worker.sampling.adjustments import Adjuster
from worker.sampling.batch import BatchSampler
from worker.sampling.scores import Score, Scores
from worker.sampling.settings import RowSampling
from worker.structure.sampler import ConstrainedSampler
from worker.system.errors import ModelError, one_sentence


class Caches:
    """The caches of one model, and of its draft model if there is one. `model` makes caches of the
    right kind for new rows of a batch.

    In a list of caches, the model's own come before those of the draft model.
    """

    def __init__(self, model: Any, draft: Any = None, kv_bits: int | None = None) -> None:
        """With `kv_bits` the caches of the model are quantized from the first token on. The caches
        of the draft model are not.

        Raises:
            ModelError: caches can't be quantized, or can't forget wrong guesses of the draft model.
        """
        self.draft = draft
        self.model = model
        own = make_caches(model)
        self._own = len(own)
        if kv_bits is not None:
            _check_quantizable(own)
            self.model = QuantizingModel(model, kv_bits)
            self._try()
        if draft is not None:
            _check_rewindable("the model", own)
            _check_rewindable("the draft model", make_caches(draft))

    @property
    def can_be_merged(self) -> bool:
        """Whether the model's caches can be merged into those of a batch. With a draft model they
        can't.
        """
        return self.draft is None and can_be_merged(self.make())

    def make(self) -> list[Any]:
        caches = make_caches(self.model)
        return caches if self.draft is None else caches + make_caches(self.draft)

    def parts(self, caches: list[Any]) -> tuple[list[Any], list[Any]]:
        """Divide a list of caches into the model's and the draft model's."""
        return caches[: self._own], caches[self._own :]

    def cached_models(self, caches: list[Any]) -> tuple[mlx_lm.CachedModel, mlx_lm.CachedModel]:
        """The model and the draft model, each with its own caches from this list."""
        own, draft = self.parts(caches)
        return mlx_lm.CachedModel(self.model, own), mlx_lm.CachedModel(self.draft, draft)

    def run(self, tokens: mx.array, cache: list[Any]) -> tuple[mx.array, ...]:
        """The logits of each model for these tokens, shape (1, tokens, vocabulary). Nothing is
        computed yet. If the logits aren't needed, it is enough to compute the states of the caches.
        """
        own, draft = self.parts(cache)
        logits = self.model(tokens, cache=own)
        if self.draft is None:
            return (logits,)
        return logits, self.draft(tokens, cache=draft)

    def _try(self) -> None:
        """Run some tokens with quantized caches. Only this shows whether the model's attention
        works with quantized caches, and whether the width of its heads can be quantized.
        """
        caches = self.make()
        try:
            for tokens in ([[0, 0]], [[0]]):
                mx.eval(self.run(mx.array(tokens), caches))
        except Exception as error:
            raise ModelError(
                f"kv_bits: this model can't work with quantized caches: {one_sentence(error)}",
                permanent=not isinstance(error, RuntimeError | MemoryError),
            ) from error


def _check_quantizable(caches: list[Any]) -> None:
    other = [each for each in leaves_of(caches) if not can_be_quantized(each)]
    if other:
        raise ModelError(
            f"kv_bits: mlx-lm can't quantize all caches of this model: it has {in_words(other)}."
        )


def _check_rewindable(whose: str, caches: list[Any]) -> None:
    other = [each for each in leaves_of(caches) if not grows(each)]
    if other:
        raise ModelError(
            f"draft_model: wrong guesses of a draft model are taken back from the caches, and "
            f"{whose} has {in_words(other)}, which can't forget single tokens."
        )


class Decoded(NamedTuple):
    token_id: int
    score: Score | None


class RowSampler:
    """The sampler of a sequence that runs alone. It reads the model's logits from the tap."""

    def __init__(self, sequence: Sequence, model: Any) -> None:
        self.tap = Tap(model)
        self._sampler = ConstrainedSampler[int](lambda: (0,), self.tap.take)
        sequence.join(self._sampler, 0)

    def __call__(self, logprobs: mx.array) -> mx.array:
        return self._sampler(logprobs)

    def take_score(self) -> Score | None:
        return self._sampler.take_score(0)

    def take_broken(self) -> str | None:
        """The reason why the sequence can't go on; None: it can go on."""
        return self._sampler.take_broken().get(0)


def decode(sequence: Sequence, caches: list[Any], sampler: RowSampler) -> Iterator[Decoded]:
    """Decode at most `max_tokens` tokens of the sequence. At the beginning the caches have seen all
    tokens of the sequence but the last. When a token is given out, the caches have seen that token,
    too. `sampler` belongs to the sequence.
    """
    for token_id in mlx_lm.decode(
        sequence.token_ids, sampler.tap, caches, sequence.max_tokens, sampler, _budget(sequence)
    ):
        yield Decoded(token_id, sampler.take_score())


def decode_ahead(
    sequence: Sequence, caches: Caches, made: list[Any], draft_tokens: int
) -> Iterator[Decoded]:
    """Decode the same tokens as `decode`. The draft model guesses `draft_tokens` tokens, and the
    model checks these together. `made` are caches of both models. When a token is given out, the
    caches may not have seen the last `UNSEEN_TOKENS` tokens. Further content of the caches is not
    valid.
    """
    guessed = mlx_lm.decode_ahead(
        sequence.token_ids,
        *caches.cached_models(made),
        draft_tokens,
        sequence.max_tokens,
        None if sequence.sampling is None else _draw(sequence.sampling),
        [*_budget(sequence), *_adjustments(sequence)],
    )
    for token_id, logits in guessed:
        score = None
        if sequence.logprobs is not None:
            (score,) = Scores(logits, mx.array([token_id]), [sequence.logprobs]).read()
        yield Decoded(token_id, score)


def _draw(sampling: RowSampling) -> mlx_lm.Draw:
    def draw(at: int, logprobs: mx.array) -> mx.array:
        sampler = BatchSampler[int](lambda: (0,))
        sampler.add(0, sampling.again_after(at))
        return sampler(logprobs)

    return draw


def _budget(sequence: Sequence) -> list[LogitsProcessor]:
    return [] if sequence.budget is None else [sequence.budget]


def _adjustments(sequence: Sequence) -> list[LogitsProcessor]:
    """The adjustments of the sequence as processors of logits. A sampler can't make them, since
    mlx-lm takes tokens back without telling the sampler.
    """
    adjustments = sequence.adjustments
    if adjustments is None:
        return []

    def adjust(tokens: mx.array, logits: mx.array) -> mx.array:
        history = adjustments.begin(tokens, vocabulary=logits.shape[-1])
        return Adjuster([history]).adjust(logits, logits)

    return [adjust]
