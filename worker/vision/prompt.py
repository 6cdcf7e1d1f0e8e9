"""Computes a prompt with pictures.

mlx-vlm computes all embeddings of a prompt at once, from its tokens and its pictures. Then mlx-vlm
gives the embeddings to the language model in chunks, with the other arrays that came with the
embeddings. This file does the same. The part of a prompt that a cache has needs no embeddings.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx
import numpy as np

from worker import mlx_vlm
from worker.mlx_lm.added_caches import RowShifts, shift_row
from worker.vision import PictureInputs

_PIXELS: Final = "pixel_values"
_EMBEDDINGS: Final = "inputs_embeds"
# The array that tells by how much positions after the pictures are shifted.
SHIFT: Final = "rope_deltas"
_CROSS: Final = "cross_attention_states"
_POSITIONS: Final = "position_ids"
# The arrays that have a place for each token of a prompt, and the axes of these places.
_ALIGNED: Final = {_POSITIONS: -1, "visual_pos_masks": 1, "per_layer_inputs": 1, "pos_hw": 1}
# The arrays that have a place for each token of a picture.
_OF_PICTURES: Final = "deepstack_visual_embeds"


class EmbeddedPrompt:
    """The model for one sequence, called with its tokens in order.

    `whole`: the tokens of the pictures must come in one call, since they see each other. `shift`:
    by how much positions after the pictures are shifted; None: the model takes no shifts.
    """

    def __init__(
        self,
        model: Any,
        length: int,
        seen_tokens: int,
        embeddings: mx.array,
        beside: dict[str, Any],
        *,
        whole: bool,
    ) -> None:
        """The prompt has `length` tokens. `embeddings`, (1, tokens, width), are those of its last
        tokens at least. `beside` are the arrays that come with them.
        """
        self._language = model.language_model
        self._length = length
        self._seen = seen_tokens
        self._embeddings: mx.array | None = embeddings
        self._unembedded = length - embeddings.shape[1]
        self._beside = beside
        # The answer needs the shift even if caches have the whole prompt, from another sequence.
        self._after = {name: item for name, item in beside.items() if name == SHIFT}
        mx.eval(embeddings)
        self.whole = whole
        self.shift = int(beside[SHIFT].item()) if SHIFT in beside else None

    @classmethod
    def of(
        cls, model: Any, token_ids: list[int], pictures: PictureInputs | None, seen_tokens: int
    ) -> EmbeddedPrompt:
        # Only the prompt: an answer may have the token of a picture, too, but no picture.
        length = len(token_ids) if pictures is None else pictures.prompt_tokens
        tokens = mx.array([token_ids[:length]])
        arrays = {} if pictures is None else _in_mlx(pictures.arrays)
        embeddings, beside = _embed(model, tokens, arrays)
        whole = not mlx_vlm.computes_in_chunks(model, tokens, embeddings, beside)
        return cls(model, length, seen_tokens, embeddings, beside, whole=whole)

    @classmethod
    def behind(
        cls,
        model: Any,
        token_ids: list[int],
        pictures: PictureInputs,
        seen_tokens: int,
        first: int,
        shift: int,
    ) -> EmbeddedPrompt | None:
        """The same, but without a look at the pictures before the first one that the caches haven't
        seen, which is number `first`. Positions before are shifted by `shift`. None: the arrays of
        this model can't be divided.
        """
        arrays = pictures.arrays_from(first)
        if arrays is None:
            return None
        tokens = mx.array([token_ids[seen_tokens : pictures.prompt_tokens]])
        embeddings, inputs = _embed(model, tokens, _in_mlx(arrays))
        if not mlx_vlm.computes_in_chunks(model, tokens, embeddings, inputs):
            return None
        language: Any = type(model.language_model)
        given = {
            name: item
            for name, item in inputs.items()
            if name not in arrays and mlx_vlm.reads(language, name)
        }
        if given.keys() - {*_ALIGNED, _OF_PICTURES, SHIFT}:
            return None
        beside = {name: item for name, item in inputs.items() if name in arrays or name in given}
        for name in _ALIGNED.keys() & given.keys():
            # Models cut these by the offset of the caches.
            beside[name] = _behind(given[name], _ALIGNED[name], seen_tokens)
        if _POSITIONS in given:
            beside[_POSITIONS] = beside[_POSITIONS] + seen_tokens + shift
        if SHIFT in given:
            beside[SHIFT] = given[SHIFT] + shift
        return cls(model, pictures.prompt_tokens, seen_tokens, embeddings, beside, whole=False)

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Token ids (1, tokens) to logits (1, tokens, vocabulary)."""
        begin, count = self._seen, tokens.shape[1]
        self._seen += count
        inside = min(count, max(0, self._length - begin))
        parts = []
        if self.shift is not None:
            shift_row(cache, self.shift)
        layers = [layer for layer in cache if not isinstance(layer, RowShifts)]
        if inside:
            parts.append(self._compute_prompt(tokens[:, :inside], begin, layers))
        if inside < count:
            output = self._language(tokens[:, inside:], cache=layers, **self._after)
            parts.append(output.logits)
        # Some models put other caches into the list.
        cache[: len(layers)] = layers
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1)

    def _compute_prompt(self, tokens: mx.array, begin: int, cache: Any) -> mx.array:
        assert self._embeddings is not None
        end = begin + tokens.shape[1]
        output = self._language(
            tokens,
            inputs_embeds=self._embeddings[:, begin - self._unembedded : end - self._unembedded],
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
        aligned = [name for name, item in beside.items() if _is_aligned(item, self._length)]
        rest = {name: item for name, item in beside.items() if name not in aligned}
        return rest if begin else rest | {name: beside[name][:, :end] for name in aligned}


def _embed(model: Any, tokens: mx.array, arrays: dict[str, Any]) -> tuple[mx.array, dict[str, Any]]:
    """The embeddings of tokens and pictures, and the arrays that the language model gets with
    them.
    """
    pixels = arrays.get(_PIXELS)
    arrays = {name: array for name, array in arrays.items() if name != _PIXELS}
    embedded = model.get_input_embeddings(
        tokens, pixels, mask=mx.ones_like(tokens), **arrays
    ).to_dict()
    embeddings: mx.array = embedded.pop(_EMBEDDINGS)
    given = {name: item for name, item in embedded.items() if item is not None}
    return embeddings, {**arrays, **given}


def _in_mlx(arrays: Any) -> dict[str, Any]:
    """The arrays of pictures, with MLX's arrays in place of numpy's."""
    return {
        name: mx.array(array) if isinstance(array, np.ndarray) else array
        for name, array in arrays.items()
    }


def _behind(array: mx.array, axis: int, tokens: int) -> mx.array:
    """`array` with `tokens` places more before its own, which nobody reads."""
    shape = list(array.shape)
    shape[axis] = tokens
    return mx.concatenate([mx.zeros(shape, array.dtype), array], axis=axis)


def _is_aligned(array: Any, length: int) -> bool:
    return getattr(array, "shape", None) == (1, length)
