"""The caches that a loaded model computes with: its own, or quantized, and a draft model's."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from worker.mlx_lm.caches import (
    can_be_merged,
    can_be_quantized,
    grows,
    in_words,
    leaves_of,
    make_caches,
    quantized,
)
from worker.system.errors import ModelError, one_sentence


class Caches:
    """The caches of one model, and of its draft model if there is one.

    A list of caches begins with the model's.
    """

    def __init__(self, model: Any, draft: Any = None, kv_bits: int | None = None) -> None:
        """With `kv_bits` the model's are quantized from the first token on; the draft's are not.

        Raises:
            ModelError: they can't be quantized, or what the draft got wrong can't be taken back.
        """
        self._model = model
        self._draft = draft
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
        return self._draft is None and can_be_merged(self.make())

    def make(self) -> list[Any]:
        caches: list[Any] = make_caches(self._model)
        if self._kv_bits is not None:
            caches = [quantized(each, self._kv_bits) for each in caches]
        return caches if self._draft is None else caches + make_caches(self._draft)

    def parts(self, caches: list[Any]) -> tuple[list[Any], list[Any]]:
        """The model's, and the draft model's."""
        return caches[: self._own], caches[self._own :]

    def run(self, tokens: mx.array, cache: list[Any]) -> tuple[mx.array, ...]:
        """Logits of shape (1, tokens, vocabulary) of each model. The caches take the tokens in as
        their states are computed.
        """
        own, draft = self.parts(cache)
        logits = self._model(tokens, cache=own)
        if self._draft is None:
            return (logits,)
        return logits, self._draft(tokens, cache=draft)

    def _try(self) -> None:
        """Try quantized caches. Attention of some models can't work with them, or the width of
        their heads can't be quantized: only a try tells.
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
            f"draft_model: what a draft model got wrong has to be taken back from the caches, and "
            f"{whose} has {in_words(other)}, which can't forget single tokens."
        )
