"""Folders of the demo model as disks have them: with what other programs and downloads left there,
or with something missing. `DISKS` has the reason why one isn't served; None: it is.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import mlx.core as mx

from tests.support.shapes import DEMO

Change = Callable[[Path], object]

_WHOLE: Final = "model.safetensors"
_INDEX: Final = f"{_WHOLE}.index.json"
_POINTER: Final = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    b"size 14483464192\n"
)
# What macOS writes beside each file on a disk that can't keep its attributes.
_ATTRIBUTES: Final = b"\0\5\26\7\0\2\0\0Mac OS X        " + bytes(4072)


def on_disk(folder: Path, name: str) -> Path:
    """The demo model as `DISKS` has it under this name."""
    shutil.copytree(DEMO, folder)
    for change in DISKS[name][0]:
        change(folder)
    return folder


def sharded(count: int, *, lost: Iterable[int] = (), zeros: bool = False) -> Change:
    """The weights in shards, without those that are `lost`."""

    def change(folder: Path) -> None:
        weights = mx.load(str(DEMO / _WHOLE))
        assert isinstance(weights, dict)
        names = sorted(weights)
        (folder / _WHOLE).unlink(missing_ok=True)
        for number in set(range(1, count + 1)) - set(lost):
            own = {name: weights[name] for name in names[number - 1 :: count]}
            if zeros:
                own = {name: mx.zeros_like(array) for name, array in own.items()}
            mx.save_safetensors(str(folder / shard(number, count)), own, {"format": "mlx"})

    return change


def left_of(count: int, *lost: int) -> Change:
    """Shards of an earlier download, which had other weights."""

    def change(folder: Path) -> None:
        whole = (folder / _WHOLE).read_bytes() if (folder / _WHOLE).exists() else None
        sharded(count, lost=lost, zeros=True)(folder)
        if whole is not None:
            (folder / _WHOLE).write_bytes(whole)

    return change


def shard(number: int, count: int) -> str:
    return f"model-{number:05}-of-{count:05}.safetensors"


def index(*names: str) -> Change:
    """An index that names these files."""
    placed = {f"weight.{number}": name for number, name in enumerate(names)}
    return written(_INDEX, json.dumps({"weight_map": placed}))


def written(name: str, content: bytes | str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def _cut(name: str, by: int = 10) -> Change:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - by)


def _longer(folder: Path) -> None:
    with (folder / _WHOLE).open("ab") as file:
        file.write(bytes(10))


def _link(folder: Path) -> None:
    (folder / _WHOLE).unlink()
    (folder / _WHOLE).symlink_to("../../blobs/gone")


def _linked(name: str) -> Change:
    return lambda folder: (folder / name).symlink_to("../../blobs/gone")


def _without(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def _foldered(name: str) -> Change:
    return lambda folder: (folder / name).mkdir()


def _copied(name: str, new: str) -> Change:
    return lambda folder: shutil.copy(folder / name, folder / new)


def _dotted(folder: Path) -> None:
    for name in [path.name for path in folder.iterdir()]:
        (folder / f"._{name}").write_bytes(_ATTRIBUTES)


def _renamed(old: str, new: str) -> Change:
    return lambda folder: (folder / old).rename(folder / new)


def _tekken(**lists: object) -> Change:
    """Mistral's own file in place of the tokenizer, with a token for each byte."""
    words = [{"token_bytes": base64.b64encode(bytes([index])).decode()} for index in range(256)]
    settings = {"pattern": r"\S+|\s+", "default_vocab_size": 259, "default_num_special_tokens": 3}
    content = json.dumps({"config": settings, "vocab": words, **lists})

    def change(folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer_config.json").unlink()
        (folder / "tekken.json").write_text(content)

    return change


_SPECIALS: Final = [
    {"rank": rank, "token_str": text, "is_control": True}
    for rank, text in enumerate(("<unk>", "<s>", "</s>"))
]
_DUPLICATE: Final = "model-00001-of-00002 (1).safetensors"
_PAGE: Final = "<!DOCTYPE html>\n<html><head><title>503</title></head></html>"
_CUT_TEXT: Final = (DEMO / "tokenizer.json").read_text("utf-8")[:5000]
_BIN: Final = "pytorch_model-00001-of-00002.bin"

DISKS: Final[dict[str, tuple[tuple[Change, ...], str | None]]] = {
    "shards": ((sharded(3),), None),
    "shards from zero": (
        (
            sharded(2),
            _renamed(shard(1, 2), shard(0, 2)),
            _renamed(shard(2, 2), shard(1, 2)),
        ),
        None,
    ),
    "index of itself": ((sharded(2), index(shard(1, 2), shard(2, 2))), None),
    "index of another sharding": ((index(shard(1, 4), shard(4, 4)),), None),
    "shards and an index of another sharding": ((sharded(2), index(shard(4, 4))), None),
    "index of side files": (
        (sharded(2), index(shard(1, 2), "optiq/optiq_vision.safetensors", "mtp/w.safetensors")),
        None,
    ),
    "index of PyTorch's files": ((index(_BIN), written(f"{_BIN}.index.json", "{")), None),
    "index cut off": ((written(_INDEX, '{"weight_map": {'),), None),
    "index of numbers": ((written(_INDEX, '{"weight_map": {"a": 5, "b": ["c"]}}'),), None),
    "index elsewhere": ((index("../../../etc/passwd"),), None),
    "attributes of macOS": ((_dotted,), None),
    "shards and attributes of macOS": ((sharded(2), index(shard(1, 2)), _dotted), None),
    "pointer beside": ((written("consolidated.safetensors", _POINTER),), None),
    "weights of another part cut off": ((written("vae.safetensors", b"\1\0\0"),), None),
    "an adapter of another program": ((written("adapters/0.safetensors", b""),), None),
    "shards left beside shards": ((sharded(2), left_of(3, 2)), None),
    "longer shards left beside shards": ((sharded(3), left_of(2, 1)), None),
    "a damaged shard left beside shards": (
        (sharded(2), written(shard(3, 4), _POINTER)),
        None,
    ),
    "shards left beside the whole": ((left_of(3, 1),), None),
    "a shard that is a link to nothing beside the whole": ((_linked(shard(1, 1)),), None),
    "a pointer beside the whole": ((written("model.fp16.safetensors", _POINTER),), None),
    "a browser's duplicate that is cut off": (
        (sharded(2), _copied(shard(1, 2), _DUPLICATE), _cut(_DUPLICATE)),
        None,
    ),
    "a copy that is cut off": (
        (_copied(_WHOLE, "model copy.safetensors"), _cut("model copy.safetensors")),
        None,
    ),
    "a folder with the name of weights": ((_foldered("model-extra.safetensors"),), None),
    "a damaged whole beside shards": ((sharded(2), written(_WHOLE, "{}")), None),
    "another whole beside shards": ((sharded(2), left_of(1), _renamed(shard(1, 1), _WHOLE)), None),
    "a damaged whole numbering beside shards": (
        (sharded(3), written(shard(1, 2), b""), written(shard(2, 2), _POINTER)),
        None,
    ),
    "an unfinished part beside the whole": ((written("model-mtp-1-of-2.safetensors", b""),), None),
    "all of it": (
        (
            sharded(3),
            left_of(2, 1),
            index(shard(4, 4), "optiq/optiq_vision.safetensors"),
            written("consolidated.safetensors", _POINTER),
            written("vae.safetensors", b"\1\0\0"),
            _dotted,
        ),
        None,
    ),
    "Mistral's tokenizer": ((_tekken(special_tokens=_SPECIALS),), None),
    "a missing shard": ((sharded(3, lost=[2]),), f"{shard(2, 3)} is missing: finish"),
    "the last shard is missing": ((sharded(3, lost=[3]),), f"{shard(3, 3)} is missing: finish"),
    "a missing shard and a whole index": (
        (sharded(3, lost=[2]), index(shard(1, 3), shard(3, 3))),
        f"{shard(2, 3)} is missing: finish",
    ),
    "a shard that is not finished": (
        (sharded(2), _renamed(shard(2, 2), f"{shard(2, 2)}.part")),
        f"{shard(2, 2)} is missing, and {shard(2, 2)}.part is unfinished: finish",
    ),
    "a hidden shard that is not finished": (
        (sharded(2), _renamed(shard(1, 2), f".{shard(1, 2)}.Xy12Zz"), _dotted),
        f"{shard(1, 2)} is missing, and .{shard(1, 2)}.Xy12Zz is unfinished: finish",
    ),
    "nothing is finished": (
        (_renamed(_WHOLE, f"{_WHOLE}.incomplete"), index(_WHOLE)),
        f"no weights that MLX reads (model*.safetensors), and {_WHOLE}.incomplete is unfinished",
    ),
    "weights of another name": (
        (_renamed(_WHOLE, "consolidated.safetensors"),),
        "no weights that MLX reads (model*.safetensors): finish",
    ),
    "a damaged shard beside most of others": (
        (sharded(3, lost=[3]), written(shard(1, 2), "{")),
        f"{shard(3, 3)} is missing: finish the download, or pull the model again",
    ),
    "a damaged whole beside weights of another name": (
        (_renamed(_WHOLE, "model_4bit.safetensors"), written(_WHOLE, _POINTER)),
        f"{_WHOLE} is only a pointer of Git LFS: get the file by `git lfs pull`, or pull the model "
        f"again, or delete {_WHOLE} if model_4bit.safetensors is the whole model",
    ),
    "a shard cut off": (
        (sharded(2), _cut(shard(2, 2)), written(f"{shard(2, 2)}.part", "")),
        f"bytes: finish the download, or pull the model again ({shard(2, 2)}.part is unfinished)",
    ),
    "a shard cut off in its header": (
        (sharded(2), _cut(shard(2, 2)), lambda folder: os.truncate(folder / shard(2, 2), 40)),
        f"{shard(2, 2)} is cut off in its header: finish the download, or pull the model again",
    ),
    "an empty shard": (
        (sharded(2), written(shard(2, 2), "")),
        f"{shard(2, 2)} is empty: finish the download, or pull the model again",
    ),
    "zeros": (
        (written(_WHOLE, bytes(5000)),),
        f"{_WHOLE} begins with zeros, as room that a download keeps: finish the download, or",
    ),
    "a web page": (
        (written(_WHOLE, _PAGE),),
        f"{_WHOLE} is a web page, which a hub or proxy sent in its place: pull the model again",
    ),
    "text in place of weights": (
        (written(_WHOLE, "Access to this model is restricted"),),
        f"{_WHOLE} has text instead of weights: pull the model again",
    ),
    "a header that is no table": (
        (written(_WHOLE, (2).to_bytes(8, "little") + b"{]"),),
        f"{_WHOLE} is damaged in its header: pull the model again",
    ),
    "a folder in place of weights": (
        (_without(_WHOLE), _foldered(_WHOLE)),
        f"{_WHOLE} is a folder, and must be a file: delete it, and pull the model again",
    ),
    "only PyTorch's weights": (
        (_renamed(_WHOLE, "pytorch_model.bin"), written("training_args.bin", "")),
        "its weights (pytorch_model.bin) are PyTorch's files, which MLX doesn't read: take a "
        "conversion for MLX, which `bulkhead search` finds",
    ),
    "only GGUF": (
        (_renamed(_WHOLE, "model-Q4_K_M.gguf"),),
        "its weights (model-Q4_K_M.gguf) are GGUF, which MLX doesn't read: take a conversion for "
        "MLX, which `bulkhead search` finds, or have llama-server serve it (docs/other-servers.md)",
    ),
    "a pointer for a tokenizer": (
        (written("tokenizer.json", _POINTER),),
        "tokenizer.json is only a pointer of Git LFS: get the file by `git lfs pull`, or pull",
    ),
    "a tokenizer that is a link to nothing": (
        (_without("tokenizer.json"), _linked("tokenizer.json")),
        "tokenizer.json is a link to a missing file: finish the download, or pull the model again",
    ),
    "an empty tokenizer": (
        (written("tokenizer.json", ""),),
        "tokenizer.json is empty: finish the download, or pull the model again",
    ),
    "a tokenizer cut off": (
        (written("tokenizer.json", _CUT_TEXT),),
        "tokenizer.json is cut off: finish the download, or pull the model again",
    ),
    "settings of a tokenizer that are no table": (
        (written("tokenizer_config.json", "[]"),),
        "tokenizer_config.json has no JSON object: finish the download, or pull the model again",
    ),
    "longer than its header says": ((_longer,), f"{_WHOLE} is damaged: it has 2,730,234 bytes"),
    "a pointer": ((written(_WHOLE, _POINTER),), f"{_WHOLE} is only a pointer of Git LFS: get"),
    "a link to nothing": ((_link,), f"{_WHOLE} is a link to a missing file: finish"),
    "Mistral's older tokenizer": (
        (_tekken(),),
        "tekken.json, its only tokenizer, has no special_tokens, without which",
    ),
    "Mistral's empty list of tokens": (
        (_tekken(special_tokens=None),),
        "tekken.json, its only tokenizer, has no special_tokens, without which",
    ),
}
