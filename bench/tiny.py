"""A model so small that what stands in front of the engine decides.

On a CPU even the demo model's arithmetic takes most of the time, and every server looks alike.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

_LAYERS: Final = 2
_WIDTH: Final = 64


def build_tiny_model(tokenizer_from: Path, folder: Path) -> None:
    """Write a model of random weights, with the tokenizer of another, for mlx-lm to load."""
    # MLX only where a model is built: the process that measures stays without it otherwise.
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models import qwen3

    shutil.copytree(tokenizer_from, folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {
        "num_hidden_layers": _LAYERS,
        "hidden_size": _WIDTH,
        "intermediate_size": 2 * _WIDTH,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": _WIDTH // 2,
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    mx.random.seed(1)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(config))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
