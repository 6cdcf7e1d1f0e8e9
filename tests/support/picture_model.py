"""A small random model that looks at pictures, of Qwen2-VL's shape, with the demo's tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from tests.support.shapes import DEMO

# Behind the demo's own.
_START, _END, _IMAGE, _VIDEO = 704, 705, 706, 707
_VOCABULARY = 708
_TEMPLATE = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content -%}
{%- if part.type == "image" -%}<|vision_start|><|image_pad|><|vision_end|>
{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""


def picture_model(folder: Path) -> Path:
    """1.4 MB; a picture takes some 16 tokens. Needs mlx-vlm."""
    from mlx_vlm.models import qwen2_vl

    config = _config()
    folder.mkdir(parents=True)
    arguments = qwen2_vl.ModelConfig.from_dict(dict(config))
    arguments.text_config = qwen2_vl.TextConfig.from_dict(arguments.text_config)
    arguments.vision_config = qwen2_vl.VisionConfig.from_dict(dict(config["vision_config"]))
    mx.random.seed(7)
    model = qwen2_vl.Model(arguments)
    # Small random weights make answers that depend on the last token alone.
    weights = tree_map(lambda array: array.astype(mx.float32) * 2, model.parameters())
    names = {
        name.replace("language_model.model", "model")
        .replace("language_model.lm_head", "lm_head")
        .replace("vision_tower", "visual"): array
        for name, array in tree_flatten(weights)
    }
    mx.save_safetensors(str(folder / "model.safetensors"), names, {"format": "mlx"})
    mx.clear_cache()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"do_sample": false}')
    (folder / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "image_processor_type": "Qwen2VLImageProcessor",
                "processor_class": "Qwen2VLProcessor",
                "patch_size": 14,
                "temporal_patch_size": 2,
                "merge_size": 2,
                "min_pixels": 56 * 56,
                "max_pixels": 112 * 112,
            }
        )
    )
    _write_tokenizer(folder)
    return folder


def _config() -> dict[str, Any]:
    demo = json.loads((DEMO / "config.json").read_text())
    return {
        "model_type": "qwen2_vl",
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "vocab_size": _VOCABULARY,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "tie_word_embeddings": False,
        "vision_start_token_id": _START,
        "vision_end_token_id": _END,
        "image_token_id": _IMAGE,
        "video_token_id": _VIDEO,
        "eos_token_id": demo["eos_token_id"],
        "vision_config": {
            "model_type": "qwen2_vl",
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 64,
            "num_heads": 4,
            "patch_size": 14,
            "mlp_ratio": 2,
            "in_channels": 3,
            "spatial_patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }


def _write_tokenizer(folder: Path) -> None:
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    names = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    for token_id, name in zip((_START, _END, _IMAGE, _VIDEO), names, strict=True):
        like = {**tokenizer["added_tokens"][0], "id": token_id, "content": name}
        tokenizer["added_tokens"].append(like)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((DEMO / "tokenizer_config.json").read_text())
    settings["chat_template"] = _TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
