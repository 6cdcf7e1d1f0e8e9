"""Random-weight models of mlx-vlm's architectures, with the demo's tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_vlm.utils import get_model_and_args, update_module_configs

from tests.support.shapes import DEMO

_TABLES: Final = ("vocab_size", "num_vocab", "embedding_size", "vocab_size_per_layer_input")
_PARTS: Final = ("text", "vision", "perceiver", "projector", "audio")
_TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# Parts beside the language model whose sizes can't be chosen may be larger. They are left out, as
# in conversions for texts alone.
_MOST_BYTES: Final = 32 << 20
# mlx-vlm adds these to all names in files of some architectures.
_PREFIXES: Final = {
    "gpt2": "language_model.model.",
    "gpt_neox": "language_model.model.",
    "minicpm": "language_model.",
    "recurrent_gemma": "language_model.",
}


def write_vlm(folder: Path, config: dict[str, Any]) -> Path:
    """Save a model that mlx-vlm can load. The weights are the same on every run."""
    demo = json.loads((DEMO / "config.json").read_text())
    config = {**_with_rows(config, demo["vocab_size"]), "eos_token_id": demo["eos_token_id"]}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"do_sample": false}')
    for name in _TOKENIZER:
        if (DEMO / name).exists():
            shutil.copy(DEMO / name, folder / name)
    mx.random.seed(7)
    weights = dict(_weights(_new(config), config["model_type"]))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    mx.clear_cache()
    return folder


def _with_rows(config: dict[str, Any], rows: int) -> dict[str, Any]:
    """The configuration with `rows` rows in each table of tokens."""
    filled = {**config, **dict.fromkeys(set(_TABLES).intersection(config), rows)}
    if "text_config" in config:
        filled["text_config"] = _with_rows(config["text_config"], rows)
    return filled


def _new(config: dict[str, Any]) -> Any:
    # mlx-vlm changes the tables that it gets.
    full: dict[str, Any] = {"text_config": {}, "vision_config": {}, "audio_config": {}}
    full |= json.loads(json.dumps(config))
    architecture, _ = get_model_and_args(full)
    arguments = architecture.ModelConfig.from_dict(full)
    return architecture.Model(update_module_configs(arguments, architecture, full, list(_PARTS)))


def _weights(model: Any, kind: str) -> Iterator[tuple[str, mx.array]]:
    language = getattr(model, "language_model", model)
    written = {id(array) for _, array in tree_flatten(language.parameters())}
    parameters = tree_flatten(model.parameters())
    others = sum(array.nbytes for _, array in parameters if id(array) not in written)
    for name, array in parameters:
        # mlx-vlm does without a module, and not without a list of modules or a bare array.
        part = getattr(model, name.partition(".")[0], None)
        if id(array) not in written and others > _MOST_BYTES and isinstance(part, nn.Module):
            continue
        saved = _random(array)
        # GPT-2's files have these matrices the other way round.
        yield (
            name.removeprefix(_PREFIXES.get(kind, "")),
            saved.T if kind == "gpt2" and ".c_" in name and saved.ndim == 2 else saved,
        )


def _random(array: mx.array) -> mx.array:
    if not mx.issubdtype(array.dtype, mx.floating):
        return array
    # Some matrices begin as zeros, with which all tokens are as likely.
    if array.ndim > 1 and not array.any():
        return mx.random.normal(array.shape) * 0.1
    # Outputs of small random weights depend on the last token alone; larger ones on all tokens.
    return array.astype(mx.float32) * 2
