"""What a gateway prints that doesn't come to serve."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_LINES: Final = 5


class Words:
    """What a gateway has printed from now on, where launchd keeps it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen_bytes = path.stat().st_size if path.exists() else 0

    def tail(self) -> str:
        """The last lines; empty where there are none."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._seen_bytes)
                lines = log.read(1 << 16).decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return "\n".join(f"  | {each}" for each in lines[-_LINES:])
