"""mlx-lm's models: how they are loaded, of which parts they are, and how they are split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import mlx.core as mx
import mlx_lm.models
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes, load_adapters, load_model, load_tokenizer

from protocol.ranks import RankSplit
from worker.mlx_lm.caches import make_caches

# A model's class and that of its arguments, by its configuration.
Classes: TypeAlias = Callable[[dict[str, Any]], tuple[type, Any]]
# Padding is masked by adding it; the least number that half precision has is -65,504.
MASKED: Final = -30000.0
# What its architectures call the model without its head.
_TRUNKS: Final = ("model", "backbone", "transformer")
# In the source of one that can be split by tensors.
_SHARDS: Final = "    def shard("


def read_model(folder: Path, classes: Classes | None = None) -> tuple[Any, dict[str, Any]]:
    """A model whose weights are read when they are needed, and its configuration."""
    loaded: tuple[Any, dict[str, Any]] = load_model(
        folder,
        lazy=True,
        trust_remote_code=False,
        get_model_classes=classes_of if classes is None else classes,
    )
    return loaded


def read_tokenizer(folder: Path, eos_token_ids: Any) -> Any:
    """mlx-lm's wrapper of it."""
    return load_tokenizer(folder, {"trust_remote_code": False}, eos_token_ids=eos_token_ids)


def read_adapter(model: Any, folder: Path) -> None:
    """Put an adapter's layers into a model."""
    load_adapters(model, str(folder))


def classes_of(config: dict[str, Any]) -> tuple[type, Any]:
    """The classes of an architecture that mlx-lm has."""
    classes: tuple[type, Any] = _get_classes(config)
    return classes


def with_head(config: dict[str, Any]) -> tuple[type, Any]:
    """The classes for files that lack the head and name the other layers without it. The head is
    the embedding, as nobody asks for it.
    """
    model, arguments = classes_of(config)
    config["tie_word_embeddings"] = True

    class Model(model):  # type: ignore[misc, valid-type]  # mlx-lm is untyped
        def sanitize(self, weights: dict[str, Any]) -> dict[str, Any]:
            named = {f"model.{name}": value for name, value in weights.items()}
            below = getattr(super(), "sanitize", None)
            return named if below is None else dict(below(named))

    return Model, arguments


def small_llama(vocabulary: int) -> Any:
    """A model of one layer and random weights, of the most common kind."""
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
    """Those of files that a model has: files have heads of their training, and buffers, too."""
    wanted = {name for name, _ in tree_flatten(model.parameters())}
    layers = {name.rpartition(".")[0] for name in wanted}
    # A quantized layer has scales and biases beside its weight.
    return {name: value for name, value in weights.items() if name.rpartition(".")[0] in layers}


# Parts


def trunk_of(model: Any) -> Any:
    """The part of a model that makes hidden states of tokens; None: it can't be told apart."""
    inner = getattr(model, "language_model", model)
    for name in _TRUNKS:
        trunk = getattr(inner, name, None)
        if callable(trunk) and _gives_states(model, trunk):
            return trunk
    return None


def logits_of(model: Any, states: mx.array) -> mx.array:
    """The logits of hidden states, (texts, width) to (texts, vocabulary)."""
    inner = getattr(model, "language_model", model)
    states = states.astype(inner.model.norm.weight.dtype)
    if hasattr(inner, "lm_head"):
        logits: mx.array = inner.lm_head(states)
    else:
        logits = inner.model.embed_tokens.as_linear(states)
    return logits


def _gives_states(model: Any, trunk: Any) -> bool:
    try:
        # Nothing is computed as long as nobody asks for it: the shape is known all the same.
        states = trunk(mx.array([[0, 0]]), cache=make_caches(model))
    except Exception:
        # Architectures are called in ways of their own.
        return False
    return isinstance(states, mx.array) and states.ndim == 3 and states.shape[:2] == (1, 2)


# Ranks


def splits_of(model: Any) -> dict[RankSplit, Callable[[Any], None]]:
    """The ways in which a model can be split: each leaves of it what a rank of a group computes."""
    splits: dict[RankSplit, Callable[[Any], None]] = {}
    if hasattr(model, "shard"):
        splits["tensor"] = model.shard
    if hasattr(getattr(model, "model", None), "pipeline"):
        splits["pipeline"] = model.model.pipeline
    return splits


def splittable() -> list[str]:
    """The architectures that can be split by tensors. They are looked for in the sources: to import
    them all would take seconds.
    """
    folder = Path(mlx_lm.models.__file__).parent
    return sorted(each.stem for each in folder.glob("*.py") if _SHARDS in each.read_text("utf-8"))
