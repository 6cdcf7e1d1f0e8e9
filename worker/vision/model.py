"""A model that looks at pictures, by mlx-vlm: loaded, given its pictures, and called as mlx-lm's
models are.

mlx-vlm computes a prompt's embeddings at once, from its tokens and its pictures. Then it hands them
to the language model in chunks, with the other arrays that the embedding gave. So does this file.
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
# By how much positions after the pictures are shifted.
_SHIFT: Final = "rope_deltas"
_CROSS: Final = "cross_attention_states"
_PARTS: Final = ("vision_config", "vision_tower", "mm_vision_tower")


class NoVisionError(Exception):
    """A model that can't look at pictures; the text says why."""


def load_vision(folder: Path) -> tuple[VisionModel, dict[str, Any], PictureProcessor]:
    """The model, whose weights are read when they are used; its configuration; its processor.

    Raises:
        NoVisionError: mlx-vlm doesn't know it, or it has no part that looks at pictures.
        Exception: its files can't be understood; architectures fail in as many ways as they have.
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
    """Takes one sequence at a time: its language model keeps the positions of one."""

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
        """For a sequence that begins with these tokens; caches have seen `seen_tokens` of them.

        Raises:
            Exception: its pictures and tokens don't fit each other, as its model finds out.
        """
        mlx_vlm.forget_positions(self._language)
        return Prompted(self._model, token_ids, pictures, seen_tokens)


class Prompted:
    """The model for one sequence, called with its tokens in order.

    `whole`: the prompt must come in one call, all but its last token, since the tokens of a picture
    see each other.
    """

    def __init__(
        self, model: Any, token_ids: list[int], pictures: PictureInputs | None, seen_tokens: int
    ) -> None:
        self._language = model.language_model
        self._seen = seen_tokens
        # An answer may have the token of a picture: no picture stands behind that one.
        self._length = len(token_ids) if pictures is None else pictures.prompt_tokens
        tokens = mx.array([token_ids[: self._length]])
        arrays = {} if pictures is None else _arrays(pictures)
        pixels = arrays.pop(_PIXELS, None)
        mask = mx.ones_like(tokens)
        embedded = model.get_input_embeddings(tokens, pixels, mask=mask, **arrays).to_dict()
        self._embeddings: mx.array | None = embedded.pop(_EMBEDDINGS)
        given = {name: each for name, each in embedded.items() if each is not None}
        self._beside: dict[str, Any] = {**arrays, **given}
        # The language model may have seen the prompt before, for another sequence.
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
            # Some models attend to a picture all along, instead of having its tokens.
            states = getattr(output, _CROSS, None)
            if states is not None:
                self._after[_CROSS] = states
        logits: mx.array = output.logits
        return logits

    def _chunk(self, begin: int, end: int) -> dict[str, Any]:
        """The other arrays of a part of the prompt. Models cut them by the caches' offset."""
        beside = self._beside
        if end < self._length:
            beside = {**beside, "n_to_process": end - begin}
        if not self.whole:
            return beside
        # The last token alone has no picture beside it.
        aligned = [name for name, each in beside.items() if _is_aligned(each, self._length)]
        rest = {name: each for name, each in beside.items() if name not in aligned}
        return rest if begin else rest | {name: beside[name][:, :end] for name in aligned}


def _arrays(pictures: PictureInputs) -> dict[str, Any]:
    """As MLX's arrays."""
    return {
        name: mx.array(each) if isinstance(each, np.ndarray) else each
        for name, each in pictures.arrays.items()
    }


def _is_aligned(array: Any, length: int) -> bool:
    return getattr(array, "shape", None) == (1, length)
