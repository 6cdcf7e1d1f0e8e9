"""What a model's files say of it, without loading it."""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from gateway.memory.caches import language_of
from protocol.model_files import encoder_of, read_config, read_file, read_header, read_table

logger = logging.getLogger(__name__)

_LONGEST_PROBLEM: Final = 300
_MOST_TOKENS: Final = 1 << 40
_INDEX: Final = "model.safetensors.index.json"
_TOKENIZERS: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "vocab.json",
    "vocab.txt",
)
_TYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class Description(Struct, frozen=True):
    """`abilities`: text, tools, vision, embeddings, by its files; whether it keeps that promise
    shows when it is loaded. `context_tokens` is its own limit, null if it names none. `problem` is
    why it isn't offered.
    """

    architecture: str | None
    quantization: str | None
    context_tokens: int | None
    has_template: bool
    abilities: tuple[str, ...]
    problem: str | None = None


NOTHING: Final = Description(None, None, None, False, ())


def describe(folder: Path) -> Description:
    """Reads some small files; blocks. Whatever these have in them, it is this model's problem."""
    try:
        found = _whole(folder)
        # What can't be told to anybody is no description.
        msgspec.json.encode(found)
        return found
    except Exception as error:
        logger.debug("%s can't be described", folder, exc_info=True)
        if not isinstance(error, OSError | ValueError):
            error = ValueError(f"its files make no sense ({type(error).__name__}: {error})")
        return msgspec.structs.replace(NOTHING, problem=_told(str(error)))


def _told(problem: str) -> str:
    text = problem.encode(errors="replace").decode()
    return text if len(text) <= _LONGEST_PROBLEM else f"{text[: _LONGEST_PROBLEM - 1]}…"


def _whole(folder: Path) -> Description:
    """Raises what reading and understanding does."""
    try:
        config = read_config(folder)
    except (OSError, ValueError) as error:
        raise ValueError(f"config.json can't be read: {error}") from error
    found = _described(folder, config)
    problem = _missing(folder) or _unknown(config)
    return found if problem is None else msgspec.structs.replace(found, problem=_told(problem))


def _described(folder: Path, config: dict[str, Any]) -> Description:
    text = language_of(config)
    template = _template(folder)
    architecture = config.get("model_type")
    context = text.get("max_position_embeddings")
    encodes = encoder_of(config) is not None or (folder / "1_Pooling").is_dir()
    sees = isinstance(config.get("vision_config"), dict) and not encodes
    abilities = (
        *(("embeddings",) if encodes else ("text",)),
        *(("tools",) if not encodes and re.search(r"\btools?\b", template) else ()),
        *(("vision",) if sees else ()),
    )
    return Description(
        architecture=architecture if isinstance(architecture, str) else None,
        quantization=_quantization(config),
        context_tokens=context if isinstance(context, int) and 0 < context < _MOST_TOKENS else None,
        has_template=bool(template),
        abilities=abilities,
    )


def _quantization(config: Mapping[str, Any]) -> str | None:
    """As mlx-community names it: 4bit, mxfp4, bf16."""
    for key in ("quantization", "quantization_config"):
        if isinstance(given := config.get(key), dict):
            mode = given.get("mode")
            if isinstance(mode, str) and mode != "affine":
                return mode
            if isinstance(bits := given.get("bits"), int):
                return f"{bits}bit"
            method = given.get("quant_method")
            return method if isinstance(method, str) else None
    nested = config.get("text_config")
    text = {**config, **(nested if isinstance(nested, dict) else {})}
    kind = text.get("torch_dtype") or text.get("dtype")
    return _TYPES.get(kind, kind) if isinstance(kind, str) else None


def _template(folder: Path) -> str:
    """The text of the chat template, empty if there is none."""
    for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
        path = folder / name
        if not path.is_file():
            continue
        if path.suffix == ".jinja":
            return read_file(path).decode("utf-8", "replace")
        try:
            given = read_table(path).get("chat_template")
        except ValueError:
            continue
        if given:
            return given if isinstance(given, str) else json.dumps(given)
    return ""


def _missing(folder: Path) -> str | None:
    """What keeps the files from being whole: some are cut off, or still to come."""
    if not any((folder / each).is_file() for each in _TOKENIZERS):
        return "it is not whole: there is no tokenizer"
    weights = {each.name for each in folder.glob("model*.safetensors")}
    if not weights:
        return "there are no weights that MLX reads (model*.safetensors)"
    try:
        if (folder / _INDEX).is_file():
            placed = read_table(folder / _INDEX).get("weight_map")
            named = list(placed.values()) if isinstance(placed, dict) else []
            if not all(isinstance(each, str) for each in named):
                return f"it is not whole: {_INDEX} doesn't name its files"
            if lost := sorted({*named} - weights):
                return f"it is not whole: {lost[0]} is missing"
        for name in sorted(weights):
            if (folder / name).stat().st_size < read_header(folder / name).file_bytes:
                return f"it is not whole: {name} is cut off"
    except (OSError, ValueError) as error:
        return f"its files can't be read: {error}"
    return None


def _unknown(config: Mapping[str, Any]) -> str | None:
    """Why nothing here could load it."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return "config.json names no model_type"
    encoder = encoder_of(config)
    if encoder == "":
        return f"nothing here loads encoders of the kind {kind}"
    if encoder is not None:
        missing = find_spec("mlx_embeddings") is None
        return "it takes the extra embeddings (mlx-embeddings)" if missing else None
    if kind not in _architectures():
        return f"mlx-lm knows no models of the kind {kind}"
    return None


@functools.cache
def _architectures() -> frozenset[str]:
    """What mlx-lm has a module for, by its files: to import it would bring MLX along."""
    found = find_spec("mlx_lm")
    if found is None or not found.submodule_search_locations:
        return frozenset()
    package = Path(next(iter(found.submodule_search_locations)))
    names = {each.stem for each in (package / "models").glob("*.py")}
    # The other names that it knows some of them by.
    text = (package / "utils.py").read_text("utf-8")
    if table := re.search(r"^MODEL_REMAPPING = \{(.*?)^\}", text, re.DOTALL | re.MULTILINE):
        names |= set(re.findall(r'"([^"]+)":', table[1]))
    return frozenset(names)
