"""Rows of many architectures have the tokens that mlx-lm's own batch gives them: with and without
guesses, in groups by their lengths where the architecture takes them, and with windows, latents,
mixtures and states beside attention.
"""

from __future__ import annotations

import importlib
import random
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map
from mlx_lm.generate import BatchGenerator

from worker.engines.batched_engine import BatchedEngine
from worker.engines.room import CacheRoom, CacheSizes
from worker.engines.sequence import Sequence
from worker.mlx_lm.batching_trial import takes_groups

TOKENS = 60
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"] * 2}
LATENTS = {
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
    "num_key_value_heads": 4,
}
COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "vocab_size": 300,
    "max_position_embeddings": 2048,
    "rope_theta": 10_000.0,
    "sliding_window": 16,
    "tie_word_embeddings": True,
    "use_qk_norm": True,
    "attention_bias": False,
    "mlp_bias": False,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "cohere2": {"sliding_window_pattern": 2, "logit_scale": 1.0, "layer_norm_bias": False},
    "deepseek_v3": LATENTS,
    "falcon_h1": {},
    "gemma3_text": {"sliding_window_pattern": 2, "query_pre_attn_scalar": 16},
    "glm4_moe_lite": LATENTS,
    "gpt_oss": {
        **WINDOWS,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
    },
    "internlm2": {},
    "llama": WINDOWS,
    "olmo3": WINDOWS,
    "phi": {},
    "phi3": {},
    "plamo3": {},
    "qwen2": {},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "starcoder2": {},
}
QUICK = {"deepseek_v3", "gemma3_text", "gpt_oss"}
# Their attention takes keys apart.
WITHOUT_GROUPS = {"deepseek_v3", "glm4_moe_lite"}
# So large that a few tokens of padding cost as much as a group.
TOKEN_BYTES = 1_000_000


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(architecture, marks=() if architecture in QUICK else pytest.mark.slow)
        for architecture in ARCHITECTURES
    ],
)
def test_rows_have_mlx_lms_tokens(name: str) -> None:
    module = importlib.import_module(f"mlx_lm.models.{name}")
    config = {**COMMON, "model_type": name, **ARCHITECTURES[name]}
    model = module.Model(module.ModelArgs.from_dict(config))
    mx.random.seed(1)
    model.update(tree_map(_random, model.parameters()))
    chance = random.Random(1)
    prompts = [[chance.randrange(5, 290) for _ in range(count)] for count in (3, 40, 17, 1, 29, 90)]
    theirs = _theirs(model, prompts)
    assert takes_groups(model) == (name not in WITHOUT_GROUPS)
    assert _alone_tokens(model, prompts, None) == theirs
    predicted = [[*their[:20], 7, *their[20:]] for their in theirs]
    assert _alone_tokens(model, prompts, predicted) == theirs


def _random(array: mx.array) -> mx.array:
    if array.dtype not in {mx.float32, mx.bfloat16, mx.float16}:
        return array
    array = array.astype(mx.float32)
    return mx.random.normal(array.shape) * 0.3 if array.ndim > 1 else array


def _theirs(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    generator = BatchGenerator(model)
    rows = generator.insert(
        [list(prompt) for prompt in prompts], max_tokens=[TOKENS] * len(prompts)
    )
    made: dict[int, list[int]] = {row: [] for row in rows}
    while any(len(values) < TOKENS for values in made.values()):
        for response in generator.next()[1]:
            made[response.uid].append(response.token)
    generator.close()
    return list(made.values())


def _alone_tokens(
    model: Any, prompts: list[list[int]], predicted: list[list[int]] | None
) -> list[list[int]]:
    room = CacheRoom(CacheSizes(TOKEN_BYTES, 0, 1.0))
    engine = BatchedEngine(model, (), 8, room, guesses=predicted is not None)
    # As on a machine where a wide step costs hardly more.
    engine.step_costs.ratio = lambda *_: 1.0  # type: ignore[method-assign]
    made: dict[str, list[int]] = {}
    right = 0
    for index, prompt in enumerate(prompts):
        prediction = () if predicted is None else tuple(predicted[index])
        sequence = Sequence(
            f"{index}", prompt, TOKENS, None, ignore_eos=True, prediction=prediction
        )
        engine.add(sequence)
        made[sequence.request_id] = []
    while engine.active + engine.waiting:
        for token in engine.step():
            made[token.request_id].append(token.token_id)
            right += token.guessed
    engine.close()
    assert predicted is None or right > TOKENS
    return list(made.values())
