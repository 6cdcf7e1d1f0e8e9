"""Folders for sockets: their paths are bounded, and temporary folders may be deep."""

from __future__ import annotations

import tempfile
from typing import Final

SHORT: Final = "/tmp"


def short_folder(*, ignore_cleanup_errors: bool = False) -> tempfile.TemporaryDirectory[str]:
    """A folder of its own, whatever TMPDIR is."""
    return tempfile.TemporaryDirectory(
        prefix="bh-", dir=SHORT, ignore_cleanup_errors=ignore_cleanup_errors
    )
