"""Bytes that an encoder computes with: it keeps no caches, and takes texts whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.memory.estimate.cache import CacheShape, first
from gateway.system.memory import BackEnd
from protocol.chunks import LARGEST_TOKENS, LARGEST_TOKENS_ON_CPU

NO_CACHES: Final = CacheShape(
    full_token_bytes=0, window_token_bytes=0, window_tokens=0, state_bytes=0
)
_BUFFERS_BYTES: Final = 4_000_000
# mlx-embeddings writes attention's scores out, sums and normalizes them in arrays of their own, and
# XLM-R does so in single precision.
_SCORES: Final = 3
_SINGLE_BYTES: Final = 4
# States are pooled in single precision.
_WIDTHS: Final = 8
_INNER: Final = 3


def encoder_bytes(
    config: Mapping[str, Any], element_bytes: int, tokens: int, system: BackEnd
) -> int:
    """Beside the weights, for a batch whose longest text has so many tokens."""
    largest = LARGEST_TOKENS_ON_CPU if system is BackEnd.CPU else LARGEST_TOKENS
    batch = max(largest, tokens)
    heads = first(config, "num_attention_heads", "n_heads", "n_head")
    width = first(config, "hidden_size", "d_model", "n_embd", "dim")
    inner = first(config, "intermediate_size")
    scores = _SCORES * heads * batch * tokens * _SINGLE_BYTES
    states = _WIDTHS * width * _SINGLE_BYTES + _INNER * inner * element_bytes
    return _BUFFERS_BYTES + scores + batch * states
