"""Removing a model from a disk, so that nobody ever finds half of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

from gateway.library.catalogue import Entry

_ASIDE: Final = ".removing--"


def put_aside(entry: Entry) -> Path:
    """Give the folder another name, by which nobody looks for models: what is left of the removal
    takes time. Blocks.

    Raises:
        ValueError: there is more in it than a model; with a sentence.
        OSError: it can't be renamed.
    """
    folder = Path(entry.path)
    if folder.is_symlink() and os.path.exists(folder):  # noqa: PTH110 - this one never raises.
        raise ValueError(f"{folder} is a link to a folder elsewhere: remove that, or the link.")
    for parent, _, names in os.walk(folder):
        if Path(parent) != folder and "config.json" in names and entry.source.startswith("/"):
            raise ValueError(f"{folder} has another model in it, {parent}: remove it by hand.")
    # Its own name may be as long as names can be.
    aside = folder.with_name(_ASIDE + hashlib.sha256(os.fsencode(folder.name)).hexdigest()[:16])
    # What was killed before it had ended.
    _delete(aside)
    folder.rename(aside)
    return aside


def remove(aside: Path, entry: Entry) -> None:
    """Blocks for as long as the disk takes. Raises OSError."""
    _delete(aside)
    if not entry.source.startswith("/"):
        # huggingface_hub's locks of its files.
        locks = aside.parent / ".locks" / Path(entry.path).name
        shutil.rmtree(locks, ignore_errors=True)
        with contextlib.suppress(OSError):
            locks.parent.rmdir()


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        # Anything may be in the place of a folder.
        path.unlink(missing_ok=True)
