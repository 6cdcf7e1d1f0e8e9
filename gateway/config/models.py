"""Where a model's files are, by what the operator wrote."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import gateway

DEMO_ID: Final = "demo"
DEMO_FOLDER: Final = Path(gateway.__file__).resolve().parent / "demo_model"

_REPOSITORY: Final = re.compile(r"[\w.-]+/[\w.-]+")


def model_from_flag(text: str) -> tuple[str, str]:
    """(id, folder or repository) of `PATH_OR_REPO[=ID]`.

    A folder that exists is taken as it is, whatever signs its name has.
    """
    source, separator, model_id = text.rpartition("=")
    if not separator or Path(text).is_dir():
        return _default_id(text), text
    return model_id or _default_id(source), source


def _default_id(source: str) -> str:
    if _REPOSITORY.fullmatch(source) and not Path(source).is_dir():
        return source.rpartition("/")[2]
    return Path(source).expanduser().resolve().name


def locate(source: str) -> str:
    """What a worker is to load: an absolute folder, or a repository in the Hugging Face cache.

    Raises:
        ValueError: with a sentence that says what was looked for, and what to do.
    """
    if source == DEMO_ID and not Path(source).is_dir():
        return str(DEMO_FOLDER)
    folder = Path(source).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    if folder.exists():
        raise ValueError(
            f"{source} is a file: name the folder that holds config.json and the weights."
        )
    if not _REPOSITORY.fullmatch(source):
        raise ValueError(f"There is no model folder {source}.")
    snapshots = _hugging_face_cache() / f"models--{source.replace('/', '--')}" / "snapshots"
    if not snapshots.is_dir():
        raise ValueError(
            f"{source} is neither a folder nor in the Hugging Face cache "
            f"({_hugging_face_cache()}): download it with `hf download {source}`."
        )
    return source


def _hugging_face_cache() -> Path:
    """As huggingface_hub finds it, which is too large to import for this."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"])
    home = os.environ.get("HF_HOME")
    return Path(home or Path.home() / ".cache" / "huggingface") / "hub"
