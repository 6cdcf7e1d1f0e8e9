"""Small files of the state folder: written whole or not at all, and no reason to stop if broken."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Struct)


def read_state(path: Path, kind: type[T]) -> T | None:
    """What was written; None if nothing was, or if it can't be read, which is logged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("%s is ignored: %s", path, error)
        return None


def write_state(path: Path, content: Struct) -> None:
    """Replace the file. A full disk must not keep a model from being served: it is logged."""
    unfinished = path.with_suffix(".new")
    try:
        unfinished.write_bytes(msgspec.json.encode(content))
        unfinished.replace(path)
    except OSError as error:
        logger.warning("%s can't be written: %s", path, error)
