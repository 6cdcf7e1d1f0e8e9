"""Working space: the bytes of a step beside weights and caches, at the peak of a long prompt.

The worker computes prompts in chunks (worker.engines.pace). In one step all rows together get no
more tokens than one chunk has. The last chunk takes most memory, since it sees all tokens before
it. On the CPU the numbers of arrays were found from MLX's own peak, for mlx-lm's models in chunks
of 256, 512 and 1,024 tokens. On GPUs they depend on which attention runs in one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.memory.caches import (
    DECOMPRESSED,
    SequenceCache,
    recurrence_of,
    window_token_bytes_of,
)
from gateway.memory.layers import Layer, first, heads_of, layers_of, width_of, window_of
from gateway.system.memory import BackEnd
from protocol.life import LARGEST_CHUNK_TOKENS, LARGEST_CHUNK_TOKENS_ON_CPU
from protocol.requests import MOST_PIXELS, MOST_SEEN_PIXELS

# Freed buffers that MLX and the allocator keep for any model.
_BUFFERS_BYTES: Final = 4_000_000
# Scans within a step are computed in single precision.
_SINGLE_BYTES: Final = 4
# The head sizes with which attention over a chunk runs in one kernel on Metal, with any mask (MLX
# 0.32, metal/scaled_dot_product_attention.cpp). Newer versions of MLX have more sizes. Kernels for
# 192 and 256 would be slower, and run only with masks that batches don't have.
_FUSED_ON_METAL: Final = (64, 80, 128)
# mlx-lm's scan (ssm_attn) goes over a chunk in steps. For each head it holds matrices of a step's
# tokens by the step's tokens: `_SCAN_MATRICES`, and one more for each step of the chunk. For each
# token of the chunk it holds `_SCAN_VECTORS` vectors of the inner width.
_SCAN_STEP_TOKENS: Final = 256
_SCAN_MATRICES: Final = 5
_SCAN_VECTORS: Final = 15
_SCANNED: Final = ("mamba2", "falcon_h1", "nemotron_h", "granitemoehybrid", "plamo2")
# Where scores are written out, the sinks of these models are put beside the scores.
_WITH_SINKS: Final = ("gpt_oss",)


def working_bytes(
    config: Mapping[str, Any],
    element_bytes: int,
    context_tokens: int,
    system: BackEnd,
    *,
    quantized: bool = False,
) -> int:
    """Bytes that the last chunk of `context_tokens` takes. `config` is the configuration of the
    language model. With `quantized` the model's caches are quantized.
    """
    largest = LARGEST_CHUNK_TOKENS_ON_CPU if system is BackEnd.CPU else LARGEST_CHUNK_TOKENS
    chunk = min(largest, context_tokens)
    layers = layers_of(config)
    # mlx-lm's attention over quantized caches (models/base.py) is no kernel of MLX.
    written = quantized or not _in_one_kernel(config, system)
    attention = _attention_bytes(config, element_bytes, chunk, context_tokens, written=written)
    scan = 0
    if config.get("model_type") in _SCANNED and (Layer.STATE in layers or Layer.BOTH in layers):
        scan = _scan_bytes(config, chunk)
    return (
        _BUFFERS_BYTES
        + _activation_bytes(config, element_bytes, chunk)
        + _convolved_bytes(config, layers, element_bytes, chunk)
        + _beyond_windows_bytes(config, layers, element_bytes, chunk, context_tokens)
        # One layer is computed after the other.
        + (scan + attention if Layer.BOTH in layers else max(scan, attention))
    )


def _attention_bytes(
    config: Mapping[str, Any],
    element_bytes: int,
    chunk: int,
    context_tokens: int,
    *,
    written: bool,
) -> int:
    """Bytes of the scores of each token of a chunk with each token that it sees, if the scores are
    `written` to memory, and of the keys and values that are computed from a latent.
    """
    # In a prompt the last layer computes no scores, but only the entries of its cache.
    computed = layers_of(config)[:-1]
    if Layer.FULL in computed or Layer.BOTH in computed:
        seen_tokens = context_tokens
    elif Layer.WINDOW in computed:
        seen_tokens = min(context_tokens, window_of(config) + chunk)
    else:
        return 0
    heads = heads_of(config)
    copies = int(written)
    if written and config.get("model_type") in _WITH_SINKS:
        copies = 3
    latent = 0
    if first(config, "kv_lora_rank") and config.get("model_type") not in DECOMPRESSED:
        # The scores of positions are an array of their own, the mask, whatever the kernel.
        copies += 1
        nope, value = first(config, "qk_nope_head_dim"), first(config, "v_head_dim")
        latent = heads * (nope + value) * seen_tokens * element_bytes
    return copies * heads * chunk * seen_tokens * element_bytes + latent


def _in_one_kernel(config: Mapping[str, Any], system: BackEnd) -> bool:
    """Whether attention over a chunk runs in one kernel, and so needs no memory for its scores."""
    heads = heads_of(config)
    hidden = width_of(config)
    size = first(config, "qk_nope_head_dim", "head_dim") or (hidden // heads if heads else 0)
    if config.get("model_type") in DECOMPRESSED:
        size += first(config, "qk_rope_head_dim")
    value = first(config, "v_head_dim") or size
    match system:
        case BackEnd.METAL:
            return size == value and size in _FUSED_ON_METAL
        case BackEnd.CUDA | BackEnd.CPU:
            # On CUDA cuDNN could, but workers turn its attention off (`worker.__main__`).
            return False


def _scan_bytes(config: Mapping[str, Any], chunk: int) -> int:
    recurrence = recurrence_of(config)
    step = min(_SCAN_STEP_TOKENS, chunk)
    matrices = recurrence.heads * step * step * (_SCAN_MATRICES + -(-chunk // step))
    return (matrices + _SCAN_VECTORS * recurrence.inner * chunk) * _SINGLE_BYTES


def _beyond_windows_bytes(
    config: Mapping[str, Any],
    layers: list[Layer],
    element_bytes: int,
    chunk: int,
    context_tokens: int,
) -> int:
    """Bytes that layers with a window keep beyond the window: the last chunk. The window is cut
    back with the first token of the answer (mlx-lm's RotatingKVCache).
    """
    if Layer.WINDOW not in layers:
        return 0
    beyond_tokens = max(0, min(chunk, context_tokens - window_of(config)))
    return beyond_tokens * window_token_bytes_of(config, element_bytes)


def _convolved_bytes(
    config: Mapping[str, Any], layers: list[Layer], element_bytes: int, chunk: int
) -> int:
    """Bytes of the convolutions' inputs. A convolution's state is a slice of its whole input, which
    therefore stays in memory until the next state.
    """
    recurrence = recurrence_of(config)
    if recurrence.copied:
        return 0
    count = sum(layer in (Layer.STATE, Layer.BOTH) for layer in layers)
    return count * chunk * recurrence.channels * element_bytes


def _activation_bytes(config: Mapping[str, Any], element_bytes: int, chunk: int) -> int:
    width = width_of(config)
    inner = first(config, "intermediate_size")
    experts = first(config, "num_experts_per_tok") or 1
    if routed := first(config, "moe_intermediate_size"):
        inner = routed * experts
    elif first(config, "num_local_experts"):
        inner *= experts
    return chunk * (4 * width + 3 * inner) * element_bytes


NO_CACHES: Final = SequenceCache(
    full_token_bytes=0, window_token_bytes=0, window_tokens=0, state_bytes=0
)
# mlx-embeddings has arrays of their own for the scores of attention, for their sums and for their
# normalized values; for XLM-R in single precision.
_SCORES: Final = 3
# The masks of mlx-vlm's encoders, which are as large as the scores of so many heads.
_MASKS: Final = 4
# States are pooled in single precision.
_WIDTHS: Final = 8
_INNER: Final = 3


def encoder_bytes(
    config: Mapping[str, Any],
    element_bytes: int,
    tokens: int,
    system: BackEnd,
    *,
    by_mlx_vlm: bool = False,
) -> int:
    """Bytes of an encoder beside its weights, for a batch whose longest text has `tokens`.
    `by_mlx_vlm`: its layers are mlx-vlm's, and not mlx-embeddings'.
    """
    largest = LARGEST_CHUNK_TOKENS_ON_CPU if system is BackEnd.CPU else LARGEST_CHUNK_TOKENS
    batch = max(largest, tokens)
    heads = heads_of(config)
    width = width_of(config)
    inner = first(config, "intermediate_size", "block_ff_dim")
    scores = _SCORES * heads * batch * tokens * _SINGLE_BYTES
    if by_mlx_vlm:
        written = 0 if _in_one_kernel(config, system) else heads
        scores = (written + _MASKS) * batch * tokens * element_bytes
    states = _WIDTHS * width * _SINGLE_BYTES + _INNER * inner * element_bytes
    return _BUFFERS_BYTES + scores + batch * states


# A byte each for red, green and blue; twice, since a picture is copied to turn it or lay it on
# white.
_DECODED_BYTES: Final = MOST_PIXELS * 3 * 2
# Three colours in single precision, in a processor's array and in MLX's copy of it. This is for two
# requests: one is looked at, and the next is being prepared.
_ARRAY_BYTES: Final = 3 * 4 * 2 * 2
_PATCH: Final = 14


def picture_bytes(config: Mapping[str, Any], element_bytes: int) -> int:
    """Bytes that a request with one picture takes, of the largest size that a model gets."""
    vision = config.get("vision_config")
    seen = vision if isinstance(vision, dict) else {}
    patch = first(seen, "patch_size", "spatial_patch_size") or _PATCH
    width = first(seen, "embed_dim", "hidden_size", "width")
    inner = first(seen, "intermediate_size") or 4 * width
    patches = MOST_SEEN_PIXELS // patch**2
    layers = patches * (4 * width + 3 * inner) * element_bytes
    return _DECODED_BYTES + MOST_SEEN_PIXELS * _ARRAY_BYTES + layers
