"""Configurations of every architecture of mlx-vlm that writes text token by token: as small as each
can be, and with a part that looks at pictures where one belongs to it.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from tests.support.architectures import TINY

_Config: TypeAlias = dict[str, Any]

# fmt: off
_TEXT: Final[_Config] = {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 96,
    "num_attention_heads": 4, "vocab_size": 704, "max_position_embeddings": 4096, "rms_norm_eps":
    1e-06, "layer_norm_eps": 1e-06, "layer_norm_epsilon": 1e-06, "layernorm_epsilon": 1e-06,
    "norm_eps": 1e-06, "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias":
    False, "mlp_bias": False, "use_bias": False, "use_conv_bias": True, "num_key_value_heads": 2,
    "head_dim": 16, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_shared_experts": 1, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "topk_method": "noaux_tc", "scoring_func": "sigmoid", "kv_lora_rank":
    40, "q_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 24,
    "index_head_dim": 24, "index_n_heads": 4, "index_topk": 64, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16,
    "mamba_d_conv": 4, "mamba_n_groups": 1, "mamba_proj_bias": False, "mamba_conv_bias": True,
    "logits_scaling": 1.0, "attention_multiplier": 1.0, "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0, "rope_scaling": None, "vocab_size_per_layer_input": 704,
    "sliding_window": 32, "full_attention_interval": 2, "n_layers": 4, "num_layers": 4,
    "partial_rotary_factor": 0.5}
_VISION: Final[_Config] = {"hidden_size": 32, "num_hidden_layers": 2, "depth": 2, "layers": 2,
    "num_layers": 2, "embed_dim": 32, "width": 32, "num_heads": 2, "heads": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64,
    "ffn_dim": 64, "mlp_dim": 64, "mlp_ratio": 2, "patch_size": 14, "image_size": 56, "img_size":
    56, "in_channels": 3, "num_channels": 3, "in_chans": 3, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "out_hidden_size": 64, "projection_dim": 64,
    "fullatt_block_indexes": [1], "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
    "text_hidden_size": 64, "spatial_patch_size": 14}
_PROJECTOR: Final = {"projector_config": {"projector_type": "linear", "input_dim": 32, "n_embed":
    64, "depth": 1}}
_NO_LATENTS: Final = {"kv_lora_rank": None, "q_lora_rank": None, "qk_rope_head_dim": 0,
    "qk_nope_head_dim": 0, "num_key_value_heads": 4}
_THREE_PARTS: Final = {"type": "default", "rope_type": "default", "mrope_section": [2, 3, 3],
    "rope_theta": 10000.0}
_SHORT_CONVOLUTIONS: Final = {"conv_L_cache": 3, "conv_bias": False, "block_dim": 64, "conv_dim":
    64, "conv_dim_out": 64, "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False, "block_ff_dim": 96, "num_heads": 4, "layer_types": ["conv",
    "full_attention", "conv", "full_attention"]}
_STATES: Final = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "conv_kernel":
    4, "n_groups": 1, "hybrid_override_pattern": "M*-M", "layers_block_type": ["mamba",
    "attention", "mlp", "mamba"], "time_step_limit": [0.0, 1000000000.0]}
_ALIGNER: Final = {"cls": "MlpProjector", "model_type": "projector", "params": {"depth": 1,
    "input_dim": 32, "n_embed": 64, "projector_type": "mlp_gelu"}}
_ALTERNATE: Final = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
# Tokens that stand for parts of pictures. No prompt has them.
_TOKENS: Final[_Config] = dict.fromkeys(("image_token_id", "image_token_index", "video_token_id",
    "vision_start_token_id", "vision_end_token_id", "image_start_token_id", "image_end_token_id",
    "video_start_token_id"), 5)


def _nested(kind: str, text: _Config | None = None, top: _Config | None = None, *,
            flat: bool = False) -> _Config:
    """The sizes of the text in a table of their own. With `flat` they are beside it too, where some
    architectures look.
    """
    inner = {**_TEXT, "model_type": kind, **(text or {})}
    outer = inner if flat else {"vocab_size": inner["vocab_size"], "hidden_size": 64}
    return {**outer, **_TOKENS, "text_config": inner, **(top or {})}


def _seeing(kind: str, eyes: str, text: _Config | None = None, vision: _Config | None = None,
            top: _Config | None = None, *, flat: bool = False) -> _Config:
    nested = _nested(kind, text, top, flat=flat)
    return {**nested, "vision_config": {**_VISION, "model_type": eyes, **(vision or {})}}


# The sizes that mlx-lm's architecture of the same name reads.
_AS_MLX_LMS: Final = ("afm7", "afmoe", "apertus", "baichuan_m1", "bailing_moe",
    "bailing_moe_linear", "bitnet", "cohere", "cohere2", "dbrx", "deepseek", "deepseek_v2",
    "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5", "ernie4_5_moe", "exaone", "exaone4",
    "exaone_moe", "falcon_h1", "gemma", "gemma2", "gemma3_text", "gemma4_text", "glm", "glm4",
    "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss",
    "granite", "granitemoe", "granitemoehybrid", "helium", "hunyuan", "hunyuan_v1_dense",
    "internlm2", "internlm3", "iquestloopcoder", "jamba", "kimi_linear", "laguna", "lfm2",
    "lfm2_moe", "llama", "llama4_text", "longcat_flash", "longcat_flash_ngram", "mamba", "mamba2",
    "mellum", "mimo", "mimo_v2_flash", "minicpm", "minicpm3", "minimax", "ministral3", "mixtral",
    "nanochat", "nemotron", "nemotron_h", "olmo2", "olmo3", "olmoe", "openelm", "phi", "phi3",
    "phi3small", "phimoe", "phixtral", "plamo", "plamo2", "qwen", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "qwen3_next", "recurrent_gemma", "rwkv7", "seed_oss", "smollm3", "solar_open",
    "spark2_5", "stablelm", "starcoder2", "step3p5", "telechat3", "youtu_llm")
TINY_VLM: Final[dict[str, _Config]] = {
    **{name: TINY[name] for name in _AS_MLX_LMS},
    "lille_130m": TINY["lille-130m"],
    "nemotron_nas": TINY["nemotron-nas"],
    "aya_vision": _seeing("aya_vision", "siglip_vision_model"),
    "cohere2_moe": _TEXT,
    "cohere_compass": _seeing("cohere_compass_text", "cohere_compass_vision"),
    "d1": _seeing("lfm2", "lfm2_vl", text={"rope_scaling": _THREE_PARTS, "layer_types": ["conv",
        "full_attention", "conv", "full_attention"], "conv_L_cache": 3, "conv_bias": False,
        "block_dim": 64, "conv_dim": 64, "conv_dim_out": 64, "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False, "block_ff_dim": 96,
        "num_heads": 4}),
    "deepseek_v4": {**_TEXT, "o_groups": 2, "o_lora_rank": 16, "head_dim": 32, "q_lora_rank": 32,
        "sliding_window": 32, "compress_ratios": [0, 4, 4, 128], "hc_mult": 2},
    "deepseek_v41": {**TINY["deepseek_v41"], "compress_ratios": [1, 4, 4, 8], "scoring_func":
        "sqrtsoftplus", "engram_layer_ids": [], "head_dim": 64, "index_head_dim": 32,
        "qk_rope_head_dim": 32, "o_groups": 2, "o_lora_rank": 32, "q_lora_rank": 32,
        "moe_intermediate_size": 32, "hidden_size": 64},
    "deepseek_vl_v2": _seeing("deepseek_v2", "vision", top=_PROJECTOR),
    "deepseekocr": _seeing("deepseek_v2", "vision", text=_NO_LATENTS, top=_PROJECTOR),
    "deepseekocr_2": _seeing("deepseek_v2", "vision", text=_NO_LATENTS, vision={"width": {}},
        top=_PROJECTOR),
    "dots_ocr": _seeing("dots_ocr", "dots_vit"),
    "ernie4_5_moe_vl": _seeing("ernie", "DFNRope_vision_transformer", text={"moe_num_experts": 4,
        "moe_layer_start_index": 1, "moe_layer_end_index": 3, "moe_intermediate_size": 32,
        "mrope_section": [3, 3, 2], "freq_allocation": 2, "rope_scaling": None}, flat=True),
    "falcon_ocr": _seeing("falcon_ocr", "falcon_ocr", flat=True),
    "falcon_perception": _seeing("falcon_perception", "falcon_perception", flat=True),
    "flint": _TEXT,
    "gemma3": _seeing("gemma3_text", "gemma3", text={"head_dim": 24, "sliding_window_pattern": 2},
        vision={"image_size": 224}, top={"mm_tokens_per_image": 256}),
    "gemma4": _seeing("gemma4_text", "gemma4_vision", text={"num_hidden_layers": 8, "head_dim":
        24, "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
        "full_attention", "sliding_attention", "full_attention", "sliding_attention",
        "full_attention"], "global_head_dim": 32, "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 100, "hidden_size_per_layer_input": 16}),
    "gemma4_unified": _seeing("gemma4_unified_text", "gemma4_unified_vision"),
    "glm4v": _seeing("glm4v_text", "glm4v", text={"rope_scaling": _THREE_PARTS, "rope_parameters":
        _THREE_PARTS}),
    "glm4v_moe": _seeing("glm4v_moe", "glm4v_moe", text={"use_qk_norm": True, "rope_scaling":
        _THREE_PARTS, "rope_parameters": _THREE_PARTS}),
    "glm5_next": _seeing("glm5_next_text", "glm5_next_vision", text={"num_key_value_heads": 4,
        "qk_rope_head_dim": 0, "num_hidden_layers": 4, "qk_nope_head_dim": 24, "qk_head_dim": 24,
        "hc_mult": 2, "linear_head_dim": 16, "linear_num_heads": 4, "index_kpool": 4, "head_dim":
        0}),
    "glm_ocr": {"text_config": {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size":
        96, "num_attention_heads": 4, "vocab_size": 704, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": False, "attention_bias": False,
        "num_key_value_heads": 2, "head_dim": 16, "rope_parameters": {"type": "default",
        "rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0}, "model_type": "glm_ocr_text"}, "vision_config":
        {"hidden_size": 32, "depth": 2, "num_heads": 2, "intermediate_size": 64, "patch_size": 14,
        "image_size": 56, "in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "out_hidden_size": 64, "model_type": "glm_ocr_vision"}},
    "got": _seeing("got", "got", flat=True),
    "granite4_vision": _seeing("granitemoehybrid", "siglip_vision_model", vision={"hidden_size":
        64}, top={"qformer_num_heads": 2}),
    "granite_vision": _seeing("granite", "siglip_vision_model"),
    "hrm_text": _TEXT,
    "hunyuan_vl": _seeing("hunyuan_vl", "hunyuan_vl", text={"rope_scaling": {"alpha": 1000.0,
        "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "type": "xdrope", "xdrope_section": [2, 2, 2, 2]}, "attention_head_dim": 16,
        "num_experts": 1, "org_vocab_size": 704}, flat=True),
    "hy_v4": _TEXT,
    "idefics2": _seeing("idefics2", "idefics2", top={"perceiver_config": {"model_type":
        "idefics2", "num_key_value_heads": 2, "resampler_depth": 1, "resampler_head_dim": 16,
        "resampler_n_heads": 2, "resampler_n_latents": 4}}),
    "idefics3": _seeing("idefics3", "idefics3"),
    "indic_ocr": _seeing("indic_ocr", "qwen3_5", vision={"deepstack_visual_indexes": []}),
    "inkling": _seeing("inkling", "inkling_vision", text={"swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2, "swa_head_dim": 16, "sliding_window_size": 32, "rel_extent":
        64, "dense_intermediate_size": 96}, flat=True),
    "internvl": _seeing("internvl", "internvl"),
    "internvl_chat": _seeing("internvl_chat", "siglip_vision_model"),
    "jina_vlm": _seeing("jina_vlm", "jina_vlm"),
    "k2_horizon": _TEXT,
    "kimi_k25": _seeing("deepseek_v3", "moonvit"),
    "kimi_k3": _seeing("kimi_linear", "moonvit3d", text={"linear_attn_config": {"num_heads": 4,
        "head_dim": 16, "short_conv_kernel_size": 4, "kda_layers": [1, 3], "full_attn_layers": [2,
        4], "gate_lower_bound": -5.0}, "num_experts_per_token": 2, "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 4.0, "attn_res_block_size": 2, "routed_expert_hidden_size":
        32}),
    "kimi_vl": _seeing("deepseek_v3", "moonvit"),
    "klear": _TEXT,
    "kolibri1": {**_TEXT, "layer_types": _ALTERNATE},
    "lfm2_vl": _seeing("lfm2", "lfm2_vl", text={"conv_L_cache": 3, "conv_bias": False,
        "block_dim": 64, "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False, "block_ff_dim": 96, "layer_types": ["conv",
        "full_attention", "conv", "full_attention"], "conv_dim": 64, "conv_dim_out": 64,
        "num_heads": 4}),
    "limite": {**_TEXT, "ve_gate_channels": 4, "attn_gate_channels": 16, "ve_dim": 16,
        "rope_n_pairs": 4, "global_layers": [1, 3], "num_hidden_layers": 4, "head_dim": 16},
    "llama4": _seeing("llama4_text", "llama4_vision_model", text={"head_dim": 24,
        "num_experts_per_tok": 1, "use_qk_norm": True, "attention_chunk_size": 256,
        "interleave_moe_layer_step": 2, "intermediate_size_mlp": 96}, vision={"initializer_range":
        0.02, "norm_eps": 1e-05, "pixel_shuffle_ratio": 0.5, "projector_dropout": 0.0,
        "projector_input_dim": 64, "projector_output_dim": 64, "rope_theta": 10000.0,
        "vision_feature_layer": -1, "vision_feature_select_strategy": "default",
        "vision_output_dim": 64, "multi_modal_projector_bias": False}),
    "llava": _seeing("llama", "siglip_vision_model"),
    "llava_bunny": _seeing("llava_bunny", "siglip_vision_model", top={"auto_map": {},
        "mm_hidden_size": 32}, flat=True),
    "llava_next": _seeing("llama", "clip_vision_model"),
    "llava_onevision": _seeing("qwen2", "siglip_vision_model"),
    "llmjpvl": _seeing("llama", "siglip_vision_model"),
    "locateanything": _seeing("qwen2", "moonvit", top={"tie_word_embeddings": False}),
    "longcat_flash_sparse": {**_TEXT, "index_topk": 64, "moe_topk": 2, "ffn_hidden_size": 64,
        "expert_ffn_hidden_size": 32, "num_layers": 2},
    "mage_vl": _seeing("qwen3", "mage_vl_vision", vision={"hidden_size": 64,
        "num_attention_heads": 2, "num_heads": 2, "head_dim": 32}),
    "mimo_v2": _seeing("mimo_v2", "mimovl", text={"hybrid_layer_pattern": [0, 1, 1, 1],
        "moe_layer_freq": [0, 1, 1, 1], "v_head_dim": 16, "head_dim": 16,
        "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 16,
        "swa_v_head_dim": 16, "sliding_window_size": 32, "swa_rope_theta": 10000.0}),
    "minicpmo": _seeing("minicpmo", "siglip_vision_model"),
    "minicpmv4_6": _seeing("minicpmv4_6", "minicpmv4_6_vision"),
    "minicpmv4_7": _seeing("minicpmv4_7", "minicpmv4_6_vision"),
    "minimax_m3": _nested("minimax_m3", text={"dense_intermediate_size": 96,
        "sparse_attention_config": {"sparse_num_index_heads": 2, "sparse_index_dim": 16,
        "sparse_block_size": 32, "sparse_topk_blocks": 4, "sparse_attention_freq": [0, 0, 1, 1]}},
        flat=True),
    "minimax_m3_vl": _seeing("minimax_m3", "clip_vision_model", text={"head_dim": 24,
        "dense_intermediate_size": 128, "sparse_attention_config": {"sparse_num_index_heads": 2,
        "sparse_index_dim": 16, "sparse_block_size": 32, "sparse_topk_blocks": 4,
        "sparse_attention_freq": [0, 0, 1, 1]}}),
    "mistral3": _seeing("llama", "pixtral"),
    "mistral_large3": _seeing("mistral_large3", "pixtral"),
    "mllama": _seeing("mllama", "mllama"),
    "molmo": _seeing("molmo", "molmo", text={"d_model": 64, "n_heads": 4, "n_kv_heads": 2,
        "n_layers": 4, "mlp_hidden_size": 192, "embedding_size": 704}),
    "molmo2": _seeing("molmo2", "molmo2", vision={"image_size": [56, 56]}, top={"adapter_config":
        {"vit_layers": [-1], "vision_feature_layer": [0, 1]}}),
    "molmo_point": _seeing("molmo2_text", "molmo2", top={"adapter_config": {"hidden_size": 32,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size":
        64, "text_hidden_size": 64, "vit_layers": [-1]}}),
    "moondream2": _seeing("moondream2", "moondream2_vision"),
    "moondream3": _seeing("moondream3", "moondream3_vision", text={"num_key_value_heads": 4,
        "rope_dim": 8, "moe_start_layer": 1}),
    "multi_modality": _seeing("llama", "vision", vision={"cls": "x", "params": {}},
        top={"projector_config": _ALIGNER, "aligner_config": _ALIGNER}, flat=True),
    "muse_glimmer": _seeing("muse_glimmer_text", "muse_glimmer_vision", text={"head_dim": 24}),
    "muse_spark": _seeing("muse_spark", "muse_spark", text={"head_dim": 24, "layer_types":
        _ALTERNATE, "num_shared_experts": 0, "rope_parameters": {"rope_theta": 10000.0,
        "rope_type": "default"}, "post_norm_eps": 1e-08, "layer_rope_theta": [10000.0, 0, 10000.0,
        0], "mlp_layer_types": ["sparse", "sparse", "sparse", "sparse"],
        "final_logit_softcapping": 20.0, "output_multiplier": 1.0, "moe_hidden_size": 32}),
    "nemotron_h_nano_omni": _seeing("nemotron_h_nano_omni", "radio", text=_STATES),
    "olmo": {**_TEXT, "d_model": 64, "n_heads": 4, "embedding_size": 704, "mlp_hidden_size": 128},
    "paddleocr_vl": _seeing("paddleocr_vl", "paddleocr_vl", text={"head_dim": 16, "use_bias":
        False, "rope_scaling": _THREE_PARTS, "rope_parameters": _THREE_PARTS}, flat=True),
    "paligemma": _seeing("gemma", "siglip_vision_model"),
    "phi4_siglip": {"text_config": {"hidden_size": 64, "num_hidden_layers": 4,
        "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 704, "rms_norm_eps":
        1e-06, "rope_theta": 10000.0, "num_key_value_heads": 2, "rope_scaling": None,
        "partial_rotary_factor": 0.5, "model_type": "phi4-siglip"}, "vision_config":
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size":
        64, "patch_size": 14, "image_size": 56, "num_channels": 3, "model_type":
        "siglip2_vision_model"}},
    "phi4mm": _seeing("phi4mm", "siglip2_vision_model", flat=True),
    "pixtral": _seeing("llama", "pixtral"),
    "plamo2vl": _seeing("plamo2", "siglip_vision_model", text={"hidden_size_per_head": 16,
        "mamba_d_state": 16, "mamba_num_heads": 4}, flat=True),
    "qwen2_5_vl": _seeing("qwen2_5_vl", "qwen2_5_vl", text={"rope_scaling": _THREE_PARTS},
        flat=True),
    "qwen2_vl": _seeing("qwen2", "qwen2_vl", text={"rope_scaling": _THREE_PARTS}, flat=True),
    "qwen3_5": _seeing("qwen3_5_text", "qwen3_5", text={"num_experts": 0},
        vision={"deepstack_visual_indexes": []}),
    "qwen3_5_moe": _seeing("qwen3_5_moe_text", "qwen3_5_moe", vision={"deepstack_visual_indexes":
        []}),
    "qwen3_5_moe_text": _TEXT,
    "qwen3_5_text": _TEXT,
    "qwen3_vl": _seeing("qwen3_vl_text", "qwen3_vl", text={"head_dim": 24}),
    "qwen3_vl_moe": _seeing("qwen3_vl_moe_text", "qwen3_vl_moe", text={"head_dim": 24}),
    "qwen4_exp": _seeing("qwen4_exp", "qwen4_exp", vision={"deepstack_visual_indexes": []},
        flat=True),
    "smolvlm": _seeing("smolvlm", "siglip_vision_model"),
    "step3p7": _seeing("step3p5", "perception_encoder", text={"num_attention_groups": 2,
        "num_key_value_heads": 2}, vision={"mlp_ratio": 2.0}, flat=True),
    "unlimited_ocr": _seeing("deepseek_v2", "vision", text=_NO_LATENTS, top=_PROJECTOR),
    "xing4_0": _TEXT,
    "youtu_vl": _seeing("youtu_vl", "siglip2_vision_model", flat=True),
    "z1t": _TEXT,
    "zaya1_vl": _seeing("zaya1_vl", "qwen2_5_vl", text={"ffn_hidden_size": 96, "num_experts": 4,
        "zaya_mlp_expansion": 16, "num_query_groups": 2}, flat=True),
}
# Folders of mlx-vlm without a shape here, and why.
WITHOUT_VLM_SHAPE: Final = {
    **dict.fromkeys(("bert", "colidefics3", "colqwen2_5", "embedding_gemma2", "gemma3_embedding",
        "lfm2_colbert", "lfm2_embedding", "lfm2_encoder", "llama_bidirec",
        "llama_nemotron_vl_embedding", "ministral3_embedding", "modernbert", "qwen3_embedding",
        "qwen3_vl_embedding", "siglip", "xlm_roberta",),
        "It makes vectors and writes no text."),
    **dict.fromkeys(("bonsai", "ernie_image", "flux2", "flux3", "ideogram4", "llada_image",
        "mage_flow", "ming_image", "minimax_h3", "moss_image", "qwen_image", "z_image",),
        "It makes pictures."),
    **dict.fromkeys(("clef", "d1_omni", "decider2", "gliner2_5", "laya",
        "openai_privacy_filter",),
        "It decides among given answers."),
    **dict.fromkeys(("diffusion_gemma", "llada2_moe", "nemotron_labs_diffusion",),
        "It writes many tokens at once, in any order."),
    **dict.fromkeys(("dinov2", "moge3", "pp_doclayout_v3", "rfdetr", "rt_detr_v2", "sam3",
        "sam3_1", "sam3d_body", "sam3d_objects", "sapiens2", "video_depth_anything", "yolo11",),
        "It finds or measures things in pictures."),
    **dict.fromkeys(("fastvlm", "gemma3n",),
        "Its part that looks at pictures is too large for a test, and can't be left out."),
    **dict.fromkeys(("florence2", "nemotron_parse",),
        "Its decoder reads an encoder's states of a picture."),
    **dict.fromkeys(("mistral4",),
        "It is a part of mistral3, which has the name of no model of its own."),
    **dict.fromkeys(("nemotron_voicechat", "qwen3_omni_moe",),
        "It speaks and listens."),
    **dict.fromkeys(("phi3_v",),
        "A part that looks at pictures is inside its language model, of one size."),
    **dict.fromkeys(("prism_hadamard_qwen35",),
        "It needs the manifest of a packed model."),
}
# fmt: on
