"""Which values in config.json are to blame for an error of a model's own code.

Architectures read config.json into classes of their own. These have a type for each value, and
check no value. So an error comes late, and doesn't name the key. The classes are in the error's
traceback.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from textwrap import shorten
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from protocol.model_files import read_config, read_table
from protocol.model_folder import weight_files
from worker.mlx_lm.models import argument_classes
from worker.system.errors import one_sentence

_WORDS: Final = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}
# transformers, which reads config.json for the tokenizer, names the key, and so does mlx-lm.
_NAMED: Final = re.compile(
    r"Validation error for field '(\w+)'|^(\w+) is missing from the model config"
)
# A model that has one of these has more than none.
_POSITIVE: Final = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
# Small files that mlx-lm and transformers read besides, whose errors name no file.
_BESIDE: Final = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_MOST_FAULTS: Final = 4
_LONGEST_ERROR: Final = 160
_LONGEST_VALUE: Final = 60


def reason_of(error: Exception, folder: Path, failure: str) -> str:
    """Why the model in a folder fails, and what helps. `failure` says what fails."""
    if (fault := fault_of(error, folder)) is not None:
        return fault
    every = {path.name for path in folder.glob("model*.safetensors")}
    left = sorted(every - {path.name for path in weight_files(folder)})
    unread = f" Files that were left out: {', '.join(left[:_MOST_FAULTS])}." if left else ""
    return (
        f"{failure}: {one_sentence(error).rstrip('.')}. Either {folder / 'config.json'} and the "
        "weights don't belong together, or this version of mlx-lm (with pictures, of mlx-vlm) "
        f"doesn't know models of this kind.{unread} Pull the model again, or take another "
        "conversion."
    )


def fault_of(error: Exception, folder: Path) -> str | None:
    """The faults of a model's configuration that explain an error, and what helps; None: it has
    none.
    """
    if "trust_remote_code" in str(error):
        return (
            f"The model in {folder} wants a program of its folder to be run, and Bulkhead runs no "
            "programs of models. Take a conversion that mlx-lm reads by itself."
        )
    cause = shorten(one_sentence(error), _LONGEST_ERROR)
    if faults := dict.fromkeys(_faults(error, read_config(folder))):
        return (
            f"{folder / 'config.json'}: {'; '.join(list(faults)[:_MOST_FAULTS])}. Correct the "
            f"file, or pull the model again ({cause})."
        )
    for name in _BESIDE:
        try:
            if (folder / name).exists():
                read_table(folder / name)
        except (OSError, ValueError) as wrong:
            return f"In {folder} {wrong} ({cause})."
    return None


def _faults(error: Exception, config: dict[str, Any]) -> Iterator[str]:
    yield from _quantization(config)
    for name in _POSITIVE:
        if (entry := _find(config, name)) and type(entry[1]) in (int, float) and entry[1] <= 0:
            yield f"{entry[0]} is {entry[1]}, and must be more than 0"
    if named := _NAMED.search(str(error)):
        name = named[1] or named[2]
        entry = _find(config, name)
        if entry or named[2]:
            yield f"{entry[0]} is {_written(entry[1])}" if entry else f"{name} is missing"
        return
    for kind, present in argument_classes(error):
        try:
            hints = get_type_hints(kind)
        except (NameError, TypeError):
            continue
        for field in fields(kind):
            if fault := _fault(field, hints.get(field.name, Any), present, config):
                yield fault


def _quantization(config: dict[str, Any]) -> Iterator[str]:
    quantization, other = config.get("quantization"), config.get("quantization_config")
    if quantization is not None:
        wrong = not isinstance(quantization, dict) or not all(
            type(quantization.get(key)) is int for key in ("group_size", "bits")
        )
        if wrong:
            yield (
                f"quantization is {_written(quantization)}, and must have group_size and bits, or "
                "be left out if the weights aren't quantized"
            )
    elif other and (not isinstance(other, dict) or not isinstance(other.get("quant_method"), str)):
        yield f"quantization_config is {_written(other)}, and must have a quant_method"


def _fault(
    field: Field[Any], hint: Any, table: dict[str, Any] | None, config: dict[str, Any]
) -> str | None:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    if table is not None and default is MISSING and field.init and field.name not in table:
        return f"{field.name} is missing"
    entry = _find(config, field.name)
    if entry is None or entry[1] is default or _fits(entry[1], hint):
        return None
    return f"{entry[0]} is {_written(entry[1])}, and must be {_words(hint)}"


def _find(config: dict[str, Any], key: str) -> tuple[str, Any] | None:
    """A key in config.json or in a table of it, as people would write it, and its value."""
    if key in config:
        return key, config[key]
    for name, table in config.items():
        if isinstance(table, dict) and key in table:
            return f"{name}.{key}", table[key]
    return None


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint) or hint
    if origin in (Union, UnionType):
        return any(_fits(value, kind) for kind in get_args(hint))
    if origin is type(None) or value is None:
        return value is None and origin in (type(None), Any)
    if isinstance(value, bool):
        return origin not in (int, float, str, list, tuple, dict)
    if origin is float:
        return isinstance(value, int | float)
    if origin is tuple:
        return isinstance(value, list | tuple)
    return origin not in _WORDS or isinstance(value, origin)


def _words(hint: Any) -> str:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = (_WORDS.get(get_origin(kind) or kind) for kind in kinds)
    return " or ".join(dict.fromkeys(word for word in words if word)) or "given"


def _written(value: Any) -> str:
    return shorten(json.dumps(value), _LONGEST_VALUE)
