"""The folders of drafters: which kind of drafter is in them, and whether their files are whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from protocol.model_files import DrafterKind, drafter_kind, head_beside, read_config
from protocol.model_folder import weight_files
from worker.load.files import check_files, find_folder
from worker.system.errors import ModelError


class DrafterFolder(NamedTuple):
    """A folder with a drafter; `kind` None: with a small model."""

    folder: Path
    kind: DrafterKind | None


@contextmanager
def named_as_draft() -> Iterator[None]:
    """Say of any ModelError in the block that it is about the draft model."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"The draft model: {error.reason}", permanent=error.permanent) from error


def find_drafter(source: str) -> DrafterFolder:
    """The folder of the drafter that a configuration names.

    Raises:
        ModelError: its files have faults, or it is a drafter of a kind that isn't known here.
    """
    with named_as_draft():
        folder = find_folder(source)
        kind = _kind_of(folder)
        if kind is DrafterKind.OTHER:
            raise ModelError(
                f"{folder} is a drafter of a kind that Bulkhead doesn't run. It runs small models, "
                "EAGLE-3, and heads that mlx-vlm has split off Qwen3-Next and Qwen3.5."
            )
        check_files(folder, drafter=kind is not None)
        return DrafterFolder(folder, kind)


def find_head_beside(folder: Path) -> Path | None:
    """The folder of a model's head beside the model's folder; None: there is no whole one."""
    head = head_beside(folder)
    try:
        if head is not None:
            check_files(head, drafter=True)
    except ModelError:
        return None
    return head


def _kind_of(folder: Path) -> DrafterKind | None:
    try:
        return drafter_kind(read_config(folder))
    except (OSError, ValueError):
        return None  # The check of the files says why it can't be read.


def read_arrays(folder: Path) -> dict[str, mx.array]:
    """The weights in a folder, by their names in the files. MLX reads them when it needs them."""
    arrays: dict[str, mx.array] = {}
    for path in weight_files(folder):
        arrays |= mx.load(str(path))  # type: ignore[arg-type]  # A file of safetensors has names.
    return arrays
