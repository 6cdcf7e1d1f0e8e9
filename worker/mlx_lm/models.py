"""mlx-lm's models: how they are loaded, which parts they have, and how they are split."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final, TypeAlias

import mlx.core as mx
import mlx_lm.models
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models.gemma3_text import Gemma3Model, ModelArgs
from mlx_lm.utils import _get_classes, load_adapters, load_model, load_tokenizer

from protocol.life import RankSplit
from worker.mlx_lm.caches import make_caches
from worker.mlx_lm.text import spell_added_tokens

# Gives the class of a model and the class of its arguments, from the model's configuration.
Classes: TypeAlias = Callable[[dict[str, Any]], tuple[type, Any]]
# This number is added to attention scores to mask padding. The least number of half precision is
# -65,504.
MASKED: Final = -30000.0
# The attribute of a scaled rotary embedding that has its frequencies, (width / 2,).
FREQUENCIES: Final = "_freqs"
# The names that architectures give to the model without its head.
_TRUNKS: Final = ("model", "backbone", "transformer")
# The head that makes logits, by the names of its weights. With a bias it isn't the embedding.
_HEAD: Final = re.compile(
    r"(?:(?:language_model|model|backbone|transformer)\.)*(?:lm_head|output)\.(?:weight|scales|biases)"
)
# The keys in config.json that say whether the embedding is the head.
_TIES: Final = ("tie_word_embeddings", "tie_embedding", "weight_tying")
# The source of each architecture that can be split by tensors has this text.
_SHARDS: Final = "    def shard("
# The libraries whose layers keep their arguments.
_LIBRARIES: Final = ("mlx_lm.", "mlx_vlm.", "mlx_embeddings.")


def read_model(folder: Path, classes: Classes | None = None) -> tuple[Any, dict[str, Any]]:
    """A model and its configuration. The weights are read when they are needed."""
    loaded: tuple[Any, dict[str, Any]] = load_model(
        folder,
        lazy=True,
        trust_remote_code=False,
        get_model_classes=classes_of if classes is None else classes,
    )
    return loaded


def read_tokenizer(
    folder: Path, end_token_ids: list[int], templates: dict[str, str] | None = None
) -> Any:
    """mlx-lm's wrapper of a model's tokenizer. It has the tokens that end an answer, beside those
    that it knows itself, and the `templates` by their names, instead of those in its files.
    """
    options: dict[str, Any] = {"trust_remote_code": False}
    if templates is not None:
        only = templates.get("default") if len(templates) == 1 else None
        options["chat_template"] = only or templates
    # None leaves room for what mlx-lm knows of the architecture.
    tokenizer = load_tokenizer(folder, options, eos_token_ids=end_token_ids or None)
    spell_added_tokens(tokenizer)
    return tokenizer


def read_adapter(model: Any, folder: Path) -> None:
    """Put an adapter's layers into a model."""
    load_adapters(model, str(folder))


def classes_of(config: dict[str, Any]) -> tuple[type, Any]:
    """The classes of an architecture that mlx-lm has."""
    try:
        classes: tuple[type, Any] = _get_classes(config)
    except SystemExit:
        # One architecture's module ends the program in this case.
        raise ImportError(
            f"a package that models of type {config['model_type']} need isn't installed here"
        ) from None
    return classes


def without_spare_head(classes: tuple[type, Any], config: dict[str, Any]) -> tuple[type, Any]:
    """The classes of a model that drops a head for which it has no place, since its embedding is
    its head, too. Some of mlx-lm's architectures do so themselves; files often have both.
    """
    model, arguments = classes
    nested = config.get("text_config")
    tables = [config, nested] if isinstance(nested, dict) else [config]
    if any(table.get(key) is False for table in tables for key in _TIES):
        return classes  # The head differs from the embedding.

    class WithoutSpareHead(model):  # type: ignore[misc, valid-type]  # mlx-lm is untyped
        def sanitize(self, weights: dict[str, Any]) -> dict[str, Any]:
            below = getattr(super(), "sanitize", None)
            sanitized: dict[str, Any] = weights if below is None else below(weights)
            heads = {name for name in sanitized if _HEAD.fullmatch(name)}
            if heads:
                modules = {name.rpartition(".")[0] for name, _ in tree_flatten(self.parameters())}
                heads = {name for name in heads if name.rpartition(".")[0] not in modules}
            return {name: item for name, item in sanitized.items() if name not in heads}

    return WithoutSpareHead, arguments


def with_head(config: dict[str, Any]) -> tuple[type, Any]:
    """The classes for weight files that lack the head, and in which the names of other layers have
    no prefix. The embedding stands in for the head, whose result is never asked for.
    """
    model, arguments = classes_of(config)
    config["tie_word_embeddings"] = True

    class WithPrefix(model):  # type: ignore[misc, valid-type]  # mlx-lm is untyped
        def sanitize(self, weights: dict[str, Any]) -> dict[str, Any]:
            named = {f"model.{name}": value for name, value in weights.items()}
            below = getattr(super(), "sanitize", None)
            return named if below is None else dict(below(named))

    return WithPrefix, arguments


def small_llama(vocabulary: int) -> Any:
    """A model of the most common kind, with one layer and random weights."""
    from mlx_lm.models import llama

    model = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=512,
            num_hidden_layers=1,
            intermediate_size=1024,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=128,
            rms_norm_eps=1e-6,
            vocab_size=vocabulary,
        )
    )
    model.set_dtype(mx.bfloat16)
    return model


def known_weights(model: nn.Module, weights: dict[str, Any]) -> dict[str, Any]:
    """The weights that a model has a place for. Files may also have buffers, and heads from the
    training.
    """
    wanted = {name for name, _ in tree_flatten(model.parameters())}
    layers = {name.rpartition(".")[0] for name in wanted}
    # A quantized layer has scales and biases beside its weight.
    return {name: value for name, value in weights.items() if name.rpartition(".")[0] in layers}


class Gemma3Encoder(nn.Module):
    """Gemma 3's layers as an encoder: each token sees the tokens before it and the tokens behind
    it.
    """

    def __init__(self, arguments: Any) -> None:
        super().__init__()
        self.model = Gemma3Model(arguments)
        self._arguments = arguments
        # The window reaches to both sides, as in transformers' Gemma3TextConfig.
        self._reach = arguments.sliding_window // 2 + 1

    @property
    def dtype(self) -> mx.Dtype:
        dtype: mx.Dtype = self.model.norm.weight.dtype
        return dtype

    def states(
        self, tokens: mx.array, types: mx.array | None, seen: mx.array, there: mx.array
    ) -> mx.array:
        scale = mx.array(self._arguments.hidden_size**0.5, mx.bfloat16)
        states: mx.array = self.model.embed_tokens(tokens)
        states = states * scale.astype(states.dtype)
        places = mx.arange(tokens.shape[1])
        near = mx.abs(places[:, None] - places[None, :]) < self._reach
        known = mx.broadcast_to(seen[:, None, None, :] > 0, (len(seen), 1, *near.shape))
        masks = [mx.where(mask, 0, MASKED).astype(states.dtype) for mask in (known, known & near)]
        pattern = self._arguments.sliding_window_pattern
        for index, layer in enumerate(self.model.layers):
            states = layer(states, masks[(index + 1) % pattern > 0], None)
        normed: mx.array = self.model.norm(states)
        return normed

    def sanitize(self, weights: dict[str, Any]) -> dict[str, Any]:
        named = {
            name if name.startswith("model.") else f"model.{name}": value
            for name, value in weights.items()
        }
        return known_weights(self, named)


def gemma3_encoder() -> tuple[type, Any]:
    """The class of the encoder, and the class of its arguments."""
    return Gemma3Encoder, ModelArgs


def trunk_of(model: Any) -> Any:
    """The part of a model that turns tokens into hidden states; None: there is no such part."""
    inner = getattr(model, "language_model", model)
    for name in _TRUNKS:
        trunk = getattr(inner, name, None)
        if callable(trunk) and _gives_states(model, trunk):
            return trunk
    return None


def output_layer_of(model: Any) -> Callable[[mx.array], mx.array]:
    """The layer that makes logits, shape (..., vocabulary), of states, shape (..., width)."""
    inner = getattr(model, "language_model", model)
    layer: Callable[[mx.array], mx.array] = (
        inner.lm_head if hasattr(inner, "lm_head") else inner.model.embed_tokens.as_linear
    )
    return layer


def logits_of(model: Any, states: mx.array) -> mx.array:
    """The logits, shape (texts, vocabulary), of hidden states, shape (texts, width)."""
    inner = getattr(model, "language_model", model)
    return output_layer_of(model)(states.astype(inner.model.norm.weight.dtype))


def _gives_states(model: Any, trunk: Any) -> bool:
    try:
        # MLX computes nothing here, since the values are not asked for, but the shape is known.
        states = trunk(mx.array([[0, 0]]), cache=make_caches(model))
    except Exception:
        # Some architectures want other arguments, and raise errors of any kind.
        return False
    return isinstance(states, mx.array) and states.ndim == 3 and states.shape[:2] == (1, 2)


def splits_of(model: Any) -> dict[RankSplit, Callable[[Any], None]]:
    """The ways in which a model can be split. Each function takes a group, and reduces the model to
    the part of this rank.
    """
    splits: dict[RankSplit, Callable[[Any], None]] = {}
    if hasattr(model, "shard"):
        splits["tensor"] = model.shard
    if hasattr(getattr(model, "model", None), "pipeline"):
        splits["pipeline"] = model.model.pipeline
    return splits


def splittable() -> list[str]:
    """The architectures that can be split by tensors. This searches their sources, since importing
    all of them would take seconds.
    """
    folder = Path(mlx_lm.models.__file__).parent
    return sorted(path.stem for path in folder.glob("*.py") if _SHARDS in path.read_text("utf-8"))


def argument_classes(error: Exception) -> Iterator[tuple[Any, dict[str, Any] | None]]:
    """The classes of arguments that functions in the traceback worked with. A class whose arguments
    were being made comes with the table that they were made of.
    """
    for frame, _ in walk_tb(error.__traceback__):
        values = list(frame.f_locals.values())
        if frame.f_code.co_name == "from_dict" and is_dataclass(kind := values[0]):
            yield kind, frame.f_locals.get("params")
        layer_arguments = [getattr(value, "__dict__", {}).get("args") for value in values]
        for kind in map(type, values + layer_arguments):
            if is_dataclass(kind) and kind.__module__.startswith(_LIBRARIES):
                yield kind, None
