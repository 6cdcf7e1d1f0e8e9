"""All code that relies on mlx-vlm, beside its encoders. Only this file imports all of mlx-vlm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from inspect import getmodule, getsource, signature
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx_vlm.generate.common import _chunked_prefill_enabled
from mlx_vlm.models import cache
from mlx_vlm.prompt_utils import MODEL_CONFIG, get_message_json
from mlx_vlm.utils import (
    get_model_type,
    load_model,
    load_processor,
    prepare_inputs,
    should_add_special_tokens,
)

from worker.mlx_lm.caches import RecurrentCache, SeveralCaches, as_mlx_lms, leaves_of

# Language models keep positions of one sequence in these attributes, from call to call.
_SHIFTS: Final = "_rope_deltas"
_POSITIONS: Final = ("_position_ids", _SHIFTS)
_PICTURE_TOKENS: Final = ("image_token_id", "image_token_index")
# Another sequence's states, which a model attends to in each step.
_CROSS: Final = "cross_attention_states"
# What caches of unlimited_ocr know of a sequence.
_PROMPT_LENGTH: Final = "prefill_length"
# The most earlier tokens that an index chooses.
CHOICES: Final = "index_topk"


def kind_of(config: dict[str, Any]) -> str:
    """mlx-vlm's name of the model's architecture."""
    return str(get_model_type(config))


def knows(kind: str) -> bool:
    return find_spec(f"mlx_vlm.models.{kind}") is not None


def read_model(folder: Path) -> Any:
    """The model in a folder. Its weights are read when they are used."""
    return load_model(folder, lazy=True)


def read_language(folder: Path) -> Any:
    """The part that writes text of the model in a folder. Its weights are read when they are used.
    Other parts get no weights, and files need have none of them.
    """
    fill = nn.Module.load_weights

    def fill_language(model: Any, weights: list[tuple[str, mx.array]], strict: bool = True) -> Any:
        language = language_of(model)
        inside = next(name for name, module in model.named_modules() if module is language)
        prefix = f"{inside}." if inside else ""
        own = {name: array for name, array in weights if name.startswith(prefix)}
        return fill(language, [(name[len(prefix) :], array) for name, array in own.items()], strict)

    # mlx-vlm gives weights to the whole model at once, and wants them all.
    nn.Module.load_weights = fill_language
    try:
        return language_of(read_model(folder))
    finally:
        nn.Module.load_weights = fill


def language_of(model: Any) -> Any:
    """The part of a model that writes text: the model itself if it has no such part."""
    return getattr(model, "language_model", model)


def lacks(model: Any, names: re.Pattern[str]) -> str | None:
    """The part of a model, by its name, for which its files have no weights. mlx-vlm leaves such a
    part out without an error.
    """
    missing = (name for name, part in vars(model).items() if part is None and names.fullmatch(name))
    return next(missing, None)


def read_processor(folder: Path) -> Any:
    return load_processor(folder, add_detokenizer=False, trust_remote_code=False)


def content(kind: str, plain: Any, role: str, pictures: int) -> Any:
    """The content of a message with so many `pictures`, in the form that models of this kind
    expect; `plain` if mlx-vlm knows no form of this kind.
    """
    if kind not in MODEL_CONFIG:
        return plain
    written = get_message_json(
        kind, plain, role, skip_image_token=not pictures, num_images=pictures
    )
    return written["content"] if isinstance(written, dict) else written


def inputs(
    processor: Any, config: dict[str, Any], text: str, images: Sequence[Any]
) -> dict[str, Any]:
    """The model's input arrays by name, made of a rendered text and its pictures.

    Raises:
        Exception: each processor fails in its own way on shapes or numbers that it doesn't accept.
    """
    arrays: dict[str, Any] = prepare_inputs(
        processor,
        images=list(images),
        prompts=text,
        image_token_index=config.get("image_token_index"),
        add_special_tokens=should_add_special_tokens(config["model_type"].lower(), processor),
    )
    return arrays


def picture_token(processor: Any, config: dict[str, Any]) -> int | None:
    """The token that stands for a part of a picture; None: neither file tells it."""
    named = (config.get(name) for name in _PICTURE_TOKENS)
    token = next((token_id for token_id in named if isinstance(token_id, int)), None)
    return getattr(processor, _PICTURE_TOKENS[0], None) if token is None else token


class _States(cache.ArraysCache, RecurrentCache):  # type: ignore[misc]  # both are untyped
    """mlx-vlm's cache of recurrent states, known as mlx-lm's. mlx-vlm's models call methods that
    mlx-lm's cache doesn't have.
    """

    @classmethod
    def merge(cls, caches: Sequence[_States]) -> _States:
        merged: _States = super().merge(caches)
        # Models would read no lengths of padded rows beside these zeros.
        merged.left_padding = None
        return merged


class _SeveralCaches(cache.CacheList, SeveralCaches):  # type: ignore[misc]  # both are untyped
    """mlx-vlm's caches of one layer, known as mlx-lm's. mlx-vlm's models ask for their own type."""

    def extract(self, row: int) -> _SeveralCaches:
        return _SeveralCaches(*(part.extract(row) for part in self.caches))


def make_caches(language: Any) -> list[Any]:
    """New caches for a language model. A cache whose kind mlx-lm has too becomes mlx-lm's: the size
    of such caches is known, and they can be cut into blocks.
    """
    return [_as_mlx_lms(layer) for layer in cache.make_prompt_cache(language)]


def _as_mlx_lms(layer_cache: Any) -> Any:
    # The exact types count, since subclasses may keep more.
    if type(layer_cache) is cache.CacheList:
        return _SeveralCaches(*map(_as_mlx_lms, layer_cache.caches))
    is_states = type(layer_cache) is cache.ArraysCache
    return _States(len(layer_cache.cache)) if is_states else as_mlx_lms(layer_cache)


def forget_positions(language: Any, shifts: mx.array | None = None) -> None:
    """Replace the positions that a language model keeps of its last sequence by the `shifts` of the
    next rows, shape (rows, 1).
    """
    for name in _POSITIONS:
        if hasattr(language, name):
            setattr(language, name, shifts if name == _SHIFTS else None)


def keeps_positions(language: Any) -> bool:
    """Whether a language model takes the shift of each row's positions."""
    return hasattr(language, _SHIFTS)


def attends_across(language: Any) -> bool:
    """Whether a language model gets more from a picture than tokens' embeddings and positions."""
    return _CROSS in signature(type(language).__call__).parameters


def adds_up_windows(caches: Sequence[Any]) -> bool:
    """Whether caches make one entry of several tokens. Some models mix neighbouring entries, but
    only those of one call.
    """
    return any(isinstance(leaf, cache.PoolingCache) for leaf in leaves_of(caches))


def tells_prompts(caches: Sequence[Any]) -> bool:
    """Whether caches keep all of a prompt, and of an answer the last tokens alone."""
    return any(hasattr(leaf, _PROMPT_LENGTH) for leaf in leaves_of(caches))


def choices_of(language: Any) -> list[tuple[Any, int]]:
    """The modules that choose among earlier tokens, and how many each chooses at most."""
    numbers = ((part, getattr(part, CHOICES, None)) for part in language.modules())
    return [(part, most) for part, most in numbers if isinstance(most, int)]


@lru_cache(maxsize=256)
def reads(kind: Any, name: str) -> bool:
    """Whether the source of a language model's class has this name of an array."""
    module = getmodule(kind)
    return module is None or name in getsource(module)


def computes_in_chunks(
    model: Any, tokens: mx.array, embeddings: mx.array | None, beside: dict[str, Any]
) -> bool:
    """Whether mlx-vlm's own loop would compute a prompt in chunks. Some models must get the prompt
    in one call, since the tokens of a picture see each other. `beside` has the other arrays.
    """
    return bool(
        _chunked_prefill_enabled(
            model, input_ids=tokens, inputs_embeds=embeddings, prefill_kwargs=beside
        )
    )
