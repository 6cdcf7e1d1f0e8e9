"""Logs that no rotation bounds: those of models that are gone, and the crashes of a service."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_BYTES: Final = 50_000_000
_CRASH_BYTES: Final = 10_000_000
_LOG: Final = re.compile(r"(?P<log>.+\.log)(\.\d+)?")


def remove_leftovers(folder: Path, in_use: Iterable[Path], bound_bytes: int = _BYTES) -> None:
    """Remove the oldest logs that aren't in use until the others hold no more than the bound."""
    names = {each.name for each in in_use}
    try:
        found = [
            (status.st_mtime, status.st_size, path)
            for path in folder.iterdir()
            if (name := _LOG.fullmatch(path.name)) and name["log"] not in names
            for status in (path.stat(),)
        ]
        excess_bytes = sum(size for _, size, _ in found) - bound_bytes
        for _, size, path in sorted(found):
            if excess_bytes <= 0:
                return
            path.unlink()
            excess_bytes -= size
    except OSError as error:
        logger.warning("Old logs can't be removed: %s", error)


def shorten_crashes(path: Path, bound_bytes: int = _CRASH_BYTES) -> None:
    """Put a long file of crashes aside. Who started us holds it open, so it can't be renamed."""
    try:
        if path.stat().st_size > bound_bytes:
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            with path.open("r+b") as file:
                file.truncate()
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("%s can't be shortened: %s", path, error)
