"""A model's folder: where it is, what is wrong with its files, what its author wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from huggingface_hub.constants import HF_HUB_CACHE
from safetensors import SafetensorError, safe_open

from protocol.model_files import read_config, read_table
from protocol.requests import SamplingDefaults
from worker.system.errors import ModelError, one_sentence

_SAMPLING_BOUNDS: Final = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 1 << 31),
    "min_p": (0.0, 1.0),
}


def find_folder(source: str) -> Path:
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ModelError(f"{source} is a file; a model is a folder with config.json and weights.")
    if folder.is_absolute():
        raise ModelError(f"There is no folder {source}.")
    try:
        # What was pulled, whole; snapshot_download would also miss what no model is loaded from.
        repository = Path(HF_HUB_CACHE) / f"models--{source.replace('/', '--')}"
        revision = (repository / "refs" / "main").read_text("ascii").strip()
        return (repository / "snapshots" / revision).resolve(strict=True)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{source} is neither a folder nor a repository in the Hugging Face cache."
        ) from error


def check_files(folder: Path) -> None:
    """Find what is wrong with the files before MLX does: its lazy reads fail late and abruptly."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: it is not a model folder.")
    try:
        model_type = read_config(folder).get("model_type")
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} can't be read: {error}") from error
    if not isinstance(model_type, str):
        raise ModelError(f"{folder / 'config.json'} names no model_type.")
    if not any(
        (folder / name).is_file()
        for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
    ):
        raise ModelError(f"{folder} has no tokenizer (tokenizer.json or tokenizer.model).")
    index = folder / "model.safetensors.index.json"
    shards = {path.name for path in folder.glob("model*.safetensors")}
    if index.is_file():
        try:
            names = read_table(index)["weight_map"].values()
            shards |= {_shard_name(each) for each in names}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} can't be read: {one_sentence(error)}") from error
    if not shards:
        raise ModelError(f"{folder} has no weights (model*.safetensors).")
    for name in sorted(shards):
        check_shard(folder / name)


def _shard_name(value: object) -> str:
    if not isinstance(value, str) or Path(value).name != value:
        raise ValueError(f"{value!r} is not the name of a file")
    return value


def check_shard(path: Path) -> None:
    if not path.is_file():
        raise ModelError(f"{path} is missing: the download is incomplete.")
    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged or incomplete: {error}") from error


def sampling_defaults(folder: Path) -> SamplingDefaults:
    """The author's sampling settings, as other servers of these files apply them."""
    path = folder / "generation_config.json"
    try:
        config = read_table(path)
    except (OSError, ValueError):
        return SamplingDefaults()
    if config.get("do_sample") is False:
        return SamplingDefaults(temperature=0.0)
    fields: dict[str, Any] = {}
    for name, (least, most) in _SAMPLING_BOUNDS.items():
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{path}: {name} is {value!r}, and must be a number.")
        if not least <= value <= most or (name == "top_k" and value != int(value)):
            raise ModelError(f"{path}: {name} is {value}, and can't be.")
        fields[name] = value
    if (top_k := fields.get("top_k")) is not None:
        # Some files write -1 for "all".
        fields["top_k"] = max(0, int(top_k))
    return SamplingDefaults(**fields)
