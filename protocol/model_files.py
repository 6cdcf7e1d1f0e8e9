"""Reads the files of a model within bounds, since anybody may have made the files, and finds facts
that follow from its config.json.
"""

from __future__ import annotations

import codecs
import json
import os
import stat
from collections.abc import Mapping
from enum import Enum
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from protocol.encoders import unserved

_LENGTH_BYTES: Final = 8
# Bounds many times above the sizes in published models.
LARGEST_CONFIG_BYTES: Final = 4 << 20
_LARGEST_HEADER_BYTES: Final = 32 << 20
LARGEST_FILE_BYTES: Final = 64 << 20
# Parsed JSON takes up to 100 bytes for each value, even if the value has few bytes in the file.
_MOST_VALUES: Final = 2_000_000
# No model has none of these.
_COUNTS: Final = ("num_hidden_layers", "hidden_size", "vocab_size")
# Enough to tell what a file is, and to find the end of its text.
_END_BYTES: Final = 256
_LARGEST_TENSOR_BYTES: Final = 1 << 40
# Each layer takes memory before it turns out that the files have no weights for it.
_MOST_LAYERS: Final = 10_000
# What git leaves in place of a large file that it hasn't fetched.
_POINTER: Final = b"version https://git-lfs"
AGAIN: Final = "finish the download, or pull the model again"
_LAYERS: Final = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")


class Tensor(NamedTuple):
    """A tensor's type and shape, and its place in bytes from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def bytes(self) -> int:
        return self.end - self.begin


class Header(NamedTuple):
    """The header of a safetensors file. A complete file has `file_bytes`."""

    tensors: dict[str, Tensor]
    file_bytes: int


def read_file(path: Path, most_bytes: int = LARGEST_FILE_BYTES) -> bytes:
    """The content of a file.

    Raises:
        OSError
        ValueError: the file is longer, or is a pipe or a device, which may never end.
    """
    return _read(path, 0, most_bytes)


def read_table(path: Path, most_bytes: int = LARGEST_FILE_BYTES) -> dict[str, Any]:
    """The JSON object that a file contains.

    Raises:
        OSError
        ValueError: the file has no JSON object, or is too large.
    """
    return _table(path, read_file(path, most_bytes))


def check_json(path: Path) -> None:
    """Raise ValueError if a file can't be a JSON object, as its begin and its end tell. Raises
    OSError.
    """
    _check_begin(path, begin := _read(path, 0, _END_BYTES, whole=False))
    end = _read(path, max(0, path.stat().st_size - _END_BYTES), _END_BYTES, whole=False)
    if not begin.lstrip().startswith(b"{"):
        raise ValueError(f"{path.name} has no JSON object: {AGAIN}")
    if not end.rstrip().endswith(b"}"):
        raise ValueError(f"{path.name} is cut off: {AGAIN}")


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json.

    Raises:
        OSError
        ValueError: the file is no configuration of a model.
    """
    config = read_table(folder / "config.json", LARGEST_CONFIG_BYTES)
    nested = config.get("text_config") or {}
    if not isinstance(nested, dict):
        raise ValueError(f"text_config is {nested!r:.100}, and must be a table")
    for name in _LAYERS:
        for count in (config.get(name), nested.get(name)):
            if isinstance(count, int) and count > _MOST_LAYERS:
                raise ValueError(f"{name} is more than {_MOST_LAYERS:,}")
    return config


# The names that architectures give to the table of their part that writes text.
_TABLES: Final = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "transformer_layer_config",
)


def text_table(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model's part that writes text, if config.json has them in a table."""
    for name in _TABLES:
        if isinstance(table := config.get(name), dict) and table:
            return text_table(table) or table
    return {}


# Parts of the names that drafters have in config.json, where no model of its own has them.
_DRAFTERS: Final = ("dflash", "dspark", "eagle", "medusa", "mtp", "assistant", "speculator")


class DrafterKind(Enum):
    """What a drafter is that works only beside its model: a head that mlx-vlm has split off the
    model, or a layer of EAGLE-3. Others aren't known here.
    """

    HEAD = "head"
    EAGLE3 = "EAGLE-3"
    OTHER = "other"


def drafter_kind(config: Mapping[str, Any]) -> DrafterKind | None:
    """What the drafter with this config.json is; None: it is a model of its own."""
    if config.get("model_type") == "qwen3_5_mtp":
        return DrafterKind.HEAD
    names = (config.get(key) for key in ("model_type", "architectures", "speculators_model_type"))
    text = " ".join(map(str, names)).lower()
    if "eagle3" in text:
        return DrafterKind.EAGLE3
    if "dflash_config" in config or any(name in text for name in _DRAFTERS):
        return DrafterKind.OTHER
    return None


def head_beside(folder: Path) -> Path | None:
    """The folder of the head that mlx-vlm has split off the model in a folder, where mlx-vlm puts
    it; None: there is no such folder.
    """
    head = folder.parent / f"{folder.name}-mtp"
    try:
        kind = drafter_kind(read_config(head))
    except (OSError, ValueError):
        return None
    return head if kind is DrafterKind.HEAD else None


def refusal(config: Mapping[str, Any]) -> str | None:
    """Why no model with this config.json is loaded, and what to do; None: one may be."""
    if (program := config.get("model_file")) is not None:
        return (
            f"config.json wants the program {str(program)[:100]!r} to be run (model_file), and "
            "Bulkhead runs no programs of models: take a conversion that mlx-lm reads by itself"
        )
    if (reason := unserved(config)) is not None:
        return reason
    nested = config.get("text_config")
    text = {**config, **(nested if isinstance(nested, dict) else {})}
    for name in _COUNTS:
        count = text.get(name)
        if type(count) is int and count <= 0:
            return (
                f"config.json: {name} is {count}, and must be more than 0: correct the file, or "
                "pull the model again"
            )
    return None


def read_header_text(path: Path) -> bytes:
    """The header of a safetensors file as JSON text. The file has the header's length before it
    (github.com/huggingface/safetensors, "Format").

    Raises:
        OSError
        ValueError: the file is damaged.
    """
    begin = _read(path, 0, len(_POINTER), whole=False)
    _check_begin(path, begin)
    length = int.from_bytes(begin[:_LENGTH_BYTES], "little")
    if length == 0:
        raise ValueError(f"{path.name} begins with zeros, as room that a download keeps: {AGAIN}")
    if length > _LARGEST_HEADER_BYTES:
        is_text = begin.isascii() and b"\0" not in begin
        what = "has text instead of weights" if is_text else "is damaged at its begin"
        raise ValueError(f"{path.name} {what}: pull the model again")
    text = _read(path, _LENGTH_BYTES, length, whole=False)
    if len(text) < length:
        raise ValueError(f"{path.name} is cut off in its header: {AGAIN}")
    return text


def _check_begin(path: Path, begin: bytes) -> None:
    """Raise ValueError if a file, which begins so, is a stand-in for another."""
    if not begin:
        raise ValueError(f"{path.name} is empty: {AGAIN}")
    if begin.startswith(_POINTER):
        raise ValueError(
            f"{path.name} is only a pointer of Git LFS: get the file by `git lfs pull`, or pull "
            "the model again"
        )
    if begin.lstrip().startswith(b"<") and b"\0" not in begin:
        raise ValueError(
            f"{path.name} is a web page, which a hub or proxy sent in its place: pull the model "
            "again"
        )


def read_header(path: Path) -> Header:
    """The header of a safetensors file. Raises as `read_header_text`."""
    text = read_header_text(path)
    try:
        entries = _parsed(text)
    except ValueError as error:
        raise ValueError(f"{path.name} is damaged in its header: pull the model again") from error
    entries.pop("__metadata__", None)
    tensors = {name: _tensor(path, name, entry) for name, entry in entries.items()}
    end = max((tensor.end for tensor in tensors.values()), default=0)
    return Header(tensors, _LENGTH_BYTES + len(text) + end)


def _tensor(path: Path, name: str, entry: Any) -> Tensor:
    match entry:
        case {
            "dtype": str() as dtype,
            "shape": [*shape],
            "data_offsets": [int() as begin, int() as end],
        }:
            sizes = tuple(size for size in shape if isinstance(size, int) and size >= 0)
            if (
                len(sizes) == len(shape) <= 16
                and 0 <= begin <= end <= _LARGEST_TENSOR_BYTES
                # An element of any type has at least one bit.
                and all(size <= _LARGEST_TENSOR_BYTES for size in sizes)
                and prod(sizes) <= 8 * (end - begin)
            ):
                return Tensor(dtype, sizes, begin, end)
    raise ValueError(
        f"{path.name} is damaged: its header doesn't say where {name[:100]!r} is: pull the model "
        "again"
    )


def _table(path: Path, text: bytes) -> dict[str, Any]:
    _check_begin(path, text)
    if text.startswith(codecs.BOM_UTF8):
        # mlx-lm and transformers don't read it either.
        raise ValueError(f"{path.name} begins with a byte order mark: save it as UTF-8 without BOM")
    try:
        return _parsed(text)
    except ValueError as error:
        raise ValueError(
            f"{path.name} {error}: correct the file, or pull the model again"
        ) from error


def _parsed(text: bytes) -> dict[str, Any]:
    """The JSON object in a text. Raises ValueError: the text says what it has instead."""
    if sum(map(text.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError(f"has more than {_MOST_VALUES:,} values")
    try:
        parsed = json.loads(text.decode())
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"is no JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise ValueError("has no JSON object")
    return parsed


def _read(path: Path, begin: int, most_bytes: int, *, whole: bool = True) -> bytes:
    if path.is_symlink() and not os.path.lexists(os.path.realpath(path)):
        raise ValueError(f"{path.name} is a link to a missing file: {AGAIN}")
    if path.is_dir():
        raise ValueError(
            f"{path.name} is a folder, and must be a file: delete it, and pull the model again"
        )
    with open(path, "rb", opener=_open_at_once) as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise ValueError(f"{path.name} is no file")
        if whole and state.st_size > most_bytes:
            raise ValueError(f"{path.name} has {state.st_size:,} bytes, of {most_bytes:,} at most")
        file.seek(begin)
        return file.read(most_bytes)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting. To open a pipe would otherwise wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


# mlx-lm divides these heads over the ranks, and doesn't check whether they can be divided evenly.
_HEADS: Final = (
    "num_attention_heads",
    "num_key_value_heads",
    "linear_num_key_heads",
    "linear_num_value_heads",
)
# A model with this field has attention over a latent, which every rank keeps whole.
_LATENT: Final = "kv_lora_rank"


def undivided(config: Mapping[str, Any], size: int) -> str | None:
    """Why `size` ranks can't share the heads of a model by tensors; None: they can."""
    inner = config.get("text_config")
    config = {**config, **(inner if isinstance(inner, dict) else {})}
    for name in _HEADS:
        count = config.get(name)
        if _LATENT in config and name == "num_key_value_heads":
            continue
        if isinstance(count, int) and count % size:
            return f"its {name} is {count}, which {size} doesn't divide"
    return None
