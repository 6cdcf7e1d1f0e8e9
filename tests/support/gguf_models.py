"""A model as a folder of MLX, made of a GGUF file: Llama's and Qwen2's kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
from gguf import GGUFReader, ReaderTensor, TokenType, dequantize
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

_CONFIG: Final = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_NAMES: Final = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
# Of Qwen2's tokenizer: what is merged within.
_QWEN2_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_mlx(gguf: Path, folder: Path) -> None:
    """In float32. The folder may not exist."""
    reader = GGUFReader(gguf)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    kind = metadata["general.architecture"]
    config = {name: metadata[f"{kind}.{key}"] for name, key in _CONFIG.items()}
    tokens = metadata["tokenizer.ggml.tokens"]
    config |= {
        "model_type": kind,
        "vocab_size": len(tokens),
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        # Both tie them. If a file has an output beside the embeddings, it has more bits for it.
        "tie_word_embeddings": True,
    }
    weights = dict(_named(tensor, config) for tensor in reader.tensors)
    if (output := weights.pop("output.weight", None)) is not None:
        weights["model.embed_tokens.weight"] = output
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    _tokenizer(metadata).save(str(folder / "tokenizer.json"))
    settings = {
        # Of a class of its own transformers would make the rest anew.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[config["eos_token_id"]],
        "bos_token": tokens[config["bos_token_id"]],
        "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
        "model_max_length": config["max_position_embeddings"],
    }
    (folder / "chat_template.jinja").write_text(metadata["tokenizer.chat_template"], "utf-8")
    for name, content in (
        ("config.json", config),
        ("generation_config.json", {"eos_token_id": config["eos_token_id"], "do_sample": False}),
        ("tokenizer_config.json", settings),
    ):
        (folder / name).write_text(json.dumps(content), "utf-8")


def _named(tensor: ReaderTensor, config: dict[str, Any]) -> tuple[str, mx.array]:
    """With mlx-lm's name."""
    array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    name, kind = tensor.name.rsplit(".", 1)
    if name == "token_embd":
        name = "model.embed_tokens"
    elif name == "output_norm":
        name = "model.norm"
    elif name.startswith("blk."):
        _, layer, part = name.split(".")
        name = f"model.layers.{layer}.{_NAMES[part]}"
        if config["model_type"] == "llama" and part in ("attn_q", "attn_k"):
            heads = config[f"num_{'attention' if part == 'attn_q' else 'key_value'}_heads"]
            array = _halves(array, heads)
    return f"{name}.{kind}", mx.array(array)


def _halves(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head as mlx-lm has them, the first of all pairs before the second: in a GGUF of a
    Llama the two of a pair stand side by side.
    """
    rows = array.shape[0] // heads
    pairs = array.reshape(heads, rows // 2, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def _tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata["tokenizer.ggml.token_type"]
    vocabulary = {
        token: index for index, token in enumerate(tokens) if types[index] != TokenType.UNUSED
    }
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    match metadata["tokenizer.ggml.pre"]:
        case "smollm":
            words = [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        case "qwen2":
            tokenizer.normalizer = normalizers.NFC()
            words = [
                pre_tokenizers.Split(Regex(_QWEN2_WORDS), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        case other:
            raise ValueError(f"{other}: its words aren't known here")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    tokenizer.decoder = decoders.ByteLevel()
    for kind, add in (
        (TokenType.CONTROL, tokenizer.add_special_tokens),
        (TokenType.USER_DEFINED, tokenizer.add_tokens),
    ):
        added = [token for token, type_ in zip(tokens, types, strict=True) if type_ == kind]
        add([AddedToken(token, normalized=False) for token in added])
    return tokenizer
