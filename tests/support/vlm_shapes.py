"""Random-weight models of architectures that only mlx-vlm has, with the demo's tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_flatten

from tests.support.shapes import DEMO, TOKENIZER_FILES

_TEXT: Final = {
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
_LATENT: Final = {
    "moe_intermediate_size": 64,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
_VISION: Final = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}
# Their configurations. Those with `vision_config` have weights of a part that looks at pictures.
ONLY_MLX_VLMS: Final[dict[str, dict[str, Any]]] = {
    # Rotating caches beside full ones, experts, no other part.
    "cohere2_moe": {
        **_TEXT,
        "intermediate_size": 64,
        "sliding_window": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_num_shared_experts": 1,
        "logit_scale": 1.0,
    },
    "k2_horizon": _TEXT,
    # Windows, and compressed entries of older tokens.
    "deepseek_v4": {
        **_TEXT,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "moe_intermediate_size": 64,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "sliding_window": 16,
        "o_groups": 2,
        "o_lora_rank": 16,
        "index_n_heads": 2,
        "index_head_dim": 32,
        "num_hash_layers": 1,
        "num_nextn_predict_layers": 0,
    },
    # A latent of each token, and an index over them.
    "hy_v4": {
        **_TEXT,
        **_LATENT,
        "num_key_value_heads": 1,
        "index_head_dim": 32,
        "index_n_heads": 2,
        "index_topk": 64,
    },
    # Positions with three parts, which the model keeps from call to call.
    "glm4v": {
        "text_config": {
            **_TEXT,
            "model_type": "glm4v_text",
            "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]},
        },
        "vision_config": {
            "model_type": "glm4v",
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "patch_size": 14,
            "out_hidden_size": 64,
        },
    },
    # Convolutions with a state beside full attention.
    "lfm2_vl": {
        "text_config": {
            **_TEXT,
            "model_type": "lfm2",
            "norm_eps": 1e-5,
            "block_dim": 64,
            "block_ff_dim": 128,
            "block_auto_adjust_ff_dim": False,
            "conv_dim": 64,
            "conv_dim_out": 64,
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        },
        "vision_config": {**_VISION, "model_type": "lfm2_vl", "num_patches": 16},
        "projector_hidden_size": 64,
    },
    "granite4_vision": {
        "text_config": {**_TEXT, "model_type": "granitemoehybrid", "logits_scaling": 1.0},
    },
    "internvl_chat": {
        "text_config": {**_TEXT, "model_type": "qwen2"},
        "vision_config": {**_VISION, "model_type": "intern_vit_6b"},
    },
    "mistral_large3": {
        "text_config": {**_TEXT, **_LATENT, "model_type": "mistral_large3"},
        "vision_config": {**_VISION, "model_type": "pixtral", "head_dim": 16},
    },
}


def write_mlx_vlms(folder: Path, kind: str) -> Path:
    """Save a model of a kind in `ONLY_MLX_VLMS`. The weights are the same on every run."""
    from mlx_vlm.utils import get_model_and_args, update_module_configs

    demo = json.loads((DEMO / "config.json").read_text())
    config = {"model_type": kind, **json.loads(json.dumps(ONLY_MLX_VLMS[kind]))}
    for table in (config, config.get("text_config", config)):
        table.update(vocab_size=demo["vocab_size"], eos_token_id=demo["eos_token_id"])
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    full = {"text_config": {}, "vision_config": {}, "audio_config": {}, **config}
    architecture, _ = get_model_and_args(full)
    arguments = architecture.ModelConfig.from_dict(full)
    modules = ["text", "vision", "perceiver", "projector", "audio"]
    arguments = update_module_configs(arguments, architecture, full, modules)
    mx.random.seed(7)
    model = architecture.Model(arguments)
    # Outputs of small random weights depend on the last token alone; larger ones on all before it.
    weights = {
        name: array.astype(mx.float32) * 2 if mx.issubdtype(array.dtype, mx.floating) else array
        for name, array in tree_flatten(model.parameters())
        if "vision_config" in config or "text_config" not in config or "language" in name
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    mx.clear_cache()
    (folder / "generation_config.json").write_text('{"do_sample": false}')
    for name in TOKENIZER_FILES:
        if (DEMO / name).exists():
            shutil.copy(DEMO / name, folder / name)
    return folder
