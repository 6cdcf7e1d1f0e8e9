"""Small models that have a head of their own for several tokens, in the layouts of their files."""

from __future__ import annotations

import json
import random
import re
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map, tree_map_with_path

VOCABULARY: Final = 300
WIDTH: Final = 64
LAYERS: Final = 4
EXPERTS: Final = 4

_COMMON: Final[dict[str, Any]] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
_LINEAR: Final[dict[str, Any]] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.25,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "shared_expert_intermediate_size": 32,
}
_ROUTED: Final[dict[str, Any]] = {
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0,
}
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "qwen3_next": {**_LINEAR, "num_experts": EXPERTS},
    "qwen3_5": {**_LINEAR, "tie_word_embeddings": True},
    "qwen3_5_moe": {**_LINEAR, "num_experts": EXPERTS},
    "glm4_moe": {**_ROUTED, "use_qk_norm": True, "partial_rotary_factor": 0.5},
    "deepseek_v3": {
        **_ROUTED,
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "moe_layer_freq": 1,
    },
}
_QWEN_PARTS: Final = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
_NEXTN_PARTS: Final = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
_LESS_ONE: Final = r"(?<!linear_attn\.)norm\.weight$|pre_fc_norm"


class OwnHead:
    """A model of mlx-lm's with random weights, and the weights of a head for it, as mlx-lm would
    name and shape them: `joint`, `embedding_norm`, `state_norm` and `norm`, and the layer's own.
    """

    def __init__(self, kind: str, **options: Any) -> None:
        """`options` are put into the configuration."""
        self.kind = kind
        self.config = {**_COMMON, **CONFIGS[kind], "model_type": kind, **options}
        module = import_module(f"mlx_lm.models.{kind}")
        mx.random.seed(1)
        self.model: Any = module.Model(module.ModelArgs.from_dict(self.config))
        self.model.update(tree_map(_random, self.model.parameters()))
        self.is_qwen = kind.startswith("qwen")
        text: Any = getattr(self.model, "language_model", self.model)
        # The last layer has full attention, and a mixture where the model has mixtures.
        self.layer: Any = type(text.model.layers[-1])(text.args, LAYERS - 1)
        self.layer.update(tree_map(_random, self.layer.parameters()))
        joint = mx.random.normal((WIDTH, 2 * WIDTH)) * 0.3
        self.parts = [joint, *(mx.random.uniform(0.6, 1.4, (WIDTH,)) for _ in range(3))]

    def converted(self) -> dict[str, mx.array]:
        """The weights in the layout of mlx-lm's files, with those of the head."""
        weights = dict(tree_flatten(self.model.parameters()))
        before = "language_model." if hasattr(self.model, "language_model") else ""
        layer = f"{before}mtp.layers.0." if self.is_qwen else f"model.layers.{LAYERS}."
        outside = f"{before}mtp." if self.is_qwen else layer
        weights |= {layer + name: item for name, item in tree_flatten(self.layer.parameters())}
        names = _QWEN_PARTS if self.is_qwen else _NEXTN_PARTS
        for name, part in zip(names, self.parts, strict=True):
            weights[f"{outside}{name}.weight"] = part
        if not self.is_qwen:
            # Files also have copies of the model's own layers for the head.
            copy = mx.zeros((self.config["vocab_size"], WIDTH))
            weights[f"{layer}embed_tokens.weight"] = copy
            weights[f"{layer}shared_head.head.weight"] = copy
        return weights

    def published(self) -> dict[str, mx.array]:
        """The weights in the layout of the files of the model's authors."""
        weights = {_published_name(name): array for name, array in self.converted().items()}
        for name, array in list(weights.items()):
            if name.endswith("embed_q.weight"):
                _join_latents(weights, name)
            elif name.endswith(".switch_mlp.gate_proj.weight"):
                fused = self.kind == "qwen3_5_moe" and not name.startswith("mtp.")
                _divide_experts(weights, name.partition("switch_mlp.")[0], fused=fused)
            elif name.endswith("conv1d.weight"):
                weights[name] = array.moveaxis(1, 2)
            elif self.is_qwen and array.ndim == 1 and re.search(_LESS_ONE, name):
                weights[name] = array - 1.0
        return weights

    def forget_context(self, by: str) -> dict[int, int]:
        """Make all layers of the model and of the head add nothing, so that a state is the token's
        embedding. Returns for each of `WIDTH` tokens the one that follows: they make a circle. The
        head knows that, by the "token" that it gets, or by the "state" of the token before.
        """
        for item in (self.model, self.layer):
            item.update(tree_map_with_path(_silent, item.parameters()))
        circle = random.Random(1).sample(range(WIDTH), WIDTH)
        follows = {number: circle[(index + 1) % WIDTH] for index, number in enumerate(circle)}
        # State, and embedding, number n is 1 at the place n, and 0 elsewhere.
        same = mx.eye(WIDTH)
        next_ = same[mx.array([follows[index] for index in range(WIDTH)])].T
        joint = [same, 0 * same] if by == "token" else [0 * same, next_]
        self.parts = [mx.concatenate(joint, axis=1), *(mx.ones(WIDTH) for _ in range(3))]
        text: Any = getattr(self.model, "language_model", self.model)
        others = mx.zeros((self.config["vocab_size"] - WIDTH, WIDTH))
        text.model.embed_tokens.weight = mx.concatenate([same, others])
        text.lm_head.weight = mx.concatenate([next_, others])
        return follows


def _silent(name: str, array: mx.array) -> mx.array:
    if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight")):
        return mx.zeros_like(array)
    return mx.ones_like(array) if name.endswith("model.norm.weight") else array


def _published_name(name: str) -> str:
    inner = name.removeprefix("language_model.")
    return inner.replace("model.", "model.language_model.", 1) if inner != name else name


def _join_latents(weights: dict[str, mx.array], name: str) -> None:
    before = name.removesuffix("embed_q.weight")
    parts = [weights.pop(name).swapaxes(-1, -2), weights.pop(f"{before}unembed_out.weight")]
    joined = mx.concatenate(parts, axis=1)
    weights[f"{before}kv_b_proj.weight"] = joined.reshape(-1, joined.shape[-1])


def _divide_experts(weights: dict[str, mx.array], before: str, *, fused: bool) -> None:
    gate, up, down = (
        weights.pop(f"{before}switch_mlp.{text}_proj.weight") for text in ("gate", "up", "down")
    )
    if fused:
        weights[f"{before}experts.gate_up_proj"] = mx.concatenate([gate, up], axis=1)
        weights[f"{before}experts.down_proj"] = down
        return
    for name, stacked in (("gate", gate), ("up", up), ("down", down)):
        for index, array in enumerate(stacked):
            weights[f"{before}experts.{index}.{name}_proj.weight"] = array


def _random(array: mx.array) -> mx.array:
    if array.ndim == 1:
        return mx.random.uniform(0.6, 1.4, array.shape)
    return mx.random.normal(array.shape) * 0.3


def write(folder: Path, config: dict[str, Any], weights: dict[str, mx.array]) -> Path:
    """Save a model without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder
