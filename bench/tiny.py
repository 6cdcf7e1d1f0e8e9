"""Models of random weights, of five sizes.

The tiny one is so small that what stands in front of the engine decides: on a CPU even the demo
model's arithmetic takes most of the time, and every server looks alike. The half-billion one is for
a GPU: 0.9 GB of bfloat16. The one of two billion, 4.8 GB, is to be read.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

_TINY: Final = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}
_AGENT: Final = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 32768,
}
_SMALL: Final = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 32768,
}
_HALF_BILLION: Final = {
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32768,
}
_TWO_BILLION: Final = {
    "num_hidden_layers": 24,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32768,
}


def build_tiny_model(tokenizer_from: Path, folder: Path) -> None:
    """Write it, with the tokenizer of another, for mlx-lm to load."""
    _build(tokenizer_from, folder, _TINY, half=False)


def build_agent_model(tokenizer_from: Path, folder: Path) -> None:
    """Write one whose long prompts take two cores seconds, with the tokenizer of another, for
    mlx-lm to load.
    """
    _build(tokenizer_from, folder, _AGENT, half=False)


def build_small_model(tokenizer_from: Path, folder: Path) -> None:
    """Write one that two cores compute 16,000 tokens with in seconds, with the tokenizer of
    another, for mlx-lm to load.
    """
    _build(tokenizer_from, folder, _SMALL, half=False)


def build_half_billion_model(tokenizer_from: Path, folder: Path) -> None:
    """Write it, with the tokenizer of another, for mlx-lm to load."""
    _build(tokenizer_from, folder, _HALF_BILLION, half=True)


def build_two_billion_model(tokenizer_from: Path, folder: Path) -> None:
    """Write it, with the tokenizer of another, for mlx-lm to load."""
    _build(tokenizer_from, folder, _TWO_BILLION, half=True)


def _build(tokenizer_from: Path, folder: Path, sizes: dict[str, int], *, half: bool) -> None:
    # MLX only where a model is built: the process that measures stays without it otherwise.
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_map
    from mlx_lm.models import qwen3

    shutil.copytree(tokenizer_from, folder)
    config = json.loads((folder / "config.json").read_text("utf-8")) | sizes
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    mx.random.seed(1)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(config))
    parameters = model.parameters()
    # Never chosen: what isn't plain text by itself would keep an answer's first text back.
    embedding = parameters["model"]["embed_tokens"]["weight"]
    plain = mx.array(_plain_text(tokenizer_from, config["vocab_size"]))
    parameters["model"]["embed_tokens"]["weight"] = mx.where(plain[:, None], embedding, 0)
    if half:
        parameters = tree_map(lambda array: array.astype(mx.bfloat16), parameters)
    weights = dict(tree_flatten(parameters))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})


def _plain_text(folder: Path, vocabulary: int) -> list[bool]:
    """Of each token whether it is printable text. The embedding is the head as well: one of zeros
    is hardly ever the largest logit.
    """
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [tokenizer.decode([each]) for each in range(vocabulary)]
    return [bool(each) and each.isascii() and each.isprintable() for each in texts]
