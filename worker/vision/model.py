"""Loads a model that looks at pictures by mlx-vlm, and makes it callable as mlx-lm's models are.

mlx-vlm computes all embeddings of a prompt at once, from its tokens and its pictures. Then mlx-vlm
gives the embeddings to the language model in chunks, with the other arrays that came with the
embeddings. This file does the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np

from worker import mlx_vlm
from worker.vision import PictureInputs
from worker.vision.pictures import PictureProcessor

_PIXELS: Final = "pixel_values"
_EMBEDDINGS: Final = "inputs_embeds"
# The array that tells by how much positions after the pictures are shifted.
_SHIFT: Final = "rope_deltas"
_CROSS: Final = "cross_attention_states"
_PARTS: Final = ("vision_config", "vision_tower", "mm_vision_tower")


class NoVisionError(Exception):
    """A model can't look at pictures. The text says why."""


def load_vision(folder: Path) -> tuple[VisionModel, dict[str, Any], PictureProcessor]:
    """The model in a folder, its configuration and its processor. The model's weights are read when
    they are used.

    Raises:
        NoVisionError: the model has no part that looks at pictures, or can't be run here.
        Exception: the files can't be understood; each architecture fails in its own way.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    kind = mlx_vlm.kind_of(config)
    if not any(config.get(each) for each in _PARTS):
        raise NoVisionError(f"a model of type {kind} has no part that looks at pictures")
    if config.get("model_file") is not None:
        raise NoVisionError("its files bring code of their own, which is not run")
    if not mlx_vlm.knows(kind):
        raise NoVisionError(f"mlx-vlm doesn't know models of type {kind}")
    model = mlx_vlm.read_model(folder)
    if not hasattr(model, "language_model") or not hasattr(model, "get_input_embeddings"):
        raise NoVisionError(f"models of type {kind} answer in a way that isn't supported")
    processor = mlx_vlm.read_processor(folder)
    return VisionModel(model), config, PictureProcessor(processor, config)


class VisionModel:
    """Takes one sequence at a time, since the language model keeps the positions of only one."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._language = model.language_model

    @property
    def layers(self) -> Any:
        return self._language.layers

    def parameters(self) -> Any:
        return self._model.parameters()

    def make_cache(self) -> list[Any]:
        return mlx_vlm.make_caches(self._language)

    def __call__(self, tokens: mx.array, cache: list[Any] | None = None) -> mx.array:
        """Token ids (1, tokens) of a text to logits (1, tokens, vocabulary)."""
        mlx_vlm.forget_positions(self._language)
        logits: mx.array = self._language(tokens, cache=cache).logits
        return logits

    def begin(
        self, token_ids: list[int], pictures: PictureInputs | None, seen_tokens: int
    ) -> Prompted:
        """The model for a sequence that begins with these tokens. Its caches have `seen_tokens` of
        them.

        Raises:
            Exception: pictures and tokens don't fit each other; each model fails in its own way.
        """
        mlx_vlm.forget_positions(self._language)
        return Prompted(self._model, token_ids, pictures, seen_tokens)


class Prompted:
    """The model for one sequence, called with its tokens in order.

    `whole`: all of the prompt but its last token must come in one call, since the tokens of a
    picture see each other.
    """

    def __init__(
        self, model: Any, token_ids: list[int], pictures: PictureInputs | None, seen_tokens: int
    ) -> None:
        self._language = model.language_model
        self._seen = seen_tokens
        # Only the prompt: an answer may have the token of a picture, too, but no picture.
        self._length = len(token_ids) if pictures is None else pictures.prompt_tokens
        tokens = mx.array([token_ids[: self._length]])
        arrays = {} if pictures is None else _arrays(pictures)
        pixels = arrays.pop(_PIXELS, None)
        mask = mx.ones_like(tokens)
        embedded = model.get_input_embeddings(tokens, pixels, mask=mask, **arrays).to_dict()
        self._embeddings: mx.array | None = embedded.pop(_EMBEDDINGS)
        given = {name: each for name, each in embedded.items() if each is not None}
        self._beside: dict[str, Any] = {**arrays, **given}
        # The answer needs the shift even if caches have the whole prompt, from another sequence.
        self._after = {name: each for name, each in given.items() if name == _SHIFT}
        mx.eval(self._embeddings)
        self.whole = not mlx_vlm.computes_in_chunks(model, tokens, self._embeddings, self._beside)

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Token ids (1, tokens) to logits (1, tokens, vocabulary)."""
        begin, count = self._seen, tokens.shape[1]
        self._seen += count
        inside = min(count, max(0, self._length - begin))
        parts = []
        if inside:
            parts.append(self._compute_prompt(tokens[:, :inside], begin, cache))
        if inside < count:
            output = self._language(tokens[:, inside:], cache=cache, **self._after)
            parts.append(output.logits)
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1)

    def _compute_prompt(self, tokens: mx.array, begin: int, cache: list[Any]) -> mx.array:
        assert self._embeddings is not None
        end = begin + tokens.shape[1]
        output = self._language(
            tokens,
            inputs_embeds=self._embeddings[:, begin:end],
            cache=cache,
            **self._chunk(begin, end),
        )
        if end == self._length:
            self._embeddings = None
            self._beside = {}
            # Some models attend to a picture's states in each step, and have no tokens of it.
            states = getattr(output, _CROSS, None)
            if states is not None:
                self._after[_CROSS] = states
        logits: mx.array = output.logits
        return logits

    def _chunk(self, begin: int, end: int) -> dict[str, Any]:
        """The other arrays for the prompt's tokens from `begin` to `end`. Models cut most of the
        arrays themselves, by the offset of the caches.
        """
        beside = self._beside
        if end < self._length:
            beside = {**beside, "n_to_process": end - begin}
        if not self.whole:
            return beside
        # A second call has only the last token, and needs no array of the prompt's length.
        aligned = [name for name, each in beside.items() if _is_aligned(each, self._length)]
        rest = {name: each for name, each in beside.items() if name not in aligned}
        return rest if begin else rest | {name: beside[name][:, :end] for name in aligned}


def _arrays(pictures: PictureInputs) -> dict[str, Any]:
    """The arrays of pictures, with MLX's arrays in place of numpy's."""
    return {
        name: mx.array(each) if isinstance(each, np.ndarray) else each
        for name, each in pictures.arrays.items()
    }


def _is_aligned(array: Any, length: int) -> bool:
    return getattr(array, "shape", None) == (1, length)
