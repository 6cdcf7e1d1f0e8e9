"""A model as mlx-lm calls it, and the logits that it computed."""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx

# Taken for it until a model has computed anything; few have more.
LARGE_VOCABULARY: Final = 1 << 18


class LogitsTap:
    """Samplers get log probabilities from mlx-lm, of which logits can't be made again, and whoever
    computes a prompt gets nothing at all. So what the model gave is looked at here.
    """

    def __init__(self, model: Any) -> None:
        self.vocabulary = LARGE_VOCABULARY
        # Whether the logits of prompts are wanted: nobody computes what nobody looks at.
        self.watches_prompts = False
        self._model = model
        self._last: mx.array | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, tokens: mx.array, *arguments: Any, **options: Any) -> mx.array:
        """Token ids (rows, tokens) to logits (rows, tokens, vocabulary)."""
        logits: mx.array = self._model(tokens, *arguments, **options)
        self.vocabulary = logits.shape[-1]
        # Of a chunk they would keep alive what they are to be computed from.
        kept = tokens.shape[1] == 1 or self.watches_prompts
        self._last = logits if kept else None
        return logits

    @property
    def last(self) -> mx.array | None:
        """What the last call gave, if nobody has taken it and it was kept."""
        return self._last

    def take(self) -> mx.array:
        """What the last call gave; once.

        Raises:
            RuntimeError: there is nothing.
        """
        logits, self._last = self._last, None
        if logits is None:
            raise RuntimeError("mlx-lm samples what the model has not computed.")
        return logits
