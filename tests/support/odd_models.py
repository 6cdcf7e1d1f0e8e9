"""Folders of models in which something is as it should never be, made when a test runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.support.shapes import DEMO

Spoil = Callable[[Path], object]

_WEIGHTS: Final = "model.safetensors"


def odd(folder: Path, name: str) -> Path:
    """A copy of the demo model, spoiled as `ODD` has it under this name."""
    shutil.copytree(DEMO, folder)
    ODD[name](folder)
    return folder


def _config(**changes: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def _written(name: str, content: bytes | str) -> Spoil:
    text = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(text)


def _header(content: bytes | str, length: int | None = None) -> Spoil:
    """Of the weights; what follows it stays away."""
    text = content.encode() if isinstance(content, str) else content
    size = len(text) if length is None else length
    return _written(_WEIGHTS, size.to_bytes(8, "little") + text)


def _tensor(**changes: Any) -> Spoil:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes
    return _header(json.dumps({"a": entry}))


def _in_place(name: str, make: Callable[[Path], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return spoil


def _sparse(name: str, begin: bytes = b"") -> Spoil:
    """Huge, and next to nothing on the disk."""

    def spoil(folder: Path) -> None:
        (folder / name).write_bytes(begin)
        os.truncate(folder / name, 1 << 30)

    return spoil


def _index(content: object) -> Spoil:
    return _written(f"{_WEIGHTS}.index.json", json.dumps(content))


_LARGEST: Final = 0xFFFF_FFFF_FFFF_FFFF
_DEEP: Final = 200_000

ODD: Final[dict[str, Spoil]] = {
    "header-short-offsets": _header('{"a":{"data_offsets":[0]}}'),
    "header-list": _header("[]"),
    "header-number": _header("5"),
    "header-null": _header("null"),
    "header-deep": _header("[" * _DEEP),
    "header-deep-table": _header('{"a":' * _DEEP),
    "header-empty": _header(""),
    "header-no-json": _header("{"),
    "header-not-utf8": _header(b'{"\xff\xfe": 1}'),
    "header-longest": _header("{}", _LARGEST),
    "header-99-mb": _sparse(_WEIGHTS, (99_000_000).to_bytes(8, "little")),
    "header-many-values": _header("[" + "[]," * 5_000_000 + "0]"),
    "header-entry-list": _header('{"a": [1, 2]}'),
    "header-offsets-text": _tensor(data_offsets=["0", "8"]),
    "header-offsets-backwards": _tensor(data_offsets=[8, 0]),
    "header-offsets-negative": _tensor(data_offsets=[-8, 8]),
    "header-offsets-huge": _tensor(data_offsets=[0, 10**300]),
    "header-offsets-null": _tensor(data_offsets=None),
    "header-shape-huge": _tensor(shape=[1 << 62] * 1000),
    "header-shape-text": _tensor(shape="2"),
    "header-dtype-number": _tensor(dtype=7),
    "weights-cut": lambda folder: os.truncate(folder / _WEIGHTS, 5000),
    "weights-empty": _written(_WEIGHTS, b""),
    "weights-folder": _in_place(_WEIGHTS, Path.mkdir),
    "weights-pipe": _in_place(_WEIGHTS, os.mkfifo),
    "weights-loop": _in_place(_WEIGHTS, lambda path: path.symlink_to(path)),
    "weights-dangling": _in_place(_WEIGHTS, lambda path: path.symlink_to("nowhere")),
    "weights-gone": lambda folder: (folder / _WEIGHTS).unlink(),
    "index-list": _index([]),
    "index-of-lists": _index({"weight_map": {"a": ["model.safetensors"]}}),
    "index-outside": _index({"weight_map": {"a": "../../../etc/passwd"}}),
    "index-deep": _written(f"{_WEIGHTS}.index.json", "[" * _DEEP),
    "config-list": _written("config.json", "[]"),
    "config-empty": _written("config.json", ""),
    "config-not-utf8": _written("config.json", b'{"model_type": "\xff"}'),
    "config-half-character": _written("config.json", '{"model_type": "\\ud800"}'),
    "config-deep": _written("config.json", '{"a":' * _DEEP),
    "config-huge": _sparse("config.json"),
    "config-long": _written("config.json", '{"a": "' + "x" * (8 << 20) + '"}'),
    "config-zeros": _written("config.json", bytes(1000)),
    "config-device": _in_place("config.json", lambda path: path.symlink_to("/dev/zero")),
    "config-text-list": _config(text_config=[1]),
    "config-text-word": _config(text_config="x"),
    "config-kind-list": _config(model_type=["llama"]),
    "config-kind-long": _config(model_type="x" * 1_000_000),
    "config-numbers-as-text": _config(num_hidden_layers="4", hidden_size="64", vocab_size="704"),
    "config-context-huge": _config(max_position_embeddings=10**300, hidden_size=10**300),
    "config-heads-list": _config(num_attention_heads=[4], layer_types=[[1], {}]),
    "config-layers-many": _config(num_hidden_layers=1 << 40),
    "config-quantized-oddly": _config(quantization=[4], quantization_config={"bits": "4"}),
    "template-list": _written("tokenizer_config.json", '{"chat_template": [[{"a": "\\ud800"}]]}'),
    "template-folder": _in_place("chat_template.jinja", Path.mkdir),
    "template-deep": _written("chat_template.json", "[" * _DEEP),
    "tokenizer-list": _written("tokenizer.json", "[]"),
    "tokenizer-gone": lambda folder: (folder / "tokenizer.json").unlink(),
    "nothing-but-config": lambda folder: [
        path.unlink() for path in folder.iterdir() if path.name != "config.json"
    ],
}
