"""The Hugging Face cache, which `bulkhead pull` writes to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.config.model_folders import hugging_face_cache
from gateway.doctor.finding import Finding, ok, warning
from gateway.doctor.installation import Installation
from gateway.system.machine import away

_CHECK: Final = "model cache"


def look_at_model_cache(_installation: Installation) -> Iterator[Finding]:
    cache = hugging_face_cache()
    why = _obstacle(cache)
    if why is None:
        there = "can be written" if cache.is_dir() else "will be made"
        yield ok(_CHECK, f"{cache} {there}.")
        return
    yield warning(
        _CHECK,
        f"Nothing can be pulled: {why}.",
        "Give the folder to the account that runs the gateway (`chown -R`), or name another with "
        "HF_HOME; then `bulkhead service install`, as the service carries that name.",
    )


def _obstacle(cache: Path) -> str | None:
    if (absent := away(cache)) is not None:
        return f"{cache} is on a disk that isn't mounted ({absent.volume})"
    # Unlike Path's, these never raise, as for a name that is too long.
    nearest = next(each for each in (cache, *cache.parents) if os.path.lexists(each))
    if not nearest.is_dir():
        return f"{nearest} is no folder"
    if nearest != cache:
        return None if os.access(nearest, os.W_OK | os.X_OK) else f"{cache} can't be made"
    try:
        with tempfile.TemporaryFile(dir=cache):
            return None
    except OSError as failure:
        return f"{cache} can't be written: {failure.strerror}"
