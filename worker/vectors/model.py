"""A model that makes vectors: its recipe in files of sentence-transformers, its hidden states,
their pooling, and the heads that turn pooled states into a vector or a score.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

import mlx.core as mx
import mlx.nn as nn

from worker.mlx_lm.caches import make_caches
from worker.mlx_lm.models import logits_of, trunk_of

Pooling: TypeAlias = Literal[
    "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"
]
_POOLINGS: Final = get_args(Pooling)
# The names of poolings before sentence-transformers 5.4, in the order in which results are joined.
_OLD_NAMES: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_PASSED_OVER: Final = ("Transformer", "Dropout")
_ACTIVATIONS: Final = {
    "Identity": lambda x: x,
    "Tanh": mx.tanh,
    "ReLU": nn.relu,
    "GELU": nn.gelu,
    "Sigmoid": mx.sigmoid,
    "SiLU": nn.silu,
}
_LEAST = 1e-9


class RecipeError(Exception):
    """A model's files can't be read, or ask for something that this worker can't do. The text is a
    sentence about it.
    """


@dataclass(frozen=True)
class Recipe:
    """How hidden states become a vector. The results of several `poolings` are joined. `dense` are
    the folders of the layers after the pooling. `prompts`, by name, go before texts; `with_prompt`
    says whether a prompt's tokens are pooled, too. `most_tokens` bounds a text, beside the model's
    own bound. `dimensions` are the lengths to which vectors may be cut; True: any length. `yes_no`
    are the ids of the two tokens that a reranker compares.
    """

    poolings: tuple[Pooling, ...]
    normalized: bool = True
    dense: tuple[Path, ...] = ()
    with_prompt: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    most_tokens: int | None = None
    dimensions: bool | tuple[int, ...] = False
    yes_no: tuple[int, int] | None = None


def read_recipe(folder: Path, config: Mapping[str, Any], default: Pooling) -> Recipe:
    """The recipe in a model's files. `default` is the pooling if the files name none.

    Raises:
        RecipeError: the files can't be read, or ask for something that this worker can't do.
    """
    try:
        return _read(folder, config, default)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RecipeError(
            f"The files for embeddings in {folder} can't be read: {type(error).__name__} {error}"
        ) from error


def _read(folder: Path, config: Mapping[str, Any], default: Pooling) -> Recipe:
    top_settings = _json(folder / "config_sentence_transformers.json")
    shared: dict[str, Any] = {
        "prompts": {k: str(v) for k, v in (top_settings.get("prompts") or {}).items()},
        "default_prompt": top_settings.get("default_prompt_name"),
        "most_tokens": _json(folder / "sentence_bert_config.json").get("max_seq_length"),
        "dimensions": _dimensions(config),
    }
    path = folder / "modules.json"
    if not path.is_file():
        return Recipe((default,), **shared)
    poolings: tuple[Pooling, ...] = (default,)
    normalized = with_prompt = False
    dense: list[Path] = []
    yes_no = None
    for module in json.loads(path.read_text("utf-8")):
        kind, place = str(module["type"]).rpartition(".")[2], folder / str(module["path"])
        match kind:
            case "Pooling":
                settings = _json(place / "config.json")
                poolings = _poolings(settings)
                with_prompt = bool(settings.get("include_prompt", True))
            case "Dense":
                dense.append(place)
            case "Normalize":
                normalized = True
            case "LogitScore":
                settings = _json(place / "config.json")
                yes_no = (int(settings["true_token_id"]), int(settings["false_token_id"]))
            case _ if kind not in _PASSED_OVER:
                raise RecipeError(f"{path} has a module {kind}, which isn't supported.")
    return Recipe(poolings, normalized, tuple(dense), with_prompt, yes_no=yes_no, **shared)


def _poolings(settings: Mapping[str, Any]) -> tuple[Pooling, ...]:
    mode = settings.get("pooling_mode")
    names = [mode] if isinstance(mode, str) else mode
    if names is None:
        names = [new for old, new in _OLD_NAMES.items() if settings.get(old)]
    unknown = [name for name in names if name not in _POOLINGS]
    if unknown or not names:
        raise RecipeError(f"The model pools by {unknown or names}, which isn't supported.")
    return tuple(names)


def _dimensions(config: Mapping[str, Any]) -> bool | tuple[int, ...]:
    """The `dimensions` of a recipe, by the keys that vLLM reads in config.json."""
    if isinstance(lengths := config.get("matryoshka_dimensions"), list):
        return tuple(int(length) for length in lengths)
    return bool(config.get("is_matryoshka"))


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text("utf-8"))
    return value if isinstance(value, dict) else {}


class PoolHead(Protocol):
    """Turns a text's hidden states, pooled by `poolings`, into a vector or a score. `normalized`:
    vectors are to be divided by their norm.
    """

    poolings: tuple[Pooling, ...]
    normalized: bool

    def __call__(self, pooled: mx.array) -> mx.array:
        """From shape (texts, width) to (texts, numbers), in single precision."""


class VectorHead:
    """Makes vectors, with the layers after the pooling if the recipe has any."""

    def __init__(self, recipe: Recipe) -> None:
        """
        Raises:
            RecipeError: a layer can't be read.
        """
        self.poolings: tuple[Pooling, ...] = recipe.poolings
        self.normalized = recipe.normalized
        self._layers = [_read_layer(path) for path in recipe.dense]

    def __call__(self, pooled: mx.array) -> mx.array:
        for weight, bias, activation in self._layers:
            pooled = activation(pooled @ weight.T + bias)
        return pooled


class ClassHead:
    """Makes the scores of an encoder with one label (sentence-transformers' CrossEncoder)."""

    poolings: tuple[Pooling, ...]
    normalized = False

    def __init__(self, model: Any, config: Mapping[str, Any]) -> None:
        self.poolings = (getattr(model, "scored_pooling", "cls"),)
        self._model = model
        settings = config.get("sentence_transformers") or {}
        name = settings.get("activation_fn") or config.get("sbert_ce_default_activation_function")
        # By default sentence-transformers and vLLM turn the logit of one label into a probability.
        self._activation = _activation(name or "Sigmoid")

    def __call__(self, pooled: mx.array) -> mx.array:
        logits = self._model.logits(pooled.astype(self._model.dtype))
        scores: mx.array = self._activation(logits.astype(mx.float32))
        return scores


class YesHead:
    """Makes the scores of a decoder: the probability that the next token is "yes", and not "no"."""

    poolings: tuple[Pooling, ...] = ("lasttoken",)
    normalized = False

    def __init__(self, model: Any, yes: int, no: int) -> None:
        self._model = model
        self._ids = mx.array([yes, no])

    def __call__(self, pooled: mx.array) -> mx.array:
        logits = logits_of(self._model, pooled)
        return mx.softmax(logits[:, self._ids].astype(mx.float32), axis=-1)[:, :1]


def _activation(name: str) -> Any:
    activation = _ACTIVATIONS.get(name.rpartition(".")[2])
    if activation is None:
        raise RecipeError(f"The activation {name} isn't supported.")
    return activation


def _read_layer(folder: Path) -> tuple[mx.array, mx.array, Any]:
    try:
        settings = json.loads((folder / "config.json").read_text("utf-8"))
        weights: Any = mx.load(str(folder / "model.safetensors"))
        # Otherwise the GPU would wait for the disk when it first uses the weights (mlx#3803).
        mx.eval(weights)
    except (OSError, ValueError, RuntimeError) as error:
        raise RecipeError(f"The layer in {folder} can't be read: {error}") from error
    weight = weights["linear.weight"].astype(mx.float32)
    bias = weights.get("linear.bias", mx.zeros(weight.shape[0])).astype(mx.float32)
    return weight, bias, _activation(str(settings.get("activation_function", "Tanh")))


class Pool:
    """Pools the states of a batch of texts padded on the right. Sums are in single precision."""

    def __init__(
        self, poolings: Sequence[Pooling], lengths: Sequence[int], skipped: Sequence[int]
    ) -> None:
        """`lengths` are in tokens; the first `skipped` tokens of a text aren't pooled."""
        self._poolings = poolings
        self._ends = mx.array(list(lengths))[:, None]
        self._begins = mx.array(list(skipped))[:, None]
        self._at = 0
        self._state: dict[Pooling, mx.array] = {}

    def add(self, hidden: mx.array) -> None:
        """Take in the states of the next tokens, (texts, tokens, width)."""
        places = mx.arange(self._at, self._at + hidden.shape[1])[None, :]
        hidden = hidden.astype(mx.float32)
        for fromkey in dict.fromkeys(self._poolings):
            new = self._part(fromkey, hidden, places)
            old = self._state.get(fromkey)
            if old is None:
                self._state[fromkey] = new
            else:
                self._state[fromkey] = mx.maximum(old, new) if fromkey == "max" else old + new
        self._at += hidden.shape[1]
        mx.eval(list(self._state.values()))

    def result(self) -> mx.array:
        """The pooled states, (texts, width x poolings)."""
        counts = mx.maximum(self._ends - self._begins, 1)
        joined = []
        for pooling in self._poolings:
            value = self._state[pooling]
            match pooling:
                case "mean":
                    value = value / counts
                case "mean_sqrt_len_tokens":
                    value = value / mx.sqrt(counts)
                case "weightedmean":
                    # The sum of the weights: the places of pooled tokens, counted from 1.
                    sums = (self._ends * (self._ends + 1) - self._begins * (self._begins + 1)) / 2
                    value = value / mx.maximum(sums, _LEAST)
                case _:
                    pass
            joined.append(value)
        return mx.concatenate(joined, axis=-1)

    def _part(self, pooling: Pooling, hidden: mx.array, places: mx.array) -> mx.array:
        pooled = (places >= self._begins) & (places < self._ends)
        match pooling:
            case "cls":
                weights = (places == mx.minimum(self._begins, self._ends - 1)).astype(mx.float32)
            case "lasttoken":
                weights = (places == self._ends - 1).astype(mx.float32)
            case "max":
                return mx.where(pooled[..., None], hidden, -mx.inf).max(axis=1)
            case "weightedmean":
                weights = pooled * (places + 1).astype(mx.float32)
            case "mean" | "mean_sqrt_len_tokens":
                weights = pooled.astype(mx.float32)
        # States of padding may be NaN.
        known = mx.where(weights[..., None] > 0, hidden, 0)
        return (weights[:, None, :] @ known)[:, 0]


class PaddedTexts(NamedTuple):
    """The texts of a batch, or a chunk of their tokens, padded on the right. `tokens` and `types`:
    (texts, tokens). `lengths` are the lengths of the whole texts.
    """

    tokens: mx.array
    types: mx.array | None
    lengths: Sequence[int]

    def chunk(self, begin: int, end: int) -> PaddedTexts:
        types = None if self.types is None else self.types[:, begin:end]
        return PaddedTexts(self.tokens[:, begin:end], types, self.lengths)


class Backbone(Protocol):
    """A model without its head. `in_chunks`: a batch may be computed in chunks of its tokens."""

    in_chunks: bool

    def make_caches(self) -> Any:
        """New caches for a batch, which `states` gets with each chunk; None: the model has none."""

    def states(self, texts: PaddedTexts, caches: Any) -> mx.array:
        """The hidden states of texts, (texts, tokens, width). `make_caches` made the `caches`."""


class Decoder:
    """A model whose tokens see only earlier tokens, so padding on the right changes nothing."""

    in_chunks = True

    def __init__(self, model: Any, backbone: Any) -> None:
        self._model = model
        self._backbone = backbone

    @classmethod
    def of(cls, model: Any) -> Decoder | None:
        """The decoder of a model; None: the model's backbone can't be separated from its head."""
        backbone = trunk_of(model)
        return None if backbone is None else cls(model, backbone)

    def make_caches(self) -> Any:
        return make_caches(self._model)

    def states(self, texts: PaddedTexts, caches: Any) -> mx.array:
        states: mx.array = self._backbone(texts.tokens, cache=caches)
        mx.eval([cache.state for cache in caches])
        return states


class Encoder:
    """A model whose tokens see their whole text."""

    in_chunks = False

    def __init__(self, model: Any) -> None:
        """`model` is one of `worker.mlx_embeddings`."""
        self._model = model

    def make_caches(self) -> Any:
        return None

    def states(self, texts: PaddedTexts, caches: Any) -> mx.array:
        mask = mx.arange(texts.tokens.shape[1])[None, :] < mx.array(list(texts.lengths))[:, None]
        mask = mask.astype(self._model.dtype)
        states: mx.array = self._model.states(texts.tokens, texts.types, mask)
        return states
