"""Models without their heads: tokens to hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from worker.mlx_lm.caches import make_caches
from worker.mlx_lm.models import trunk_of


class Trunk(Protocol):
    """`in_chunks`: texts may be computed a part after the other."""

    in_chunks: bool

    def begin(self) -> Any:
        """What is kept from one chunk of a batch to the next."""

    def states(
        self,
        tokens: mx.array,
        types: mx.array | None,
        lengths: Sequence[int],
        kept: Any,
    ) -> mx.array:
        """Of shape (texts, tokens, width), for tokens padded on the right."""


class Decoder:
    """Tokens see those before them alone, so what is padded on the right changes nothing."""

    in_chunks = True

    def __init__(self, model: Any, trunk: Any) -> None:
        self._model = model
        self._trunk = trunk

    @classmethod
    def of(cls, model: Any) -> Decoder | None:
        """None: the architecture's parts aren't to be told apart."""
        trunk = trunk_of(model)
        return None if trunk is None else cls(model, trunk)

    def begin(self) -> Any:
        return make_caches(self._model)

    def states(
        self,
        tokens: mx.array,
        types: mx.array | None,
        lengths: Sequence[int],
        kept: Any,
    ) -> mx.array:
        states: mx.array = self._trunk(tokens, cache=kept)
        mx.eval([each.state for each in kept])
        return states


class Encoder:
    """Tokens see all of their text."""

    in_chunks = False

    def __init__(self, model: Any) -> None:
        """`model` is one of `worker.mlx_embeddings`."""
        self._model = model

    def begin(self) -> Any:
        return None

    def states(
        self,
        tokens: mx.array,
        types: mx.array | None,
        lengths: Sequence[int],
        kept: Any,
    ) -> mx.array:
        mask = mx.arange(tokens.shape[1])[None, :] < mx.array(list(lengths))[:, None]
        states: mx.array = self._model.states(tokens, types, mask.astype(self._model.dtype))
        return states
