"""Random-weight models of the shapes that the demo model doesn't have, made when a test runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import _get_classes

import gateway

DEMO = Path(gateway.__file__).parent / "demo_model"
_TABLES = frozenset({"num_vocab", "vocab_size_per_layer_input"})
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

_ATTENTION = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
}


def without_weights(folder: Path) -> Path:
    """The demo model, whose weights are missing."""
    shutil.copytree(DEMO, folder)
    (folder / "model.safetensors").unlink()
    return folder


def sparse(folder: Path, megabytes: int) -> Path:
    """Much weight and little arithmetic: experts of 0.2 MB, of which a token passes through two."""
    return write(
        folder,
        {
            **_ATTENTION,
            "model_type": "qwen3_moe",
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "head_dim": 32,
            "num_experts": 5 * megabytes,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": 64,
            "tie_word_embeddings": False,
            "norm_topk_prob": True,
        },
    )


def dense(folder: Path) -> Path:
    """Slow to prefill on a CPU: 230 MB that every token passes through."""
    return write(
        folder,
        {
            **_ATTENTION,
            "model_type": "qwen3",
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "head_dim": 64,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
        },
    )


def splittable(folder: Path, kind: str) -> Path:
    """Of a kind that mlx-lm can split over four ranks by tensors: llama, qwen3, gpt_oss with a
    sliding window in every other layer, and qwen3_moe, which it can split by layers too.
    """
    return write(
        folder,
        {
            **_ATTENTION,
            "model_type": kind,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "tie_word_embeddings": False,
            "num_experts": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
            "sliding_window": 32,
        },
    )


def wide_cache(folder: Path) -> Path:
    """Little weight, and 32 KB for each token of a sequence."""
    return write(
        folder,
        {
            **_ATTENTION,
            "model_type": "qwen3",
            "num_hidden_layers": 2,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
        },
    )


def full_attention(folder: Path, heads: int = 2) -> Path:
    """Small, with heads wide enough for their caches to be quantized, and two of keys."""
    return write(
        folder,
        {
            **_ATTENTION,
            "model_type": "qwen3",
            "num_hidden_layers": 2,
            "num_attention_heads": heads,
            "head_dim": 64,
            "tie_word_embeddings": False,
        },
    )


def sliding_window(folder: Path) -> Path:
    """Rotating caches beside full ones."""
    return write(
        folder,
        {
            **_ATTENTION,
            "model_type": "gemma3_text",
            "sliding_window": 32,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 16,
        },
    )


def state_space(folder: Path) -> Path:
    """No keys and values at all: a recurrent state."""
    return write(
        folder,
        {
            "model_type": "mamba2",
            "num_heads": 8,
            "head_dim": 16,
            "hidden_size": 64,
            "intermediate_size": 128,
            "state_size": 16,
            "num_hidden_layers": 3,
            "layer_norm_epsilon": 1e-5,
            "conv_kernel": 4,
            "n_groups": 1,
            "use_bias": False,
            "use_conv_bias": True,
            "tie_word_embeddings": False,
            "time_step_limit": [0.001, 0.1],
            "time_step_rank": "auto",
        },
    )


def padded_state(folder: Path) -> Path:
    """A recurrent state into which mlx-lm lets the padding of a batch."""
    return write(
        folder,
        {
            "model_type": "mamba",
            "hidden_size": 64,
            "intermediate_size": 128,
            "state_size": 16,
            "num_hidden_layers": 3,
            "conv_kernel": 4,
            "use_bias": False,
            "use_conv_bias": True,
            "time_step_rank": 8,
            "tie_word_embeddings": False,
        },
    )


def hybrid(folder: Path) -> Path:
    """Convolutions with a state beside full attention."""
    return write(
        folder,
        {
            "model_type": "lfm2",
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "norm_eps": 1e-5,
            "conv_bias": False,
            "conv_L_cache": 3,
            "block_dim": 64,
            "block_multiple_of": 32,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": False,
            "block_ff_dim": 128,
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        },
    )


def linear_attention(folder: Path, layers: int = 4, hidden_size: int = 64) -> Path:
    """Large recurrent states beside full attention in every fourth layer, and experts."""
    return write(
        folder,
        {
            **_ATTENTION,
            "model_type": "qwen3_next",
            "hidden_size": hidden_size,
            "num_hidden_layers": layers,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_conv_kernel_dim": 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "shared_expert_intermediate_size": 64,
            "mlp_only_layers": [],
            "moe_intermediate_size": 64,
            "partial_rotary_factor": 0.25,
            "norm_topk_prob": True,
            "max_position_embeddings": 32768,
        },
    )


def chunked_attention(folder: Path) -> Path:
    """Caches that mlx-lm can't merge into a batch."""
    text = {
        **_ATTENTION,
        "model_type": "llama4_text",
        "attention_bias": False,
        "attention_chunk_size": 512,
        "interleave_moe_layer_step": 2,
        "intermediate_size_mlp": 128,
        "num_experts_per_tok": 1,
        "num_local_experts": 2,
        "rope_scaling": None,
        "use_qk_norm": True,
    }
    return write(folder, {"model_type": "llama4", "text_config": text})


def shared_keys(folder: Path) -> Path:
    """Later layers attend to an earlier one's keys, whose places mlx-lm has for one sequence."""
    return write(
        folder,
        {
            "model_type": "afm7",
            "hidden_dim": 64,
            "hidden_size": 64,
            "num_layers": 4,
            "num_hidden_layers": 4,
            "num_kv_reuse_layers": 2,
            "num_heads": 4,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
        },
    )


def counted_positions(folder: Path) -> Path:
    """Embeddings of positions, which mlx-lm counts for one sequence alone."""
    return write(
        folder,
        {
            "model_type": "gpt_bigcode",
            "n_embd": 64,
            "n_layer": 2,
            "n_inner": 128,
            "n_head": 4,
            "n_positions": 4096,
            "layer_norm_epsilon": 1e-5,
        },
    )


def _with_vocabulary(config: dict[str, Any], rows: int) -> dict[str, Any]:
    """The configuration with `rows` rows in each table of tokens. On a CPU, MLX reads foreign
    memory where a table is too small.
    """
    keys = {"vocab_size"} | _TABLES.intersection(config)
    config = {**config, **dict.fromkeys(keys, rows)}
    if "text_config" in config:
        config["text_config"] = _with_vocabulary(config["text_config"], rows)
    return config


def write(folder: Path, config: dict[str, Any]) -> Path:
    """Save a model with the demo's tokenizer. The weights are the same on every run."""
    demo = json.loads((DEMO / "config.json").read_text())
    config = _with_vocabulary(config, demo["vocab_size"])
    config["eos_token_id"] = demo["eos_token_id"]
    folder.mkdir(parents=True)
    model_class, arguments_class = _get_classes(config)
    mx.random.seed(7)
    model = model_class(arguments_class.from_dict(config))
    # Outputs of small random weights depend on the last token alone; larger ones on all before it.
    arrays = tree_map(lambda array: array.astype(mx.float32) * 2, model.parameters())
    weights = dict(tree_flatten(arrays))
    if (head := weights.get("lm_head")) is not None and not head.any():
        # Talkie's begins with zeros, with which no token is likelier than another.
        weights["lm_head"] = mx.random.normal(head.shape)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    mx.clear_cache()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"do_sample": false}')
    for name in TOKENIZER_FILES:
        if (DEMO / name).exists():
            shutil.copy(DEMO / name, folder / name)
    return folder
