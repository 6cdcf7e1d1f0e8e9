"""Bytes that computing takes beside weights and caches, at the peak of a long prompt.

The worker takes a prompt in chunks (worker.engines.pace), and the last chunk, which sees all tokens
before it, takes most. The counts of arrays are those that MLX's own peak showed for mlx-lm's models
in chunks of 256, 512 and 1,024 tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from gateway.memory.estimate.cache import Layer, first, layers_of, recurrence_of, window_of
from protocol.chunks import LARGEST_TOKENS, LARGEST_TOKENS_ON_CPU

# What MLX and the allocator keep of what was freed, whatever the model.
_BUFFERS_BYTES: Final = 4_000_000
# MLX's CPU back end writes the scores of attention out; the others compute them in place.
_WRITES_SCORES: Final = sys.platform == "linux"
_CHUNK_TOKENS: Final = LARGEST_TOKENS_ON_CPU if sys.platform == "linux" else LARGEST_TOKENS
# Scores, and scans within a step, are computed in single precision.
_SINGLE_BYTES: Final = 4
# mlx-lm's scan (ssm_attn) goes by steps. It holds so many matrices of a step's tokens by its tokens
# for each head, one more for each step of the chunk, and vectors of so many times the inner width.
_SCAN_STEP_TOKENS: Final = 256
_SCAN_MATRICES: Final = 5
_SCAN_VECTORS: Final = 15
_SCANNED: Final = ("mamba2", "falcon_h1", "nemotron_h", "granitemoehybrid", "plamo2")
# gpt_oss's sinks keep attention from the fused kernel.
_WITH_SINKS: Final = ("gpt_oss",)


def working_bytes(config: Mapping[str, Any], element_bytes: int, context_tokens: int) -> int:
    """For one sequence of so many tokens; `config` is that of the language model."""
    chunk = min(_CHUNK_TOKENS, context_tokens)
    layers = layers_of(config)
    scores = _scores_bytes(config, layers, chunk, context_tokens) if _WRITES_SCORES else 0
    scan = 0
    if config.get("model_type") in _SCANNED and (Layer.STATE in layers or Layer.BOTH in layers):
        scan = _scan_bytes(config, chunk)
    return (
        _BUFFERS_BYTES
        + _activation_bytes(config, element_bytes, chunk)
        + _convolved_bytes(config, layers, element_bytes, chunk)
        # One layer is computed after the other.
        + (scan + scores if Layer.BOTH in layers else max(scan, scores))
    )


def _scores_bytes(
    config: Mapping[str, Any], layers: list[Layer], chunk: int, context_tokens: int
) -> int:
    # Of the last layer a prompt needs what the cache keeps, and no scores.
    computed = layers[:-1]
    if Layer.FULL in computed or Layer.BOTH in computed:
        seen_tokens = context_tokens
    elif Layer.WINDOW in computed:
        seen_tokens = min(context_tokens, window_of(config) + chunk)
    else:
        return 0
    copies = 1
    if config.get("model_type") in _WITH_SINKS:
        copies = 3
    elif first(config, "kv_lora_rank"):
        # Those of the positions come as a mask.
        copies = 2
    heads = first(config, "num_attention_heads", "n_heads", "n_head")
    return copies * heads * chunk * seen_tokens * _SINGLE_BYTES


def _scan_bytes(config: Mapping[str, Any], chunk: int) -> int:
    recurrence = recurrence_of(config)
    step = min(_SCAN_STEP_TOKENS, chunk)
    matrices = recurrence.heads * step * step * (_SCAN_MATRICES + -(-chunk // step))
    return (matrices + _SCAN_VECTORS * recurrence.inner * chunk) * _SINGLE_BYTES


def _convolved_bytes(
    config: Mapping[str, Any], layers: list[Layer], element_bytes: int, chunk: int
) -> int:
    """A convolution's state is a slice of its whole input, which thereby stays until the next."""
    if "linear_num_value_heads" in config:
        return 0
    count = sum(each in (Layer.STATE, Layer.BOTH) for each in layers)
    return count * chunk * recurrence_of(config).channels * element_bytes


def _activation_bytes(config: Mapping[str, Any], element_bytes: int, chunk: int) -> int:
    width = first(config, "hidden_size", "d_model", "n_embd", "dim")
    inner = first(config, "intermediate_size")
    if routed := first(config, "moe_intermediate_size"):
        inner = routed * (first(config, "num_experts_per_tok") or 1)
    return chunk * (4 * width + 3 * inner) * element_bytes
