"""Drafters of EAGLE-3 in the forms of their files: with random weights, and one that is always
right beside a small model.
"""

from __future__ import annotations

import random
from typing import Any, Final, Literal

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models import llama

Weights = dict[str, mx.array]
WIDTH: Final = 64
VOCABULARY: Final = 300
# The tokens of the circle, from this number on.
FIRST: Final = 10
CIRCLE: Final = 48
# Two tokens that never come, which the drafter knows, too.
_NEVER: Final = (100, 103)
LAYERS: Final = 8
# In these places of a state are the number of layers that it went through, and what a drafter makes
# of these numbers.
_DEPTH: Final = 60
_WRONG: Final = 61


def config_of(width: int, vocabulary: int, **options: Any) -> dict[str, Any]:
    """The config.json of a drafter, in the form of EAGLE's authors and SGLang."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": 1,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "vocab_size": vocabulary,
        "draft_vocab_size": vocabulary,
        "max_position_embeddings": 2048,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        **options,
    }


def random_weights(config: dict[str, Any]) -> Weights:
    """Random weights of all parts, by the names in the files of EAGLE's authors."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    known = config["draft_vocab_size"]
    shapes = {
        "fc": (width, 3 * config.get("target_hidden_size", width)),
        "midlayer.input_layernorm": (width,),
        "midlayer.hidden_norm": (width,),
        "midlayer.post_attention_layernorm": (width,),
        "midlayer.self_attn.q_proj": (queries, 2 * width),
        "midlayer.self_attn.k_proj": (keys, 2 * width),
        "midlayer.self_attn.v_proj": (keys, 2 * width),
        "midlayer.self_attn.o_proj": (width, queries),
        "midlayer.mlp.gate_proj": (inner, width),
        "midlayer.mlp.up_proj": (inner, width),
        "midlayer.mlp.down_proj": (width, inner),
        "norm": (width,),
        "lm_head": (known, width),
        "embed_tokens": (config["vocab_size"], width),
    }
    weights = {f"{name}.weight": mx.random.normal(shape) * 0.3 for name, shape in shapes.items()}
    if known < config["vocab_size"]:
        chosen = random.Random(2).sample(range(config["vocab_size"]), known)
        weights["d2t"] = mx.array(sorted(chosen), mx.int64) - mx.arange(known)
        weights["t2d"] = mx.zeros((config["vocab_size"],), mx.bool_)
    return weights


def as_speculators(
    config: dict[str, Any], weights: Weights, layers: list[int]
) -> tuple[dict[str, Any], Weights]:
    """The same drafter in the form of vLLM's Speculators."""
    outer = {
        "target_hidden_size": config.get("target_hidden_size"),
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": config["draft_vocab_size"],
        "norm_before_residual": config.get("norm_before_residual", False),
        "eagle_aux_hidden_state_layer_ids": layers,
        "transformer_layer_config": {
            key: item
            for key, item in config.items()
            if key not in ("architectures", "draft_vocab_size", "target_hidden_size")
        },
    }
    named = {name.replace("midlayer.", "layers.0."): item for name, item in weights.items()}
    return outer, named | {"verifier_norm.weight": mx.ones(WIDTH)}


def circle_model() -> tuple[dict[str, Any], Weights, dict[int, int]]:
    """A model whose next token depends on the last one alone: its config.json, its weights, and the
    token that follows each of the circle's. A state is the token's, with the number of layers.
    """
    config = {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "mlp_bias": True,
        "tie_word_embeddings": False,
    }
    model = llama.Model(llama.ModelArgs.from_dict(config))
    weights: Weights = dict(tree_flatten(tree_map(mx.zeros_like, model.parameters())))
    for layer in range(LAYERS):
        weights[f"model.layers.{layer}.mlp.down_proj.bias"] = mx.eye(WIDTH)[_DEPTH]
    weights["model.norm.weight"] = mx.ones(WIDTH)
    places = list(range(CIRCLE))
    random.Random(1).shuffle(places)
    follows = {one: places[(index + 1) % CIRCLE] for index, one in enumerate(places)}
    same = mx.eye(CIRCLE, WIDTH)
    weights["model.embed_tokens.weight"] = _rows({FIRST + one: same[one] for one in places})
    weights["lm_head.weight"] = _rows({FIRST + follows[one]: same[one] for one in places})
    return config, weights, {FIRST + one: FIRST + other for one, other in follows.items()}


def always_right(
    follows: dict[int, int], by: Literal["token", "state"], late: int = 0
) -> tuple[dict[str, Any], Weights]:
    """The drafter of that model: its config.json, and its weights. It knows the next token by the
    token that it gets, or by the states of the token before, and in both cases only if the states
    are those after the layers 2, 4 and 5, in this order. With `late` it takes the states for those
    of so many tokens before.
    """
    # Attention sees the newest token alone, as the keys and queries of all tokens are equal before
    # they are turned.
    config = config_of(
        WIDTH,
        VOCABULARY,
        num_key_value_heads=4,
        attention_bias=True,
        draft_vocab_size=CIRCLE + len(_NEVER),
    )
    weights = {name: mx.zeros_like(item) for name, item in random_weights(config).items()}
    for name in ("input_layernorm", "hidden_norm"):
        weights[f"midlayer.{name}.weight"] = mx.ones(WIDTH)
    weights["norm.weight"] = mx.ones(WIDTH)
    tokens = [*range(FIRST, FIRST + CIRCLE), *_NEVER]
    weights["d2t"] = mx.array(tokens, mx.int64) - mx.arange(len(tokens))
    for name in ("q_proj", "k_proj"):
        weights[f"midlayer.self_attn.{name}.bias"] = mx.full((WIDTH,), 20.0)
    for name in ("v_proj", "o_proj"):
        weights[f"midlayer.self_attn.{name}.bias"] = mx.zeros(WIDTH)
    same = mx.zeros((WIDTH, WIDTH))
    same[:CIRCLE, :CIRCLE] = mx.eye(CIRCLE)
    following = mx.zeros((WIDTH, WIDTH))
    for one, other in follows.items():
        following[other - FIRST, one - FIRST] = 1.0
    first = same
    for _ in range(late):
        first = first @ following
    joined = [first / 3] * 3
    # 3 x 2 + 1 x 4 - 2 x 5 is 0.
    for index, share in enumerate((3.0, 1.0, -2.0)):
        joined[index] = mx.array(joined[index])
        joined[index][_WRONG, _DEPTH] = share
    weights["fc.weight"] = mx.concatenate(joined, axis=1)
    changed = [same, -same] if by == "token" else [0 * same, following - same]
    weights["midlayer.self_attn.v_proj.weight"] = mx.concatenate(changed, axis=1)
    # The norms have made 8 of the only 1 among 64 numbers.
    weights["midlayer.self_attn.o_proj.weight"] = mx.eye(WIDTH) / 8
    head = mx.zeros((len(tokens), WIDTH))
    for one, other in follows.items():
        head[other - FIRST, one - FIRST] = 1.0
    head[CIRCLE, _WRONG], head[CIRCLE + 1, _WRONG] = 10.0, -10.0
    weights["lm_head.weight"] = head
    del weights["embed_tokens.weight"]
    return config, weights


def _rows(rows: dict[int, mx.array]) -> mx.array:
    zeros = mx.zeros(WIDTH)
    return mx.stack([rows.get(token, zeros) for token in range(VOCABULARY)])
