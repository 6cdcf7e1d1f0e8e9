"""The caches of a model, and the decoding of one sequence with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import mlx.core as mx

from worker.engines.sequence import Sequence
from worker.mlx_lm.added_caches import QuantizingModel
from worker.mlx_lm.caches import (
    can_be_merged,
    can_be_quantized,
    in_words,
    leaves_of,
    make_caches,
)
from worker.mlx_lm.generator import Tap
from worker.mlx_lm.generator import decode as decode_tokens
from worker.mlx_lm.step_watch import WatchedLogits, are_valid, watch
from worker.sampling.scores import Score
from worker.structure.sampler import ConstrainedSampler
from worker.system.errors import ModelError, may_pass, one_sentence


class Caches:
    """The caches of one model. `model` makes caches of the right kind for new rows of a batch."""

    def __init__(self, model: Any, kv_bits: int | None = None) -> None:
        """With `kv_bits` the caches are quantized from the first token on.

        Raises:
            ModelError: caches can't be quantized.
        """
        self.model = model
        if kv_bits is not None:
            _check_quantizable(make_caches(model))
            self.model = QuantizingModel(model, kv_bits)
            self._try()

    @property
    def can_be_merged(self) -> bool:
        """Whether the caches can be merged into those of a batch."""
        return can_be_merged(self.make())

    def make(self) -> list[Any]:
        return make_caches(self.model)

    def run(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """The logits for these tokens, shape (1, tokens, vocabulary). Nothing is computed yet. If
        the logits aren't needed, it is enough to compute the states of the caches.
        """
        logits: mx.array = self.model(tokens, cache=cache)
        return logits

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
                permanent=not may_pass(error),
            ) from error


def _check_quantizable(caches: list[Any]) -> None:
    other = [leaf for leaf in leaves_of(caches) if not can_be_quantized(leaf)]
    if other:
        raise ModelError(
            f"kv_bits: mlx-lm can't quantize all caches of this model: it has {in_words(other)}."
        )


class DecodedToken(NamedTuple):
    """A token, which isn't `valid` if the logits that it was drawn from aren't."""

    token_id: int
    score: Score | None
    valid: bool


class RowSampler:
    """The sampler of a sequence that runs alone. It reads the model's logits from the tap."""

    def __init__(self, sequence: Sequence, model: Any) -> None:
        self.tap = Tap(model)
        self._sampler = ConstrainedSampler[int](lambda: (0,), self._pop_logits)
        # The logits of tokens that were not given out yet.
        self._watched: deque[WatchedLogits] = deque()
        sequence.join(self._sampler, 0)

    def __call__(self, logprobs: mx.array) -> mx.array:
        return self._sampler(logprobs)

    def _pop_logits(self) -> mx.array:
        logits = self.tap.pop_logits()
        watched = watch(logits[:, -1, :])
        mx.async_eval(watched.levels)  # type: ignore[no-untyped-call]  # MLX's own stubs
        self._watched.append(watched)
        return logits

    def next_valid(self) -> bool:
        """Whether the earliest token that wasn't asked for yet was drawn from valid logits."""
        watched = self._watched.popleft()
        return all(are_valid(watched.levels, watched.flat_level))

    def next_score(self) -> Score | None:
        return self._sampler.next_score(0)

    def remove_broken(self) -> str | None:
        """The reason why the sequence can't go on; None: it can go on."""
        return self._sampler.remove_broken().get(0)


def decode(sequence: Sequence, caches: list[Any], sampler: RowSampler) -> Iterator[DecodedToken]:
    """Decode at most `max_tokens` tokens of the sequence. At the beginning the caches have seen all
    tokens of the sequence but the last. When a token is given out, the caches have seen that token,
    too. `sampler` belongs to the sequence.
    """
    budget = [] if sequence.budget is None else [sequence.budget]
    for token_id in decode_tokens(
        sequence.token_ids, sampler.tap, caches, sequence.max_tokens, sampler, budget
    ):
        yield DecodedToken(token_id, sampler.next_score(), sampler.next_valid())
