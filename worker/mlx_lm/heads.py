"""A model's own head for the token after the next one ("multi-token prediction", "nextn").

The training of some models adds one layer to them. It gets the state that the model computed for a
token, and the embedding of the token that follows. From the layer's own state the model's output
layer makes logits of the token after that. A chain of guesses goes on with the head's states. The
equations are in DeepSeek-V3's report (arXiv 2412.19437, section 2.2), but in the files of all
models the embedding comes before the state. States are those after the last norm, the model's and
the head's: heads were trained so (Rapid-MLX#3371, vllm#45895).

mlx-lm drops the weights of heads. Here a head becomes a part of its model before mlx-lm quantizes
the model and reads its weights. mlx-vlm splits heads of Qwen's models off, into folders of their
own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache
from mlx_lm.utils import infer_quant_config

from worker.mlx_lm.guessing import WithStates
from worker.mlx_lm.models import known_weights, output_layer_of

# By such a name a model's `sanitize` knows the weights of any of its layers.
_ANY_LAYER: Final = "layers.0."
_EXPERT: Final = re.compile(r"(.+\.)experts\.(\d+)\.(.+)")
_QWEN: Final = re.compile(r"(?:^|\.)mtp\.(?:layers\.0\.)?(.+)")
_NEXTN: Final = re.compile(r"model\.layers\.(\d+)\.(.+)")
# Norms multiply by weights around 1, from which 1 was taken away in some files.
_BETWEEN: Final = 0.5


def _name_in_qwen(name: str, arguments: Any) -> str | None:
    match = _QWEN.search(name)
    return match[1] if match else None


def _name_in_nextn(name: str, arguments: Any) -> str | None:
    match = _NEXTN.match(name)
    if match is None or int(match[1]) < arguments.num_hidden_layers:
        return None
    # More heads are in no known files. The first one can guess all tokens.
    return match[2] if int(match[1]) == arguments.num_hidden_layers else ""


class _HeadKind(NamedTuple):
    """Models whose heads are alike.

    `name_in` gives the name that a weight has in the head; None: the weight isn't the head's.
    `parts` are the head's parts outside its layer: their names in files, and in `Head`. `layer`
    gives the number of a layer of the same kind. `array_mask`: attention needs the mask's array.
    `less_one`: 1 is taken away from the weights of norms in the files of the model's authors.
    """

    name_in: Callable[[str, Any], str | None]
    parts: Mapping[str, str]
    layer: Callable[[Any], int]
    array_mask: bool = False
    less_one: bool = False


_OF_QWEN: Final = _HeadKind(
    _name_in_qwen,
    {
        "fc": "joint",
        "pre_fc_norm_embedding": "embedding_norm",
        "pre_fc_norm_hidden": "state_norm",
        "norm": "norm",
    },
    # The attention of heads is full.
    lambda arguments: arguments.full_attention_interval - 1,
    less_one=True,
)
_OF_GLM: Final = _HeadKind(
    _name_in_nextn,
    {
        "eh_proj": "joint",
        "enorm": "embedding_norm",
        "hnorm": "state_norm",
        "shared_head.norm": "norm",
    },
    lambda arguments: arguments.num_hidden_layers,
)
# By the names of mlx-lm's modules.
_KINDS: Final = {
    "qwen3_next": _OF_QWEN,
    "qwen3_5": _OF_QWEN,
    "qwen3_5_moe": _OF_QWEN,
    "glm4_moe": _OF_GLM,
    "deepseek_v3": _OF_GLM._replace(array_mask=True),
}


class Head(nn.Module):
    """The parts that a head has for itself. `layer` is a layer of the model's class."""

    def __init__(self, layer: nn.Module, arguments: Any, *, array_mask: bool) -> None:
        super().__init__()
        width, epsilon = arguments.hidden_size, arguments.rms_norm_eps
        self.embedding_norm = nn.RMSNorm(width, epsilon)
        self.state_norm = nn.RMSNorm(width, epsilon)
        self.joint = nn.Linear(2 * width, width, bias=False)
        self.layer = layer
        self.norm = nn.RMSNorm(width, epsilon)
        self._array_mask = array_mask

    def __call__(self, embedded: mx.array, states: mx.array, cache: Any) -> mx.array:
        """The head's states, for the embeddings of tokens, and the states of the tokens before
        these: all (rows, tokens, width).
        """
        both = [self.embedding_norm(embedded), self.state_norm(states)]
        joined = self.joint(mx.concatenate(both, axis=-1))
        mask = create_attention_mask(joined, cache, return_array=self._array_mask)
        states_of_head: mx.array = self.norm(self.layer(joined, mask, cache))
        return states_of_head


class HeadDrafter:
    """Guesses tokens by a model's own head, as a `Drafter`."""

    def __init__(self, model: Any, tokens: int) -> None:
        """At most `tokens` tokens are guessed at a time."""
        self._model = model
        self.with_states: WithStates = model.with_states
        # Right guesses are seen again.
        self.usual_tokens = tokens + 1

    @classmethod
    def of(cls, model: Any, tokens: int) -> HeadDrafter | None:
        """The drafter of a model; None: the model has no head."""
        return None if getattr(model, "mtp", None) is None else cls(model, tokens)

    def make_cache(self) -> list[Any]:
        """New caches for one row."""
        return [KVCache()]

    @property
    def state_bytes(self) -> int:
        """The bytes of a token's state."""
        return int(self._zeros((1,)).nbytes)

    def __call__(
        self, tokens: mx.array, hidden: mx.array | None, cache: list[Any]
    ) -> tuple[mx.array, mx.array]:
        """The logits of the token after each of `tokens`, (rows, tokens, vocabulary), and the
        head's states. `hidden` are the states, (rows, tokens, width), of the token before each;
        None: zeros, for a trial.
        """
        states = self._zeros(tokens.shape) if hidden is None else hidden
        states = self._model.mtp(self._model.model.embed_tokens(tokens), states, cache[0])
        return output_layer_of(self._model)(states), states

    def _zeros(self, shape: tuple[int, ...]) -> mx.array:
        norm = self._model.model.norm.weight
        return mx.zeros((*shape, norm.size), norm.dtype)


def with_own_head(
    classes: tuple[type, Any], *, with_head: bool, split: Mapping[str, mx.array] | None = None
) -> tuple[type, Any]:
    """The classes of a model that takes its own head from its files, if they have it. Without
    `with_head` the head's weights are dropped. `split` are the weights of a head that was split off
    the model, which stands in for the dropped or missing one.
    """
    model, arguments = classes
    kind = _KINDS.get(model.__module__.rpartition(".")[2])
    if kind is None:
        return classes
    return _taking_head(model, kind, with_head=with_head, split=split or {}), arguments


def _taking_head(
    model: Any, kind: _HeadKind, *, with_head: bool, split: Mapping[str, mx.array]
) -> type:
    class ModelWithOwnHead(model):
        def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
            arguments = getattr(self, "language_model", self).args  # type: ignore[union-attr]
            names = {name: kind.name_in(name, arguments) for name in weights}
            theirs = {name: weights[name] for name, head_name in names.items() if head_name is None}
            head_weights = {
                head_name: weights[name]
                for name, head_name in names.items()
                if head_name and with_head
            }
            raw = any("conv1d.weight" in name and theirs[name].shape[-1] > 1 for name in theirs)
            sanitized: dict[str, mx.array] = super().sanitize(theirs)
            was_split = not head_weights
            if was_split:
                raw = False
                head_weights = {
                    head_name: weight
                    for name, weight in split.items()
                    if (head_name := kind.name_in(f"mtp.{name}", arguments))
                }
            if not head_weights:
                return sanitized
            norms = {
                name: head_weights.pop(name)
                for name in list(head_weights)
                if kind.less_one and _is_norm(name)
            }
            # This also stacks experts, and unpacks the weights of some kinds.
            head_weights = super().sanitize(
                {f"model.{_ANY_LAYER}{name}": head_weights[name] for name in head_weights}
            )
            head_weights = {
                name.partition(_ANY_LAYER)[2]: value for name, value in head_weights.items()
            }
            head_weights = _stacked(head_weights) | _restored(norms, raw=raw)
            layer = type(self.model.layers[0])(arguments, kind.layer(arguments))
            head = Head(layer, arguments, array_mask=kind.array_mask)
            head_weights = known_weights(
                head, {_name_in_head(name, kind): head_weights[name] for name in head_weights}
            )
            if _is_complete(head, head_weights):
                if was_split:
                    _quantize(head, head_weights)
                self.mtp = head
                sanitized |= {f"mtp.{name}": value for name, value in head_weights.items()}
            return sanitized

        def with_states(self, tokens: mx.array, cache: list[Any]) -> tuple[mx.array, mx.array]:
            """The logits after each of `tokens`, (rows, tokens), and the tokens' states."""
            states: mx.array = self.model(tokens, cache=cache)
            return output_layer_of(self)(states), states

    return ModelWithOwnHead


def _is_norm(name: str) -> bool:
    return name.endswith("norm.weight") or name.startswith("pre_fc_norm")


def _name_in_head(name: str, kind: _HeadKind) -> str:
    part, _, last = name.rpartition(".")
    return f"{kind.parts[part]}.{last}" if part in kind.parts else f"layer.{name}"


def _stacked(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """The weights with one array for all experts of a layer. Some models do this themselves."""
    stacked: dict[str, mx.array] = {}
    experts: dict[str, dict[int, mx.array]] = {}
    for name, value in weights.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            stacked[name] = value
        else:
            experts.setdefault(f"{match[1]}switch_mlp.{match[3]}", {})[int(match[2])] = value
    for name, expert in experts.items():
        stacked[name] = mx.stack([expert[number] for number in sorted(expert)])
    return stacked


def _restored(norms: dict[str, mx.array], *, raw: bool) -> dict[str, mx.array]:
    """The weights of norms by which the norms multiply.

    With `raw` 1 was taken away from the weights of the whole model. Otherwise a converter left the
    model's norms whole, but not always the head's: the last one and the others are judged by
    themselves. Those before the joint layer are small in any case, so those of the layer stand for
    them (omlx#1507, omlx#3750).
    """
    last = _mean(norms, "norm.weight")
    others = _mean(norms, "input_layernorm.weight", "post_attention_layernorm.weight")
    return {
        name: value + 1.0
        if raw or (last if name == "norm.weight" else others) < _BETWEEN
        else value
        for name, value in norms.items()
    }


def _mean(weights: dict[str, mx.array], *names: str) -> float:
    arrays = [weights[name] for name in names if name in weights]
    # The GPU must not wait for the disk.
    mx.eval(arrays)
    means = [float(array.astype(mx.float32).mean()) for array in arrays]
    return sum(means) / max(1, len(means))


def _quantize(head: Head, weights: dict[str, mx.array]) -> None:
    """Quantize those layers of a head whose weights are. The model's may be quantized in another
    way, or not at all.
    """
    nn.quantize(
        head,
        class_predicate=lambda name, layer: (
            f"{name}.scales" in weights and infer_quant_config(name, layer, weights)
        ),
    )


def _is_complete(head: Head, weights: dict[str, mx.array]) -> bool:
    """Whether the weights are those of the head. Quantized weights are packed along rows."""
    for name, wanted in tree_flatten(head.parameters()):
        weight = weights.get(name)
        packed = f"{name.rpartition('.')[0]}.scales" in weights
        if weight is None or weight.ndim != wanted.ndim:
            return False
        if weight.shape[: -1 if packed else None] != wanted.shape[: -1 if packed else None]:
            return False
    return True
