"""Configurations of every architecture of mlx-lm: as small as each can be, in the forms that files
have, and of the sizes that were published.

Sizes differ where a wrong rule could otherwise give the right number. Keys that an architecture
doesn't read are shared where they mislead nobody.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

_Config: TypeAlias = dict[str, Any]

# fmt: off
_SIZES: Final[_Config] = {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 96,
    "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6, "layer_norm_eps": 1e-6, "layer_norm_epsilon": 1e-6,
    "layernorm_epsilon": 1e-6, "norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings":
    False, "attention_bias": False, "mlp_bias": False, "use_bias": False, "use_conv_bias": True}
_GROUPED: Final[_Config] = {**_SIZES, "num_key_value_heads": 2}
_HEADS: Final[_Config] = {**_GROUPED, "head_dim": 24}
_LATENT: Final[_Config] = {"kv_lora_rank": 40, "q_lora_rank": 32, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 24}
_INDEX: Final[_Config] = {"index_head_dim": 24, "index_n_heads": 4, "index_topk": 64}
_EXPERTS: Final[_Config] = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_shared_experts": 1, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
_DELTA: Final[_Config] = {"linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 24, "linear_conv_kernel_dim": 4}
_MAMBA: Final[_Config] = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16,
    "mamba_d_conv": 4, "mamba_n_groups": 1, "mamba_proj_bias": False, "mamba_conv_bias": True}
_CONVOLUTIONS: Final[_Config] = {"conv_L_cache": 3, "conv_bias": False, "block_dim": 64,
    "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False,
    "block_ff_dim": 96, "layer_types": ["conv", "full_attention"] * 2}
_SCALES: Final[_Config] = {"logits_scaling": 1.0, "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0, "residual_multiplier": 1.0}
_WINDOWS: Final[_Config] = {"sliding_window": 32, "layer_types": ["sliding_attention",
    "full_attention"] * 2}
_ROPE: Final[_Config] = {"rope_theta": 1e4, "rope_type": "default"}
_SCALED_ROPE: Final[_Config] = {"rope_theta": 1e4, "rope_type": "default",
    "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 1024}
_DELTA_HEADS: Final[_Config] = {"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4,
    "kda_layers": [1, 3], "full_attn_layers": [2, 4]}
_GEMMA4: Final[_Config] = {**_HEADS, "num_hidden_layers": 8, "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 4, "global_head_dim": 32,
    "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 100, "hidden_size_per_layer_input": 16}
_NEMOTRON_H: Final[_Config] = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
    "max_position_embeddings": 4096, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 24, "attention_bias": False, "mamba_num_heads": 4, "mamba_head_dim": 16,
    "mamba_proj_bias": False, "ssm_state_size": 16, "conv_kernel": 4, "n_groups": 1,
    "mlp_bias": False, "layer_norm_epsilon": 1e-6, "use_bias": False, "use_conv_bias": True}
_LONGCAT: Final[_Config] = {**_LATENT, "attention_method": "MLA", "zero_expert_type": "identity",
    "hidden_size": 64, "ffn_hidden_size": 64, "moe_topk": 2, "expert_ffn_hidden_size": 32,
    "n_routed_experts": 4, "zero_expert_num": 1, "num_layers": 4, "vocab_size": 100,
    "max_position_embeddings": 4096, "num_attention_heads": 4, "routed_scaling_factor": 1.0,
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True, "attention_bias": False}


def _block(**attention: Any) -> _Config:
    ffn = {"no_op": False, "replace_with_linear": False, "ffn_mult": 2.0}
    return {"attention": attention, "ffn": ffn}


TINY: Final[dict[str, _Config]] = {
    "afm7": {"vocab_size": 100, "num_layers": 4, "num_heads": 4, "hidden_dim": 64,
        "num_kv_heads": 2, "num_kv_reuse_layers": 2},
    "afmoe": {**_HEADS, **_WINDOWS, **_EXPERTS},
    "apertus": {**_GROUPED, "post_norm": True, "qk_norm": True},
    "baichuan_m1": {**_GROUPED, "sliding_window": 32, "sliding_window_layers": [0, 2],
        "conv_window": 2, "num_swa_attention_heads": 8, "num_swa_key_value_heads": 4},
    "bailing_hybrid": {**_HEADS, **_LATENT, **_EXPERTS, "group_norm_size": 1,
        "layer_group_size": 2},
    "bailing_moe": {**_GROUPED, **_EXPERTS},
    "bailing_moe_linear": {**_GROUPED, **_EXPERTS, "layer_group_size": 2, "group_norm_size":
        1},
    "bailing_moe_v3": {**_SIZES, **_LATENT, **_EXPERTS, "head_dim": 24, "layer_group_size": 2,
        "short_conv_kernel_size": 4},
    "bitnet": _GROUPED,
    "cohere": _GROUPED,
    "cohere2": {**_GROUPED, "sliding_window": 32, "head_dim": 16},
    "dbrx": {"vocab_size": 100, "d_model": 64, "n_layers": 4, "n_heads": 4, "ffn_config":
        {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2}, "attn_config":
        {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4}},
    "deepseek": {**_GROUPED, "moe_intermediate_size": 32},
    "deepseek_v2": {**_GROUPED, **_LATENT, **_EXPERTS, "rope_scaling": {"type": "yarn",
        "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 1024, "beta_fast": 32, "beta_slow": 1}},
    "deepseek_v3": {**_GROUPED, **_LATENT, **_EXPERTS},
    "deepseek_v32": {**_GROUPED, **_LATENT, **_INDEX, **_EXPERTS},
    "deepseek_v41": {**_SIZES, **_INDEX, **_EXPERTS, "q_lora_rank": 32, "qk_rope_head_dim": 8,
        "sliding_window": 32, "head_dim": 32, "o_groups": 2, "o_lora_rank": 16,
        "compress_ratios": [0, 4, 4, 8], "kv_source_layer_ids": [0, 1, 2, 3],
        "index_source_layer_ids": [0, 1, 2, 3], "hc_mult": 2},
    "dots1": {**_GROUPED, **_EXPERTS},
    "ernie4_5": _HEADS,
    "ernie4_5_moe": {**_GROUPED, **_EXPERTS, "moe_num_experts": 4},
    "exaone": {"hidden_size": 64, "num_layers": 4, "intermediate_size": 96,
        "num_attention_heads": 4, "vocab_size": 100, "rope_theta": 1e4,
        "layer_norm_epsilon": 1e-6, "num_key_value_heads": 2},
    "exaone4": {**_HEADS, "rope_scaling": None, "sliding_window": 32,
        "sliding_window_pattern": "LLLG",
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    "exaone_moe": {**_HEADS, **_WINDOWS, **_EXPERTS, "is_moe_layer": [False, True, True,
        True]},
    "falcon_h1": {**_HEADS, **_MAMBA, "mamba_d_ssm": 64},
    "gear": {**_HEADS, "sliding_window": 32, "layer_types": ["conv_mixer",
        "sliding_attention", "full_attention", "conv_mixer"], "conv_L_cache": 3},
    "gemma": _HEADS,
    "gemma2": _HEADS,
    "gemma3": {"vocab_size": 100, "text_config": {**_HEADS, "sliding_window": 32,
        "model_type": "gemma3_text", "sliding_window_pattern": 2}},
    "gemma3_text": {**_HEADS, "sliding_window": 32, "sliding_window_pattern": 2},
    "gemma3n": {"text_config": {**_HEADS, **_WINDOWS, "model_type": "gemma3n_text",
        "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 100, "rope_local_base_freq":
        1e4, "final_logit_softcapping": 30.0, "activation_sparsity_pattern": [0.5] * 4,
        "hidden_size_per_layer_input": 16, "altup_num_inputs": 2, "altup_coef_clip": 1.0,
        "altup_correct_scale": True, "altup_active_idx": 0, "laurel_rank": 8}},
    "gemma4": {"vocab_size": 100, "text_config": {**_GEMMA4, "model_type": "gemma4_text"}},
    "gemma4_text": _GEMMA4,
    "glm": _HEADS,
    "glm4": {**_HEADS, "partial_rotary_factor": 0.5},
    "glm4_moe": {**_HEADS, **_EXPERTS, "rope_scaling": None, "use_qk_norm": True,
        "partial_rotary_factor": 0.5},
    "glm4_moe_lite": {**_GROUPED, **_LATENT, **_EXPERTS},
    "glm_moe_dsa": {**_GROUPED, **_LATENT, **_INDEX, **_EXPERTS, "moe_layer_freq": 1,
        "rope_parameters": _ROPE},
    "gpt2": {"n_ctx": 4096, "n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 4096,
        "layer_norm_epsilon": 1e-6, "vocab_size": 100},
    "gpt_bigcode": {"n_embd": 64, "n_layer": 4, "n_inner": 128, "n_head": 4, "n_positions":
        4096, "layer_norm_epsilon": 1e-6, "vocab_size": 100},
    "gpt_neox": {**_SIZES, "rotary_emb_base": 10000, "rotary_pct": 0.5},
    "gpt_oss": {**_HEADS, **_WINDOWS, **_EXPERTS},
    "gptj": {"n_embd": 64, "vocab_size": 100, "n_positions": 4096, "n_head": 4, "n_layer": 4,
        "rotary_dim": 8},
    "granite": {**_GROUPED, **_SCALES},
    "granitemoe": {**_GROUPED, **_SCALES, **_EXPERTS},
    "granitemoehybrid": {**_GROUPED, **_MAMBA, **_SCALES, **_EXPERTS, "mamba_d_head": 32,
        "layer_types": ["mamba", "attention"] * 2},
    "helium": {**_GROUPED, "head_dim": 16},
    "hunyuan": {**_GROUPED, "moe_topk": 2, "use_qk_norm": True, "num_shared_expert": 1,
        "use_mixed_mlp_moe": True, "use_cla": True, "rope_scaling": {"alpha": 1000.0,
        "factor": 1.0, "type": "dynamic"}, "num_experts": 2, "cla_share_factor": 2},
    "hunyuan_v1_dense": _GROUPED,
    "internlm2": _SIZES,
    "internlm3": _SIZES,
    "iquestloopcoder": _HEADS,
    "jamba": {**_GROUPED, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2,
        "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_offset": 1,
        "attn_layer_period": 2, "expert_layer_offset": 1, "expert_layer_period": 2},
    "kimi_k25": {"text_config": {**_GROUPED, **_LATENT, **_EXPERTS}},
    "kimi_k3": {"text_config": {**_GROUPED, **_LATENT, **_EXPERTS, "linear_attn_config":
        {**_DELTA_HEADS, "gate_lower_bound": -5.0}, "num_experts_per_token": 2,
        "activation_situ_beta": 4.0, "activation_situ_linear_beta": 4.0,
        "attn_res_block_size": 2, "routed_expert_hidden_size": 32}},
    "kimi_linear": {**_HEADS, **_LATENT, **_EXPERTS, "linear_attn_config": _DELTA_HEADS,
        "model_max_length": 4096},
    "kimi_vl": {"text_config": {**_GROUPED, **_LATENT, **_EXPERTS}},
    "Klear": {**_GROUPED, **_EXPERTS},
    "laguna": {**_HEADS, **_WINDOWS, **_EXPERTS},
    "lfm2": {**_GROUPED, **_CONVOLUTIONS},
    "lfm2-vl": {"text_config": {**_GROUPED, **_CONVOLUTIONS, "model_type": "lfm2"}},
    "lfm2_moe": {**_GROUPED, **_CONVOLUTIONS, **_EXPERTS, "use_expert_bias": True,
        "num_dense_layers": 1},
    "lille-130m": {"layer_norm_eps": 1e-6, "n_embd": 64, "n_head": 4, "n_layer": 4,
        "rope_theta": 1e4, "vocab_size": 100, "block_size": 4096, "n_kv_heads": 2},
    "llama": _SIZES,
    "llama4": {"text_config": {**_HEADS, **_EXPERTS, "model_type": "llama4_text",
        "rope_scaling": None, "use_qk_norm": True, "attention_chunk_size": 256,
        "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 96}},
    "llama4_text": {**_HEADS, "use_qk_norm": True, "intermediate_size_mlp": 128,
        "no_rope_layers": [1, 1, 1, 0]},
    "longcat_flash": _LONGCAT,
    "longcat_flash_ngram": {**_LONGCAT, "ngram_vocab_size_ratio": 2, "emb_neighbor_num": 4,
        "emb_split_num": 2},
    "mamba": {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "state_size": 16,
        "num_hidden_layers": 4, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True,
        "time_step_rank": 8},
    "mamba2": {"num_heads": 4, "head_dim": 32, "vocab_size": 100, "hidden_size": 64,
        "intermediate_size": 96, "state_size": 16, "num_hidden_layers": 4,
        "layer_norm_epsilon": 1e-6, "conv_kernel": 4, "n_groups": 1, "use_bias": False,
        "use_conv_bias": True, "tie_word_embeddings": False, "time_step_limit": [0.001, 0.1],
        "time_step_rank": 8, "max_position_embeddings": 4096},
    "mellum": {**_HEADS, **_WINDOWS, **_EXPERTS, "rope_parameters": {"full_attention": _ROPE,
        "sliding_attention": _ROPE}},
    "mimo": _GROUPED,
    "mimo_v2_flash": {**_GROUPED, **_EXPERTS, "v_head_dim": 24, "partial_rotary_factor": 0.5,
        "hybrid_layer_pattern": [0, 1, 1, 1], "moe_layer_freq": [0, 1, 1, 1],
        "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
        "sliding_window_size": 32, "swa_rope_theta": 1e4, "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4, "head_dim": 32, "swa_head_dim": 32, "swa_v_head_dim":
        16},
    "minicpm": {**_GROUPED, "dim_model_base": 64, "scale_depth": 1.0, "scale_emb": 1.0},
    "minicpm3": {**_GROUPED, **_LATENT, "v_head_dim": None, "dim_model_base": 64,
        "scale_depth": 1.0, "scale_emb": 1.0,
        "rope_scaling": {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4,
        "original_max_position_embeddings": 4096}},
    "minimax": {**_GROUPED, **_EXPERTS, "shared_intermediate_size": 64, "rotary_dim": 8},
    "minimax_m3_vl": {"text_config": {**_HEADS, **_EXPERTS, "dense_intermediate_size": 128,
        "sparse_attention_config": {"sparse_num_index_heads": 2, "sparse_index_dim": 16,
        "sparse_block_size": 32, "sparse_topk_blocks": 4, "sparse_attention_freq": [0, 0, 1,
        1]}}},
    "ministral3": {**_GROUPED, **_WINDOWS, "rope_parameters": _SCALED_ROPE},
    "mistral3": {"text_config": {**_GROUPED, "model_type": "llama"}},
    "mistral4": {**_GROUPED, **_LATENT, **_EXPERTS, "rope_parameters": _SCALED_ROPE},
    "mixtral": {**_GROUPED, **_EXPERTS},
    "muse_glimmer": {**_HEADS, "sliding_window": 32},
    "muse_spark": {"text_config": {**_HEADS, **_WINDOWS, **_EXPERTS, "rope_parameters": _ROPE,
        "post_norm_eps": 1e-8, "layer_rope_theta": [1e4, 0] * 2, "mlp_layer_types":
        ["sparse"] * 4, "num_shared_experts": 0, "final_logit_softcapping": 20.0,
        "output_multiplier": 1.0, "moe_hidden_size": 32}},
    "nanbeige": {**_GROUPED, "num_loops": 2},
    "nanochat": _GROUPED,
    "nemotron": {**_GROUPED, "hidden_act": "relu2"},
    "nemotron-nas": {**_SIZES, "block_configs": [_block(n_heads_in_group=4), _block(no_op=True),
        _block(replace_with_linear=True), _block(n_heads_in_group=2)]},
    "nemotron_h": {**_NEMOTRON_H, "layers_block_type": ["mamba", "attention", "mlp", "mamba"]},
    "olmo2": _SIZES,
    "olmo3": {**_SIZES, "sliding_window": 32},
    "olmo_hybrid": {**_GROUPED, **_DELTA, "linear_allow_neg_eigval": True, "layer_types":
        ["linear_attention", "full_attention"] * 2},
    "olmoe": {**_SIZES, "num_experts": 4, "num_experts_per_tok": 2},
    "openelm": {"head_dim": 24, "vocab_size": 100, "num_transformer_layers": 2, "model_dim":
        64, "ffn_dim_divisor": 32, "num_query_heads": [4, 8], "num_kv_heads": [2, 4],
        "ffn_multipliers": [1.0, 2.0]},
    "phi": _GROUPED,
    "phi3": _SIZES,
    "phi3small": {**_GROUPED, "dense_attention_every_n_layers": 2, "ff_intermediate_size":
        128, "gegelu_limit": 20.0, "blocksparse_block_size": 64},
    "phimoe": {**_GROUPED, **_EXPERTS, "rope_scaling": {"long_factor": [1.0] * 8,
        "short_factor": [1.0] * 8, "long_mscale": 1.0, "short_mscale": 1.0}},
    "phixtral": {"num_experts_per_tok": 2, "num_local_experts": 4, "num_vocab": 100,
        "model_dim": 64, "num_heads": 4, "num_layers": 4, "rotary_dim": 8},
    "pixtral": {"text_config": {**_GROUPED, "model_type": "llama"}},
    "plamo": {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 96,
        "rms_norm_eps": 1e-6, "vocab_size": 100, "num_attention_heads": 16, "n_shared_head":
        8},
    "plamo2": {**_GROUPED, "mamba_d_state": 16, "mamba_num_heads": 4, "hidden_size_per_head":
        16, "mamba_d_conv": 4, "mamba_step": 2},
    "plamo3": {**_HEADS, "window_size": 32, "sliding_window": 32, "sliding_window_pattern":
        2},
    "qwen": {**_SIZES, "kv_channels": 16},
    "qwen2": _GROUPED,
    "qwen2_moe": {**_SIZES, **_EXPERTS},
    "qwen2_vl": {"text_config": {**_GROUPED, "model_type": "qwen2"}},
    "qwen3": _HEADS,
    "qwen3_5": {"text_config": {**_GROUPED, **_DELTA, **_EXPERTS, "model_type":
        "qwen3_5_text", "num_experts": 0, "head_dim": 16, "full_attention_interval": 2}},
    "qwen3_5_moe": {"text_config": {**_GROUPED, **_DELTA, **_EXPERTS, "model_type":
        "qwen3_5_moe_text", "head_dim": 16, "full_attention_interval": 2}},
    "qwen3_moe": {**_HEADS, **_EXPERTS},
    "qwen3_next": {**_HEADS, **_DELTA, **_EXPERTS, "partial_rotary_factor": 0.5},
    "qwen3_vl": {"text_config": {**_HEADS, "model_type": "qwen3_vl_text"}},
    "qwen3_vl_moe": {"text_config": {**_HEADS, **_EXPERTS, "model_type":
        "qwen3_vl_moe_text"}},
    "recurrent_gemma": {**_SIZES, "conv1d_width": 4, "logits_soft_cap": 30.0,
        "attention_window_size": 32, "block_types": ["recurrent", "recurrent", "attention"],
        "num_key_value_heads": 1},
    "rwkv7": {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "norm_eps": 1e-6,
        "num_hidden_layers": 4, "a_low_rank_dim": 8, "v_low_rank_dim": 8, "gate_low_rank_dim":
        8, "decay_low_rank_dim": 8, "head_dim": 16},
    "seed_oss": _HEADS,
    "smollm3": _SIZES,
    "solar_open": {**_HEADS, **_EXPERTS, "partial_rotary_factor": 0.5},
    "spark2_5": {**_HEADS, "sliding_window": 32, "rope_parameters": {"full_attention": _ROPE,
        "sliding_attention": _ROPE}},
    "stablelm": {**_GROUPED, "partial_rotary_factor": 0.5, "use_qkv_bias": False},
    "starcoder2": _GROUPED,
    "step3p5": {**_SIZES, **_WINDOWS, **_EXPERTS, "num_attention_groups": 2, "head_dim": 24,
        "moe_num_experts": 4, "moe_top_k": 2, "share_expert_dim": 32,
        "attention_other_setting": {"num_attention_heads": 8, "num_attention_groups": 4}},
    "talkie": {**_SIZES, "head_dim": 24},
    "telechat3": _GROUPED,
    "youtu_llm": {**_GROUPED, **_LATENT},
}

# The same architectures as other files describe them: name, architecture, configuration.
FORMS: Final[dict[str, tuple[str, _Config]]] = {
    "nemotron_h by letters": ("nemotron_h", {**_NEMOTRON_H, "hybrid_override_pattern": "M*-M"}),
    "gemma4 with heads of its own for all tokens": ("gemma4_text", {**_GEMMA4,
        "attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0}),
    "gemma4 with heads that it doesn't use": ("gemma4_text", {**_GEMMA4,
        "num_global_key_value_heads": 1}),
    "gemma2 with windows that mlx-lm hasn't": ("gemma2", {**_HEADS, **_WINDOWS}),
    "qwen3 with windows that mlx-lm hasn't": ("qwen3", {**_HEADS, **_WINDOWS}),
    "qwen2_vl with windows that mlx-lm hasn't": ("qwen2_vl", {"text_config": {**_GROUPED,
        **_WINDOWS, "model_type": "qwen2_vl_text"}}),
    "gemma3 by what its files leave out": ("gemma3", {"text_config": {
        "model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 6,
        "intermediate_size": 96, "sliding_window": 128}}),
    "llama with windows": ("llama", {**_GROUPED, **_WINDOWS}),
    "llama with windows of no size": ("llama", {**_GROUPED, "sliding_window": None,
        "layer_types": ["full_attention"] * 4}),
    "exaone4 by letters": ("exaone4", {**TINY["exaone4"], "layer_types": None}),
    "exaone4 without windows": ("exaone4", {**_HEADS, "rope_scaling": None,
        "sliding_window": None, "sliding_window_pattern": None}),
    "hunyuan without shared keys": ("hunyuan", {**TINY["hunyuan"], "use_cla": False}),
    "minimax_m3_vl with flat keys": ("minimax_m3_vl", {"text_config": {**_HEADS, **_INDEX,
        **_EXPERTS, "dense_intermediate_size": 128, "index_block_size": 32,
        "index_topk_blocks": 4, "layer_types": ["full_attention", "sparse"] * 2}}),
    "lfm2 by indices": ("lfm2", {**_GROUPED, **_CONVOLUTIONS, "layer_types": None,
        "full_attn_idxs": [1]}),
    "jamba by kinds": ("jamba", {**TINY["jamba"],
        "layers_block_type": ["mamba", "mamba", "attention", "attention"]}),
    "plamo2 without mamba": ("plamo2", {**TINY["plamo2"], "mamba_enabled": False}),
    "recurrent_gemma with an underscore": ("recurrent_gemma", {**TINY["recurrent_gemma"],
        "block_types": None, "_block_types": ["recurrent", "attention"]}),
    "gpt_bigcode with all heads": ("gpt_bigcode", {**TINY["gpt_bigcode"], "multi_query": False}),
    "step3p5 without kinds": ("step3p5", {**TINY["step3p5"], "layer_types": None}),
    "bailing_moe_linear with a remainder": ("bailing_moe_linear", {**TINY["bailing_moe_linear"],
        "num_hidden_layers": 5}),
    "qwen3_5 without text_config": ("qwen3_5", {**_GROUPED, **_DELTA, "head_dim": 16}),
    "deepseek_v41 with shared entries": ("deepseek_v41", {**TINY["deepseek_v41"],
        "compress_ratios": [0, 4, 4, 4], "kv_source_layer_ids": [1],
        "index_source_layer_ids": [1, 3]}),
}

_ENTRIES: Final[_Config] = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 131072,
    "max_position_embeddings": 131072, "rope_theta": 1e7, "rms_norm_eps": 1e-6,
    "attention_bias": False, "routed_scaling_factor": 2.5}
_FIVE_WINDOWS: Final = ["sliding_attention"] * 5 + ["full_attention"]
_NANO_LETTERS: Final = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
_NANO_KINDS: Final = {"M": "mamba", "E": "moe", "*": "attention"}
_MIMO_FULL: Final = (0, 5, 11, 17, 23, 29, 35, 41, 47)
# Of the sizes that were published; what caches don't depend on may differ.
PUBLISHED: Final[dict[str, tuple[str, _Config]]] = {
    "Gemma 4 31B": ("gemma4", {"text_config": {"model_type": "gemma4_text", "hidden_size": 5376,
        "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32,
        "num_key_value_heads": 16, "num_global_key_value_heads": 4, "head_dim": 256,
        "global_head_dim": 512, "attention_k_eq_v": True, "sliding_window": 1024,
        "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
        "layer_types": _FIVE_WINDOWS * 10}}),
    "Gemma 4 E4B": ("gemma4", {"text_config": {"model_type": "gemma4_text", "hidden_size": 2560,
        "intermediate_size": 10240, "num_hidden_layers": 42, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512, "sliding_window": 512,
        "num_kv_shared_layers": 18, "hidden_size_per_layer_input": 256,
        "use_double_wide_mlp": False, "layer_types": _FIVE_WINDOWS * 7}}),
    "MiMo V2 Flash": ("mimo_v2_flash", {**TINY["mimo_v2_flash"], "hidden_size": 4096,
        "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4,
        "head_dim": 192, "v_head_dim": 128, "swa_num_attention_heads": 64,
        "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128,
        "sliding_window": 128, "sliding_window_size": 128, "partial_rotary_factor": 0.334,
        "moe_layer_freq": [0] + [1] * 47,
        "hybrid_layer_pattern": [int(index not in _MIMO_FULL) for index in range(48)]}),
    "Nemotron 3 Nano": ("nemotron_h", {**_NEMOTRON_H, "hidden_size": 2688,
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
        "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1,
        "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "layers_block_type": [_NANO_KINDS[letter] for letter in _NANO_LETTERS]}),
    "DeepSeek V3.2": ("deepseek_v32", {**_EXPERTS, **_ENTRIES, "hidden_size": 7168,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
        "intermediate_size": 18432, "index_head_dim": 128, "index_n_heads": 64,
        "index_topk": 2048}),
    "LongCat Flash": ("longcat_flash", {**_LONGCAT, **_ENTRIES, "hidden_size": 6144,
        "num_layers": 28, "num_attention_heads": 64, "ffn_hidden_size": 12288}),
}

# Architectures that mlx-lm builds from their names alone, as all their sizes have defaults.
COMPLETE: Final = ("bailing_moe_v3", "cohere", "cohere2", "deepseek", "deepseek_v3",
    "deepseek_v32", "falcon_h1", "gemma3_text", "gemma4_text", "glm4_moe_lite", "gpt_oss", "gptj",
    "laguna", "mixtral", "muse_glimmer", "nanochat", "phi", "phimoe", "phixtral", "plamo2",
    "plamo3", "qwen", "talkie", "youtu_llm")
# Architectures that MLX computes with kernels for Metal alone.
NEED_METAL: Final = ("bitnet", "muse_spark")
# Files of mlx-lm without a shape here, and why.
WITHOUT_SHAPE: Final = {
    "olmo": "Importing it ends the process unless the package ai2-olmo is installed.",
    "prism_hadamard_qwen35": "It needs the manifest of a packed model; its caches are qwen3_5's.",
}
# fmt: on
