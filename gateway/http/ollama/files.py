"""What a model's files say of it, for clients that look at models before they use them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from gateway.config.model import Model
from gateway.config.model_folders import find_folder
from gateway.system.lane import Lane
from protocol.encoders import encoder_of
from protocol.model_files import read_config, read_file, read_header, read_table

# Beyond it a listing goes on without what the files say.
_ANSWER_S: Final = 2.0
_LONGEST_TEXT_BYTES: Final = 1 << 20
_BITS_OF_WORD: Final = 32
_LARGEST_NUMBER: Final = 1 << 53
_UNPACKED: Final = (".scales", ".biases")


class ModelFiles(Struct, frozen=True):
    """`digest` tells these files from others, by their names, sizes and times. `template` is the
    chat template; `quantization` the bits of a weight, or its type.
    """

    digest: str = "0" * 64
    size_bytes: int = 0
    modified_at: float = 0.0
    family: str = ""
    parameters: int = 0
    quantization: str = ""
    layers: int | None = None
    context_tokens: int | None = None
    embedding_length: int | None = None
    encoder: bool = False
    template: str = ""
    license: str = ""

    @property
    def parameter_size(self) -> str:
        """As people write it: 8.0B."""
        for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
            if self.parameters >= size:
                return f"{self.parameters / size:.1f}{unit}"
        return str(self.parameters) if self.parameters else ""


class ModelFileReader:
    """Reads what the files say, once for as long as they stay as they are. Each place has a lane of
    its own: one that hangs costs the others nothing.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}
        self._known: dict[str, ModelFiles] = {}

    async def look_up(self, model: Model) -> ModelFiles:
        """What was known before, or nothing, if the files can't be read."""
        known = self._known.get(model.source)
        lane = self._lanes.setdefault(model.source, Lane(f"files of {model.id}"))
        try:
            found = await lane.run(lambda: _read(model.source, known), _ANSWER_S, model.source)
        except (OSError, ValueError):
            return known or ModelFiles()
        self._known[model.source] = found
        return found


def _read(source: str, known: ModelFiles | None) -> ModelFiles:
    folder = find_folder(source)
    files = sorted(each for each in folder.iterdir() if each.is_file())
    states = [(each.name, each.stat()) for each in files]
    listed = json.dumps([(name, state.st_size, state.st_mtime_ns) for name, state in states])
    digest = hashlib.sha256(listed.encode()).hexdigest()
    if known is not None and known.digest == digest:
        return known
    config = read_config(folder)
    text = {**config, **(config.get("text_config") or {})}
    parameters, kind = _count(files, _quantization(config))
    return ModelFiles(
        digest=digest,
        size_bytes=sum(state.st_size for _, state in states),
        modified_at=max(state.st_mtime for _, state in states),
        family=_told(config.get("model_type")),
        parameters=min(parameters, _LARGEST_NUMBER),
        quantization=f"{bits}-bit" if (bits := _quantization(config)) else kind,
        layers=_number(text, "num_hidden_layers"),
        context_tokens=_number(text, "max_position_embeddings"),
        embedding_length=_number(text, "hidden_size"),
        encoder=encoder_of(config) is not None,
        template=_told(_template(folder)),
        license=_text(folder / "LICENSE"),
    )


def _quantization(config: Mapping[str, Any]) -> int | None:
    found = config.get("quantization")
    return _number(found, "bits") if isinstance(found, dict) else None


def _count(files: list[Path], bits: int | None) -> tuple[int, str]:
    """Parameters, and the type that most of them have. Of quantized ones several share a word."""
    kinds: dict[str, int] = {}
    for path in files:
        if not (path.name.startswith("model") and path.suffix == ".safetensors"):
            continue
        for name, tensor in read_header(path).tensors.items():
            if bits and name.endswith(_UNPACKED):
                continue
            count, kind = prod(tensor.shape), _told(tensor.dtype)
            if bits and kind == "U32":
                count = count * _BITS_OF_WORD // bits
            kinds[kind] = kinds.get(kind, 0) + count
    most = max(kinds, key=lambda each: kinds[each], default="")
    return sum(kinds.values()), most


def _template(folder: Path) -> str:
    """Of several files the one that a worker takes: the tokenizer's before the processor's."""
    if text := _text(folder / "chat_template.jinja"):
        return text
    for name in ("tokenizer_config.json", "chat_template.json"):
        try:
            found = read_table(folder / name).get("chat_template")
        except FileNotFoundError:
            continue
        if isinstance(found, list):
            # Several, by name.
            found = next((each.get("template") for each in found if isinstance(each, dict)), None)
        if isinstance(found, str) and found:
            return found
    return ""


def _text(path: Path) -> str:
    """Empty: there is none, or it is too long."""
    try:
        return read_file(path, _LONGEST_TEXT_BYTES).decode(errors="replace")
    except (FileNotFoundError, ValueError):
        return ""


def _told(text: object) -> str:
    """JSON has half characters, which can't be sent."""
    return text.encode(errors="replace").decode() if isinstance(text, str) else ""


def _number(table: Mapping[str, Any], key: str) -> int | None:
    value = table.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 < value < _LARGEST_NUMBER else None
