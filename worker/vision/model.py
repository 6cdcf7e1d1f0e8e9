"""mlx-vlm's models, called as mlx-lm's are.

mlx-vlm computes a prompt's embeddings at once, from its tokens and its pictures, and then hands
these to the language model in chunks, with whatever else the embedding gave. So does this.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx
import numpy as np

from worker import mlx_vlm
from worker.vision.inputs import PictureInputs

_PIXELS: Final = "pixel_values"
_EMBEDDINGS: Final = "inputs_embeds"
# By how much positions after the pictures are shifted.
_SHIFT: Final = "rope_deltas"
_CROSS: Final = "cross_attention_states"


class VisionModel:
    """Its language model takes one sequence at a time: what it keeps of positions is of one."""

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
        """For a sequence that begins with these, of which the caches have seen some.

        Raises:
            Exception: its pictures and tokens don't fit each other; models find it out.
        """
        mlx_vlm.forget_positions(self._language)
        return Prompted(self._model, token_ids, pictures, seen_tokens)


class Prompted:
    """The model for one sequence, called with its tokens in order.

    `whole`: its prompt must come in one call, but for the last token, since the tokens of a picture
    see each other.
    """

    def __init__(
        self, model: Any, token_ids: list[int], pictures: PictureInputs | None, seen_tokens: int
    ) -> None:
        self._language = model.language_model
        self._seen = seen_tokens
        # What a model answers may have a picture's token, which is no picture.
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
        """What goes with a part of the prompt: models take theirs by the caches' offset."""
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
    """MLX's own."""
    return {
        name: mx.array(each) if isinstance(each, np.ndarray) else each
        for name, each in pictures.arrays.items()
    }


def _is_aligned(array: Any, length: int) -> bool:
    return getattr(array, "shape", None) == (1, length)
