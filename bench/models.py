"""The model of a measurement: the options that choose it, models of random weights, and copies that
never end an answer.

With the tiny model the work around the engine takes most of the time, and servers differ in that
work. On a CPU the demo model's arithmetic would take most of it, and all servers would look alike.
The model of half a billion weights is for a GPU, and has 0.9 GB of bfloat16. The model of two
billion, with 4.8 GB, shows how long it takes to read weights.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from bench.results import FailedError
from gateway.config.model_folders import DEMO_FOLDER

_LONG: Final = {"max_position_embeddings": 32768}
TINY: Final = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}
# With this model two cores compute 16,000 tokens in seconds.
SMALL: Final = TINY | _LONG | {"num_attention_heads": 1}
# With this model two cores compute the long prompts of agents in seconds.
AGENT: Final = TINY | _LONG | {"hidden_size": 128, "intermediate_size": 256}
HALF_BILLION: Final = _LONG | {
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
TWO_BILLION: Final = _LONG | {
    "num_hidden_layers": 24,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
# An empty list stands for "none"; a missing key would be filled in from the tokenizer's class.
_REPLACED: Final[dict[str, dict[str, object]]] = {
    "config.json": {"eos_token_id": []},
    "generation_config.json": {"eos_token_id": []},
    "tokenizer_config.json": {"eos_token": None, "chat_template": None},
    "special_tokens_map.json": {"eos_token": None},
}
_TEMPLATE: Final = "chat_template.*"


def random_qwen3(sizes: Mapping[str, int], *, quantized: bool = True) -> Any:
    """A model of these sizes in memory, with random weights of 4 bits or in single precision."""
    # As in `build_model`.
    import mlx.core as mx
    from mlx import nn
    from mlx_lm.models import qwen3

    arguments = {
        **sizes,
        "model_type": "qwen3",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    }
    mx.random.seed(1)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(arguments))
    if quantized:
        model.set_dtype(mx.bfloat16)
        nn.quantize(model, group_size=64, bits=4)
    mx.eval(model.parameters())
    return model


def model_parser(
    module: str,
    description: str | None,
    *,
    rounds: int,
    model: Path | None = DEMO_FOLDER,
    shown: str = "the demo model",
    for_gpu: bool = False,
) -> argparse.ArgumentParser:
    """A parser of `--rounds` and `--model`; `shown` describes the default model. With `for_gpu`
    there is `--half-billion`, too.
    """
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    made.add_argument("--rounds", type=int, default=rounds, metavar="N")
    made.add_argument(
        "--model", type=Path, default=model, metavar="FOLDER", help=f"what to serve [{shown}]"
    )
    if for_gpu:
        made.add_argument(
            "--half-billion",
            action="store_true",
            help="a model of half a billion weights, for a GPU",
        )
    return made


def endless_model(parsed: argparse.Namespace, folder: Path, sizes: dict[str, int]) -> Path:
    """A copy in `folder` that never ends an answer: of the model that the options name, or else of
    a model of random weights and these sizes.

    Raises:
        FailedError: the options name no model folder.
    """
    source = parsed.model or built_model(parsed, folder / "source", sizes)
    copy_without_end(source, folder / "model")
    return folder / "model"


def built_model(
    parsed: argparse.Namespace,
    folder: Path,
    sizes: dict[str, int],
    tokenizer_from: Path = DEMO_FOLDER,
) -> Path:
    """A model of random weights in `folder`: of these sizes, or of half a billion weights if the
    options say so.
    """
    half_billion = getattr(parsed, "half_billion", False)
    build_model(folder, HALF_BILLION if half_billion else sizes, tokenizer_from)
    return folder


def build_model(folder: Path, sizes: Mapping[str, Any], tokenizer_from: Path = DEMO_FOLDER) -> None:
    """Write a model of random weights, with the tokenizer of another, for mlx-lm to load. The large
    ones are bfloat16.
    """
    # The import of MLX takes hold of a GPU, so processes that build no model don't import it.
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_map

    shutil.copytree(tokenizer_from, folder)
    config = json.loads((folder / "config.json").read_text("utf-8")) | sizes
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    mx.random.seed(1)
    architecture = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = architecture.Model(architecture.ModelArgs.from_dict(config))
    parameters = model.parameters()
    # Tokens that aren't plain text would hold an answer's first text back. The embedding is also
    # the head: a token whose row is zeros hardly ever has the largest logit, and is hardly ever
    # chosen.
    embedding = parameters["model"]["embed_tokens"]["weight"]
    plain = mx.array(_plain_text(tokenizer_from, config["vocab_size"]))
    parameters["model"]["embed_tokens"]["weight"] = mx.where(plain[:, None], embedding, 0)
    if sizes in (HALF_BILLION, TWO_BILLION):
        parameters = tree_map(lambda array: array.astype(mx.bfloat16), parameters)
    weights = dict(tree_flatten(parameters))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})


def _plain_text(folder: Path, vocabulary: int) -> list[bool]:
    """Whether each token is printable text."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [tokenizer.decode([index]) for index in range(vocabulary)]
    return [bool(text) and text.isascii() and text.isprintable() for text in texts]


def copy_without_end(model: Path, copy: Path) -> None:
    """Copy a model without its end-of-sequence token and its template into the folder `copy`. Files
    that need no change become links.

    With such a copy each stream makes exactly as many tokens as a request asks for: mlx_lm.server
    has no `ignore_eos`. With a template mlx_lm.server would look for calls of tools in random text,
    and fail at some.

    Raises:
        FailedError: `model` is not a model folder.
    """
    if not (model / "config.json").is_file():
        raise FailedError(f"{model} is not a model folder: it has no config.json.")
    copy.mkdir()
    for source in model.resolve().iterdir():
        if source.match(_TEMPLATE):
            continue
        target = copy / source.name
        if source.name in _REPLACED:
            content = json.loads(source.read_text("utf-8"))
            target.write_text(json.dumps({**content, **_REPLACED[source.name]}), "utf-8")
        else:
            target.symlink_to(source)
