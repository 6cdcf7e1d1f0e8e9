"""The caches of a model and its draft model, and the tokens that both decode for one sequence."""

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
    quantized,
)
from worker.mlx_lm.generator import LogitsProcessor, Tap
from worker.sampling.adjustments import Adjuster
from worker.sampling.batch import BatchSampler
from worker.sampling.scores import Score, Scores
from worker.sampling.settings import RowSampling
from worker.structure.sampler import ConstrainedSampler
from worker.system.errors import ModelError, one_sentence


class Caches:
    """The caches of one model, and of its draft model if there is one.

    A list of caches begins with the model's.
    """

    def __init__(self, model: Any, draft: Any = None, kv_bits: int | None = None) -> None:
        """With `kv_bits` the model's caches are quantized from the first token on; the draft's are
        not.

        Raises:
            ModelError: they can't be quantized, or can't forget wrong guesses of the draft model.
        """
        self.draft = draft
        self._model = model
        self._kv_bits = kv_bits
        own = make_caches(model)
        self._own = len(own)
        if kv_bits is not None:
            _check_quantizable(own)
            self._try()
        if draft is not None:
            _check_rewindable("the model", own)
            _check_rewindable("the draft model", make_caches(draft))

    @property
    def can_be_merged(self) -> bool:
        """Whether the caches can be merged into those of a batch."""
        return self.draft is None and can_be_merged(self.make())

    def make(self) -> list[Any]:
        caches: list[Any] = make_caches(self._model)
        if self._kv_bits is not None:
            caches = [quantized(each, self._kv_bits) for each in caches]
        return caches if self.draft is None else caches + make_caches(self.draft)

    def parts(self, caches: list[Any]) -> tuple[list[Any], list[Any]]:
        """The model's, and the draft model's."""
        return caches[: self._own], caches[self._own :]

    def cached_models(self, caches: list[Any]) -> tuple[mlx_lm.CachedModel, mlx_lm.CachedModel]:
        """The model and the draft model, each with its part of these caches."""
        own, draft = self.parts(caches)
        return mlx_lm.CachedModel(self._model, own), mlx_lm.CachedModel(self.draft, draft)

    def run(self, tokens: mx.array, cache: list[Any]) -> tuple[mx.array, ...]:
        """Logits of shape (1, tokens, vocabulary) of each model. The caches take the tokens in as
        their states are computed.
        """
        own, draft = self.parts(cache)
        logits = self._model(tokens, cache=own)
        if self.draft is None:
            return (logits,)
        return logits, self.draft(tokens, cache=draft)

    def _try(self) -> None:
        """Try quantized caches. Only a try tells whether the attention of a model works with them,
        and whether the width of its heads can be quantized.
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
    """Samples one row, from the logits of the model that the tap keeps."""

    def __init__(self, sequence: Sequence, model: Any) -> None:
        self.tap = Tap(model)
        self._sampler = ConstrainedSampler[int](lambda: (0,), self.tap.take)
        sequence.join(self._sampler, 0)

    def __call__(self, logprobs: mx.array) -> mx.array:
        return self._sampler(logprobs)

    def take_score(self) -> Score | None:
        return self._sampler.take_score(0)

    def take_broken(self) -> str | None:
        """Why the row can't go on, if so."""
        return self._sampler.take_broken().get(0)


def decode(sequence: Sequence, caches: list[Any], sampler: RowSampler) -> Iterator[Decoded]:
    """Tokens up to the longest answer. The caches have seen all of the sequence but its last token.
    When a token is given out, they have seen it too. `sampler` is the sequence's.
    """
    for token_id in mlx_lm.decode(
        sequence.token_ids, sampler.tap, caches, sequence.max_tokens, sampler, _budget(sequence)
    ):
        yield Decoded(token_id, sampler.take_score())


def decode_ahead(
    sequence: Sequence, caches: Caches, made: list[Any], draft_tokens: int
) -> Iterator[Decoded]:
    """The same tokens. The draft model guesses `draft_tokens` at a time, and the model checks them
    together. `made` are caches of both. With each token that is given out, they may not have seen
    the last `UNSEEN_TOKENS`, and their content after them is of no use.
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
    """The adjustments as processors, since mlx-lm takes tokens back without telling samplers."""
    adjustments = sequence.adjustments
    if adjustments is None:
        return []

    def adjust(tokens: mx.array, logits: mx.array) -> mx.array:
        history = adjustments.begin(tokens, vocabulary=logits.shape[-1])
        return Adjuster([history]).adjust(logits, logits)

    return [adjust]
