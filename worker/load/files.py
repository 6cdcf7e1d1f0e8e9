"""The files of a model and of an adapter: where they are, whether they are sound, and whether they
have changed.
"""

from __future__ import annotations

import glob
import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from huggingface_hub.constants import HF_HUB_CACHE
from mlx.utils import tree_flatten
from safetensors import SafetensorError, safe_open

from protocol.hub_cache import find_snapshot
from protocol.model_files import read_config, read_header, read_header_text, read_table, refusal
from protocol.model_folder import INDEX, check_folder, indexed, weight_files
from protocol.requests import SamplingDefaults
from worker.mlx_lm.models import read_adapter
from worker.system.errors import ModelError

_SAMPLING_BOUNDS: Final = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 1 << 31),
    "min_p": (0.0, 1.0),
}
# What an adapter's configuration has under `lora_parameters`, and what that must be.
_LORA: Final = (
    ("rank", int, "a whole number"),
    ("scale", int | float, "a number (alpha isn't read)"),
    ("dropout", int | float, "a number"),
    ("keys", list | None, "a list, or left out"),
)
# The names of an adapter's tensors in a layer.
_ADDED: Final = frozenset({"lora_a", "lora_b", "m"})
CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapters.safetensors"
# Files whose whole content is hashed: configuration, tokenizer and template. The largest,
# tokenizer.json, has some ten megabytes.
_READ_WHOLE: Final = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py")


def find_folder(source: str) -> Path:
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ModelError(f"{source} is a file; a model is a folder with config.json and weights.")
    if folder.is_absolute():
        raise ModelError(f"There is no folder {source}.")
    # snapshot_download would also ask for files that no load needs.
    repository = Path(HF_HUB_CACHE) / f"models--{source.replace('/', '--')}"
    if not repository.is_dir():
        raise ModelError(
            f"{source} is neither a folder nor a repository in the Hugging Face cache."
        )
    try:
        return find_snapshot(repository).resolve(strict=True)
    except OSError as error:
        raise ModelError(
            f"{source} can't be loaded from the Hugging Face cache: {error}. Get it with "
            f"`bulkhead pull {source}`."
        ) from error


def check_files(folder: Path, *, pictures: bool = False, drafter: bool = False) -> None:
    """Raise ModelError if files that a load opens are damaged or missing. MLX reads lazily, and
    would fail late and abruptly. A `drafter` that works only beside its model needs neither
    tokenizer nor model_type.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: it is not a model folder.")
    try:
        config = read_config(folder)
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} can't be read: {error}") from error
    if not drafter and not isinstance(config.get("model_type"), str):
        raise ModelError(f"{folder / 'config.json'} names no model_type.")
    if (reason := refusal(config)) is not None:
        raise ModelError(f"{folder} can't be loaded: {reason}.")
    try:
        check_folder(folder, pictures=pictures, drafter=drafter)
        paths = weight_files(folder, pictures=pictures)
    except OSError as error:
        raise ModelError(f"{folder} can't be read: {error}") from error
    except ValueError as error:
        raise ModelError(f"{folder} is not whole: {error}.") from error
    for path in paths:
        check_shard(path)


def check_shard(path: Path) -> None:
    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged or incomplete: {error}") from error


def sampling_defaults(folder: Path) -> SamplingDefaults:
    """The author's sampling settings in generation_config.json, which other servers apply, too."""
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
            kind = "a whole number" if name == "top_k" else "a number"
            raise ModelError(
                f"{path}: {name} is {value}, and must be {kind} from {least} to {most}."
            )
        fields[name] = value
    if (top_k := fields.get("top_k")) is not None:
        # Some authors write -1 for "all tokens".
        fields["top_k"] = max(0, int(top_k))
    return SamplingDefaults(**fields)


class AdapterError(ValueError):
    """A folder can't be used as an adapter. The text is a sentence that says why."""


def check_adapter(folder: Path) -> None:
    """Raise AdapterError if an adapter's files have faults. mlx-lm's own errors only name keys."""
    if not folder.is_dir():
        raise AdapterError(f"There is no folder {folder} for the adapter.")
    config = folder / CONFIG
    if not config.is_file():
        raise AdapterError(f"{folder} has no {CONFIG}: it is not an adapter's folder.")
    try:
        content = json.loads(config.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"{config} can't be read: {error}") from error
    if not isinstance(content, dict):
        raise AdapterError(f"{config} must be an object.")
    if "peft_type" in content:
        raise AdapterError(
            f"{folder} is an adapter of PEFT, which mlx-lm doesn't read: it wants those that "
            "mlx_lm.lora trains."
        )
    _check_fields(config, content)
    if not (folder / WEIGHTS).is_file():
        raise AdapterError(f"{folder} has no {WEIGHTS}.")


def add_adapter(model: Any, folder: Path) -> None:
    """Add an adapter to a model's layers, in place. The adapter's arrays are read when they are
    computed.

    Raises:
        AdapterError: the adapter was made for another model.
    """
    try:
        read_adapter(model, folder)
    except (KeyError, TypeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise AdapterError(
            f"The adapter in {folder} doesn't match the model: {text or type(error).__name__}"
        ) from error
    _check_tensors(model, folder / WEIGHTS)
    # Otherwise the new layers would use dropout, as in training.
    model.eval()


def _check_tensors(model: Any, path: Path) -> None:
    """Raise AdapterError if the adapter's file lacks tensors: mlx-lm would compute with random
    numbers in their place, or without the adapter.
    """
    names = read_header(path).tensors.keys()
    if not names:
        raise AdapterError(f"{path} has no tensors: train the adapter, or copy its file again.")
    if all(name.rpartition(".")[2] not in _ADDED for name in names):
        return  # Of a full training, which gives the model's own tensors.
    wanted = {
        name for name, _ in tree_flatten(model.parameters()) if name.rpartition(".")[2] in _ADDED
    }
    if missing := sorted(wanted - names):
        raise AdapterError(
            f"{path} lacks {len(missing)} of the {len(wanted)} tensors that {CONFIG} asks for, as "
            f"{missing[0]}: copy both files again, or correct num_layers and keys there."
        )


@contextmanager
def as_opened(folder: Path, *, pictures: bool = False) -> Iterator[Path]:
    """The folder for a library that looks for weights by itself: mlx-lm opens each
    `model*.safetensors`, mlx-vlm what the index names, or each file. If those aren't the files of
    `weight_files`, this is a folder of links to them and to all other files. The arrays of opened
    files can be read after the block.
    """
    wanted = weight_files(folder, pictures=pictures)
    pattern = "[!.]*.safetensors" if pictures else "model*.safetensors"
    opened = {path.name for path in folder.glob(pattern)}
    if pictures and (folder / INDEX).exists():
        opened = indexed(folder)
    by_itself = opened == {str(path.relative_to(folder)) for path in wanted}
    # The libraries take brackets in the folder's name for a pattern, too.
    if by_itself and glob.escape(str(folder)) == str(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="bulkhead-model-") as name:
        for path in folder.glob("[!.]*"):
            if path.suffix != ".safetensors" and path.name != INDEX:
                (Path(name) / path.name).symlink_to(path.absolute())
        for path in wanted:
            link = "-".join(path.relative_to(folder).parts)
            (Path(name) / link).symlink_to(path.absolute())
        yield Path(name)


def fingerprint(folder: Path, adapter: Path | None = None, *, pictures: bool = False) -> str:
    """A hash that changes when weights, tokenizer, template, configuration or adapter change.
    Files that a load doesn't open don't count, nor do hidden files and indexes.

    Of a file with weights, only the safetensors header, the size and the time of change are hashed:
    reading tens of gigabytes would take as long as the load. Symbolic links are followed, since a
    Hugging Face cache consists of them.

    Raises:
        OSError, ValueError: a file can't be read.
    """
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _READ_WHOLE for path in folder.glob(pattern)}):
        if not path.name.startswith(".") and not path.name.endswith(".index.json"):
            _hash(digest, path.name.encode(), path.read_bytes())
    for path in weight_files(folder, pictures=pictures):
        _hash_weights(digest, path)
    if adapter is not None:
        # Only these two files count: training leaves checkpoints beside them.
        _hash(digest, CONFIG.encode(), (adapter / CONFIG).read_bytes())
        _hash_weights(digest, adapter / WEIGHTS)
    return digest.hexdigest()


def _check_fields(config: Path, content: dict[str, Any]) -> None:
    if content.get("fine_tune_type", "lora") == "full":
        return
    for key, kind in (("num_layers", int), ("lora_parameters", dict)):
        if not isinstance(content.get(key), kind):
            raise AdapterError(f"{config}: {key} is {content.get(key)!r}.")
    for key, kinds, words in _LORA:
        value = content["lora_parameters"].get(key)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise AdapterError(
                f"{config}: lora_parameters.{key} is {json.dumps(value)}, and must be {words}."
            )


def _hash_weights(digest: hashlib._Hash, path: Path) -> None:
    status = path.stat()
    _hash(digest, path.name.encode(), read_header_text(path))
    _hash(digest, str(status.st_size).encode(), str(status.st_mtime_ns).encode())


def _hash(digest: hashlib._Hash, *parts: bytes) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
