"""A model that makes vectors: its recipe in files as sentence-transformers writes them, its hidden
states, their pooling, and the heads that make a vector or a score of these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

import mlx.core as mx
import mlx.nn as nn

from worker.mlx_lm.caches import make_caches
from worker.mlx_lm.models import logits_of, trunk_of

Pooling: TypeAlias = Literal[
    "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"
]
_POOLINGS: Final = get_args(Pooling)
# The names before sentence-transformers 5.4, in the order in which results are joined.
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
    """The files ask for something that this worker can't do; the text is a sentence about it."""


@dataclass(frozen=True)
class Recipe:
    """How hidden states become a vector. Results of several `poolings` are joined; `dense` are the
    folders of the layers behind them. `prompts`, by name, go before texts; `with_prompt` says
    whether their tokens are pooled too. `most_tokens` bounds a text, beside the model's own bound.
    Vectors may be cut to `dimensions`, to any length if that is True. `yes_no` are the ids of the
    two tokens that a reranker compares.
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
    """`default` is the pooling if the files have none.

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
    own = _json(folder / "config_sentence_transformers.json")
    shared: dict[str, Any] = {
        "prompts": {k: str(v) for k, v in (own.get("prompts") or {}).items()},
        "default_prompt": own.get("default_prompt_name"),
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
                raise RecipeError(f"{path} has a module {kind}, which isn't done here.")
    return Recipe(poolings, normalized, tuple(dense), with_prompt, yes_no=yes_no, **shared)


def _poolings(settings: Mapping[str, Any]) -> tuple[Pooling, ...]:
    mode = settings.get("pooling_mode")
    names = [mode] if isinstance(mode, str) else mode
    if names is None:
        names = [new for old, new in _OLD_NAMES.items() if settings.get(old)]
    unknown = [each for each in names if each not in _POOLINGS]
    if unknown or not names:
        raise RecipeError(f"The model pools by {unknown or names}, which isn't done here.")
    return tuple(names)


def _dimensions(config: Mapping[str, Any]) -> bool | tuple[int, ...]:
    """The keys of config.json are vLLM's."""
    if isinstance(lengths := config.get("matryoshka_dimensions"), list):
        return tuple(int(each) for each in lengths)
    return bool(config.get("is_matryoshka"))


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text("utf-8"))
    return value if isinstance(value, dict) else {}


class Head(Protocol):
    """Makes numbers of hidden states that were pooled by `poolings`. `normalized`: the numbers of a
    text are to be divided by their norm.
    """

    poolings: tuple[Pooling, ...]
    normalized: bool

    def __call__(self, pooled: mx.array) -> mx.array:
        """From shape (texts, width) to (texts, numbers), in single precision."""


class VectorHead:
    """The layers behind the pooling, if there are any."""

    def __init__(self, recipe: Recipe) -> None:
        """
        Raises:
            RecipeError: a layer can't be read.
        """
        self.poolings: tuple[Pooling, ...] = recipe.poolings
        self.normalized = recipe.normalized
        self._layers = [_read_layer(each) for each in recipe.dense]

    def __call__(self, pooled: mx.array) -> mx.array:
        for weight, bias, activation in self._layers:
            pooled = activation(pooled @ weight.T + bias)
        return pooled


class ClassHead:
    """The score of a model with one label (sentence-transformers' CrossEncoder)."""

    poolings: tuple[Pooling, ...]
    normalized = False

    def __init__(self, model: Any, config: Mapping[str, Any]) -> None:
        self.poolings = (getattr(model, "scored_pooling", "cls"),)
        self._model = model
        own = config.get("sentence_transformers") or {}
        name = own.get("activation_fn") or config.get("sbert_ce_default_activation_function")
        # By default sentence-transformers and vLLM make a probability of one label.
        self._activation = _activation(name or "Sigmoid")

    def __call__(self, pooled: mx.array) -> mx.array:
        logits = self._model.logits(pooled.astype(self._model.dtype))
        scores: mx.array = self._activation(logits.astype(mx.float32))
        return scores


class YesHead:
    """The probability that a decoder's next token is "yes", and not "no"."""

    poolings: tuple[Pooling, ...] = ("lasttoken",)
    normalized = False

    def __init__(self, model: Any, yes: int, no: int) -> None:
        self._model = model
        self._ids = mx.array([yes, no])

    def __call__(self, pooled: mx.array) -> mx.array:
        logits = logits_of(self._model, pooled)
        return mx.softmax(logits[:, self._ids].astype(mx.float32), axis=-1)[:, :1]


def _activation(name: str) -> Any:
    found = _ACTIVATIONS.get(name.rpartition(".")[2])
    if found is None:
        raise RecipeError(f"The activation {name} isn't done here.")
    return found


def _read_layer(folder: Path) -> tuple[mx.array, mx.array, Any]:
    try:
        settings = json.loads((folder / "config.json").read_text("utf-8"))
        weights: Any = mx.load(str(folder / "model.safetensors"))
        # A GPU that computes on them would wait for the disk (mlx#3803).
        mx.eval(weights)
    except (OSError, ValueError, RuntimeError) as error:
        raise RecipeError(f"The layer in {folder} can't be read: {error}") from error
    weight = weights["linear.weight"].astype(mx.float32)
    bias = weights.get("linear.bias", mx.zeros(weight.shape[0])).astype(mx.float32)
    return weight, bias, _activation(str(settings.get("activation_function", "Tanh")))


class Pool:
    """Pools the states of one batch, padded on the right. Sums are in single precision."""

    def __init__(
        self, poolings: Sequence[Pooling], lengths: Sequence[int], skipped: Sequence[int]
    ) -> None:
        """`lengths` are in tokens; the first `skipped` tokens of a text aren't pooled."""
        self._poolings = poolings
        self._ends = mx.array(list(lengths))[:, None]
        self._begins = mx.array(list(skipped))[:, None]
        self._at = 0
        self._state: dict[Pooling, mx.array] = {}

    def take(self, hidden: mx.array) -> None:
        """The next tokens' states, of shape (texts, tokens, width)."""
        places = mx.arange(self._at, self._at + hidden.shape[1])[None, :]
        hidden = hidden.astype(mx.float32)
        for each in dict.fromkeys(self._poolings):
            new = self._part(each, hidden, places)
            old = self._state.get(each)
            if old is None:
                self._state[each] = new
            else:
                self._state[each] = mx.maximum(old, new) if each == "max" else old + new
        self._at += hidden.shape[1]
        mx.eval(list(self._state.values()))

    def result(self) -> mx.array:
        """Of shape (texts, width x poolings)."""
        counts = mx.maximum(self._ends - self._begins, 1)
        joined = []
        for each in self._poolings:
            value = self._state[each]
            match each:
                case "mean":
                    value = value / counts
                case "mean_sqrt_len_tokens":
                    value = value / mx.sqrt(counts)
                case "weightedmean":
                    # Of the places from the first pooled one to the last, counted from 1.
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
        # States of padding may be no numbers.
        known = mx.where(weights[..., None] > 0, hidden, 0)
        return (weights[:, None, :] @ known)[:, 0]


class Backbone(Protocol):
    """A model without its head. `in_chunks`: a batch may be computed in parts."""

    in_chunks: bool

    def begin(self) -> Any:
        """The caches of a batch, which `states` gets with each chunk; None if there are none."""

    def states(
        self,
        tokens: mx.array,
        types: mx.array | None,
        lengths: Sequence[int],
        kept: Any,
    ) -> mx.array:
        """Hidden states of tokens that are padded on the right, (texts, tokens, width)."""


class Decoder:
    """Tokens see only those before them, so padding on the right changes nothing."""

    in_chunks = True

    def __init__(self, model: Any, backbone: Any) -> None:
        self._model = model
        self._backbone = backbone

    @classmethod
    def of(cls, model: Any) -> Decoder | None:
        """None: the architecture's backbone can't be told from its head."""
        backbone = trunk_of(model)
        return None if backbone is None else cls(model, backbone)

    def begin(self) -> Any:
        return make_caches(self._model)

    def states(
        self,
        tokens: mx.array,
        types: mx.array | None,
        lengths: Sequence[int],
        kept: Any,
    ) -> mx.array:
        states: mx.array = self._backbone(tokens, cache=kept)
        mx.eval([each.state for each in kept])
        return states


class Encoder:
    """A model whose tokens see all of their text."""

    in_chunks = False

    def __init__(self, model: Any) -> None:
        """`model` is one of `worker.mlx_embeddings`."""
        self._model = model

    def begin(self) -> Any:
        return None

    def states(
        self,
        tokens: mx.array,
        types: mx.array | None,
        lengths: Sequence[int],
        kept: Any,
    ) -> mx.array:
        mask = mx.arange(tokens.shape[1])[None, :] < mx.array(list(lengths))[:, None]
        states: mx.array = self._model.states(tokens, types, mask.astype(self._model.dtype))
        return states
