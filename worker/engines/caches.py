"""The caches that a loaded model computes with: its own, or quantized, and a draft model's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from worker.prompt_cache.blocks import GROWING, leaves_of
from worker.system.errors import ModelError, one_sentence

# As mlx-lm's own default: one scale and one bias for so many numbers.
_GROUP_SIZE: Final = 64
_KINDS: Final = (
    (RotatingKVCache, "a sliding window"),
    (ArraysCache, "a recurrent state"),
    (ChunkedKVCache, "chunked attention"),
)


class Caches:
    """Of one model, and of the draft model that runs ahead of it if there is one.

    A list of them begins with the model's.
    """

    def __init__(self, model: Any, draft: Any = None, kv_bits: int | None = None) -> None:
        """With `kv_bits` the model's are quantized from the first token on; the draft's are not.

        Raises:
            ModelError: they can't be quantized, or what the draft got wrong can't be taken back.
        """
        self._model = model
        self._draft = draft
        self._kv_bits = kv_bits
        own = make_prompt_cache(model)
        self._own = len(own)
        if kv_bits is not None:
            _check_quantizable(own)
            self._try()
        if draft is not None:
            _check_rewindable("the model", own)
            _check_rewindable("the draft model", make_prompt_cache(draft))

    @property
    def can_be_merged(self) -> bool:
        """Into those of a batch."""
        return self._draft is None and all(hasattr(each, "merge") for each in self.make())

    def make(self) -> list[Any]:
        caches: list[Any] = make_prompt_cache(self._model)
        if self._kv_bits is not None:
            caches = [_quantized(each, self._kv_bits) for each in caches]
        return caches if self._draft is None else caches + make_prompt_cache(self._draft)

    def model_part(self, caches: list[Any]) -> list[Any]:
        return caches[: self._own]

    def run(self, tokens: mx.array, cache: list[Any]) -> tuple[mx.array, ...]:
        """Logits of shape (1, tokens, vocabulary) of each model; caches take the tokens in as
        their states are computed.
        """
        logits = self._model(tokens, cache=cache[: self._own])
        if self._draft is None:
            return (logits,)
        return logits, self._draft(tokens, cache=cache[self._own :])

    def _try(self) -> None:
        """Attention of some models can't work with quantized caches, or their heads have a width
        that can't be quantized: each finds that out by itself.
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


def _quantized(cache: Any, bits: int) -> Any:
    if isinstance(cache, CacheList):
        return CacheList(*(_quantized(each, bits) for each in cache.caches))
    return cache.to_quantized(group_size=_GROUP_SIZE, bits=bits)


def _check_quantizable(caches: list[Any]) -> None:
    # Subclasses may keep more than keys and values.
    other = [each for each in leaves_of(caches) if type(each) not in (KVCache, QuantizedKVCache)]
    if other:
        raise ModelError(
            f"kv_bits: mlx-lm can't quantize all caches of this model: it has {_kinds(other)}."
        )


def _check_rewindable(whose: str, caches: list[Any]) -> None:
    # By their types: a rotating cache says that it can be trimmed until its window is full.
    other = [each for each in leaves_of(caches) if not isinstance(each, GROWING)]
    if other:
        raise ModelError(
            f"draft_model: what a draft model got wrong has to be taken back from the caches, and "
            f"{whose} has {_kinds(other)}, which can't forget single tokens."
        )


def _kinds(caches: Iterable[Any]) -> str:
    names = {
        next(
            (f"{words} ({kind.__name__})" for kind, words in _KINDS if isinstance(each, kind)),
            type(each).__name__,
        )
        for each in caches
    }
    return " and ".join(sorted(names))
