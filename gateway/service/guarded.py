"""Folders that macOS keeps from a service until somebody allows it at the screen."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gateway.config.model_folders import expand_home, hugging_face_cache
from gateway.config.settings import HUGGING_FACE, Settings
from gateway.system.machine import volume_of

_OF_THE_HOME: Final = ("Desktop", "Documents", "Downloads")


def guarded_remark(settings: Settings, home: Path, python: str) -> str | None:
    """What somebody should know who installs a service of these settings."""
    found = sorted({str(each) for each in _folders(settings) if _is_guarded(each, home)})
    if not found:
        return None
    return (
        f"macOS may keep the service from {', '.join(found)}, and asks nobody who isn't at the "
        "screen. If `bulkhead status` says so: System Settings, Privacy & Security, Full Disk "
        f"Access, add {os.path.realpath(python)}, then `bulkhead service restart`."
    )


def _folders(settings: Settings) -> Iterable[Path]:
    for model in settings.models.values():
        folder = expand_home(model.path)
        yield folder if folder.is_absolute() else hugging_face_cache()
    for place in settings.discovery.discover:
        yield hugging_face_cache() if place == HUGGING_FACE else expand_home(place)


def _is_guarded(folder: Path, home: Path) -> bool:
    return volume_of(folder / "model") is not None or any(
        folder.is_relative_to(home / each) for each in _OF_THE_HOME
    )
