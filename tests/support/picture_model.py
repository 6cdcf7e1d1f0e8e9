"""Small random models that look at pictures, with the demo's tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from tests.support.shapes import DEMO

# Behind the demo's own.
_FIRST: Final = 704
_VOCABULARY: Final = 708
_TEMPLATE: Final = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content -%}
{%- if part.type == "image" -%}PICTURE
{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""


@dataclass(frozen=True)
class _Family:
    """`tokens` are the names of tokens by the names of the processor's attributes. `picture` is
    written by the template in the place of a picture.
    """

    tokens: dict[str, str]
    picture: str
    config: Callable[[], dict[str, Any]]
    processor: dict[str, Any]
    file_name: Callable[[str], str] = str


def picture_model(
    folder: Path, kind: str = "qwen2_vl", *, processor: dict[str, Any] | None = None, **sizes: Any
) -> Path:
    """1.4 MB; a picture takes some 16 tokens. `sizes` are further entries of the configuration, and
    those of a table in it are added to the table's. `processor` has further entries of the
    processor's. Needs mlx-vlm.
    """
    from mlx_vlm.utils import get_model_and_args

    family = FAMILIES[kind]
    config = family.config()
    for name, size in sizes.items():
        config[name] = {**config[name], **size} if isinstance(size, dict) else size
    folder.mkdir(parents=True)
    architecture, _ = get_model_and_args(json.loads(json.dumps(config)))
    arguments = architecture.ModelConfig.from_dict(json.loads(json.dumps(config)))
    for name, kinds in (("text_config", "TextConfig"), ("vision_config", "VisionConfig")):
        # Qwen2-VL's text has its sizes in the outer table.
        own = config.get(name) or config
        setattr(arguments, name, getattr(architecture, kinds).from_dict(dict(own)))
    mx.random.seed(7)
    model = architecture.Model(arguments)
    # Small random weights make answers that depend on the last token alone.
    weights = tree_map(lambda array: array.astype(mx.float32) * 2, model.parameters())
    names = {family.file_name(name): array for name, array in tree_flatten(weights)}
    mx.save_safetensors(str(folder / "model.safetensors"), names, {"format": "mlx"})
    mx.clear_cache()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"do_sample": false}')
    _write_processor(folder, {**family.processor, **(processor or {})})
    _write_tokenizer(folder, family)
    return folder


def _ends() -> Any:
    return json.loads((DEMO / "config.json").read_text())["eos_token_id"]


def _qwen2_vl() -> dict[str, Any]:
    """Positions in pictures have three parts, and a picture may have any size."""
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
        "vision_start_token_id": _FIRST,
        "vision_end_token_id": _FIRST + 1,
        "image_token_id": _FIRST + 2,
        "video_token_id": _FIRST + 3,
        "eos_token_id": _ends(),
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


def _gemma3() -> dict[str, Any]:
    """Each picture has sixteen tokens, with a position each, and half of the layers have a window
    that is shorter than most prompts.
    """
    return {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "hidden_size": 64,
        "vocab_size": _VOCABULARY,
        "image_token_index": _FIRST + 2,
        "boi_token_index": _FIRST,
        "eoi_token_index": _FIRST + 1,
        "eos_token_id": _ends(),
        "mm_tokens_per_image": 16,
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "vocab_size": _VOCABULARY,
            "sliding_window": 48,
            "sliding_window_pattern": 2,
            "mm_tokens_per_image": 16,
            "max_position_embeddings": 4096,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "patch_size": 14,
            "image_size": 112,
        },
    }


def _qwen3_5() -> dict[str, Any]:
    """Positions in pictures have three parts, and half of the layers have a recurrent state."""
    return {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "vision_start_token_id": _FIRST,
        "vision_end_token_id": _FIRST + 1,
        "image_token_id": _FIRST + 2,
        "image_token_index": _FIRST + 2,
        "video_token_id": _FIRST + 3,
        "eos_token_id": _ends(),
        "text_config": {
            "model_type": "qwen3_5_text",
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "rms_norm_eps": 1e-6,
            "vocab_size": _VOCABULARY,
            "max_position_embeddings": 4096,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_conv_kernel_dim": 4,
            "full_attention_interval": 2,
            "rope_parameters": {
                "type": "default",
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 3, 3],
                "partial_rotary_factor": 1.0,
                "mrope_interleaved": True,
            },
        },
        "vision_config": {
            "model_type": "qwen3_5",
            "depth": 2,
            "hidden_size": 32,
            "out_hidden_size": 64,
            "intermediate_size": 64,
            "num_heads": 4,
            "patch_size": 14,
            "in_channels": 3,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [],
        },
    }


def _old_name(name: str) -> str:
    """The name of a weight in Qwen2-VL's files."""
    return (
        name.replace("language_model.model", "model")
        .replace("language_model.lm_head", "lm_head")
        .replace("vision_tower", "visual")
    )


_QWENS_TOKENS: Final = {
    "vision_start": "<|vision_start|>",
    "vision_end": "<|vision_end|>",
    "image": "<|image_pad|>",
    "video": "<|video_pad|>",
}
_QWENS_PICTURE: Final = "<|vision_start|><|image_pad|><|vision_end|>"
FAMILIES: Final = {
    "qwen2_vl": _Family(
        _QWENS_TOKENS,
        _QWENS_PICTURE,
        _qwen2_vl,
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2VLProcessor",
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "min_pixels": 56 * 56,
            "max_pixels": 112 * 112,
        },
        _old_name,
    ),
    "qwen3_5": _Family(
        _QWENS_TOKENS,
        _QWENS_PICTURE,
        _qwen3_5,
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen3VLProcessor",
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "min_pixels": 56 * 56,
            "max_pixels": 112 * 112,
        },
    ),
    "gemma3": _Family(
        {
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
        "<start_of_image>",
        _gemma3,
        {
            "image_processor_type": "Gemma3ImageProcessor",
            "processor_class": "Gemma3Processor",
            "size": {"height": 112, "width": 112},
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "image_seq_length": 16,
        },
    ),
}


def _write_tokenizer(folder: Path, family: _Family) -> None:
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    for token_id, name in enumerate(family.tokens.values(), start=_FIRST):
        like = {**tokenizer["added_tokens"][0], "id": token_id, "content": name}
        tokenizer["added_tokens"].append(like)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((DEMO / "tokenizer_config.json").read_text())
    settings["chat_template"] = _TEMPLATE.replace("PICTURE", family.picture)
    settings["extra_special_tokens"] = {
        name: token for name, token in family.tokens.items() if name.endswith("_token")
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _write_processor(folder: Path, processor: dict[str, Any]) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    names = ("processor_class", "image_seq_length")
    own = {name: processor[name] for name in names if name in processor}
    (folder / "processor_config.json").write_text(json.dumps(own))
