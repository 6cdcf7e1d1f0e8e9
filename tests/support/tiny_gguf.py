"""A GGUF file of a tiny Llama with random weights, for servers that read such files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import mlx.core as mx

_WIDTH: Final = 64
_HEADS: Final = 2
_LAYERS: Final = 2
_INNER: Final = 128
_TEMPLATE: Final = "{% for each in messages %}{{ each.content }}\n{% endfor %}"
# The kinds of tokens in llama.cpp's enum of them.
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


def write_tiny_gguf(path: Path) -> None:
    """Greedy answers never end by themselves: the token that ends them has the logit 0."""
    mx.random.seed(0)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{index:02X}>" for index in range(256))]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL] + [_BYTE] * 256
    words = ["\u2581", *(chr(number) for number in range(33, 127))]
    tokens += words
    kinds += [_NORMAL] * len(words)
    numbers = {
        "context_length": 2048,
        "embedding_length": _WIDTH,
        "block_count": _LAYERS,
        "feed_forward_length": _INNER,
        "attention.head_count": _HEADS,
        "attention.head_count_kv": _HEADS,
        "rope.dimension_count": _WIDTH // _HEADS,
    }
    metadata = {
        "general.architecture": "llama",
        **{f"llama.{name}": mx.array(number, mx.uint32) for name, number in numbers.items()},
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": -mx.arange(len(tokens), dtype=mx.float32),
        "tokenizer.ggml.token_type": mx.array(kinds, mx.int32),
        "tokenizer.ggml.unknown_token_id": mx.array(0, mx.uint32),
        "tokenizer.ggml.bos_token_id": mx.array(1, mx.uint32),
        "tokenizer.ggml.eos_token_id": mx.array(2, mx.uint32),
        "tokenizer.chat_template": _TEMPLATE,
    }
    mx.save_gguf(str(path), _weights(len(tokens)), metadata)


def _weights(tokens: int) -> dict[str, mx.array]:
    def made(rows: int, columns: int = _WIDTH) -> mx.array:
        return mx.random.normal((rows, columns)) * 0.3

    output = made(tokens)
    output[2] = 0
    weights = {"token_embd": made(tokens), "output_norm": mx.ones(_WIDTH), "output": output}
    for layer in range(_LAYERS):
        parts = {f"attn_{name}": made(_WIDTH) for name in ("q", "k", "v", "output")}
        parts |= {f"{name}_norm": mx.ones(_WIDTH) for name in ("attn", "ffn")}
        parts |= {"ffn_gate": made(_INNER), "ffn_up": made(_INNER)}
        parts["ffn_down"] = made(_WIDTH, _INNER)
        weights |= {f"blk.{layer}.{name}": part for name, part in parts.items()}
    return {f"{name}.weight": weight for name, weight in weights.items()}
