"""Models without their heads, which make the hidden states of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import mlx.core as mx

from worker.mlx_lm.caches import make_caches
from worker.mlx_lm.models import trunk_of


class PaddedTexts(NamedTuple):
    """The texts of a batch, or a chunk of their tokens, padded on the right. `tokens` and `types`:
    (texts, tokens). `lengths` are the lengths of the whole texts. `unseen` are the numbers of last
    tokens that no token attends to; None: all are seen.
    """

    tokens: mx.array
    types: mx.array | None
    lengths: Sequence[int]
    unseen: Sequence[int] | None = None

    def chunk(self, begin: int, end: int) -> PaddedTexts:
        types = None if self.types is None else self.types[:, begin:end]
        return PaddedTexts(self.tokens[:, begin:end], types, self.lengths, self.unseen)


class Backbone(Protocol):
    """A model without its head. `in_chunks`: a batch may be computed in chunks of its tokens."""

    in_chunks: bool

    def make_caches(self) -> Any:
        """New caches for a batch, which `states` gets with each chunk; None: the model has none."""

    def states(self, texts: PaddedTexts, caches: Any) -> mx.array:
        """The hidden states of texts, (texts, tokens, width). `make_caches` made the `caches`."""


class Decoder:
    """A model whose tokens see only earlier tokens, so padding on the right changes nothing."""

    in_chunks = True

    def __init__(self, model: Any, backbone: Any) -> None:
        self._model = model
        self._backbone = backbone

    @classmethod
    def of(cls, model: Any) -> Decoder | None:
        """The decoder of a model; None: the model's backbone can't be told from its head."""
        backbone = trunk_of(model)
        return None if backbone is None else cls(model, backbone)

    def make_caches(self) -> Any:
        return make_caches(self._model)

    def states(self, texts: PaddedTexts, caches: Any) -> mx.array:
        states: mx.array = self._backbone(texts.tokens, cache=caches)
        mx.eval([cache.state for cache in caches])
        return states


class Encoder:
    """A model whose tokens see their whole text."""

    in_chunks = False

    def __init__(self, model: Any) -> None:
        """`model` is one of `worker.mlx_embeddings` or `worker.mlx_vlm_encoders`."""
        self._model = model

    def make_caches(self) -> Any:
        return None

    def states(self, texts: PaddedTexts, caches: Any) -> mx.array:
        places = mx.arange(texts.tokens.shape[1])[None, :]
        ends = mx.array(list(texts.lengths))[:, None]
        there = (places < ends).astype(self._model.dtype)
        seen = there
        if texts.unseen is not None:
            seen = (places < ends - mx.array(list(texts.unseen))[:, None]).astype(there.dtype)
        states: mx.array = self._model.states(texts.tokens, texts.types, seen, there)
        return states
