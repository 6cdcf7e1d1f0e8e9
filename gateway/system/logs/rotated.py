"""A log file that is bounded: a full one is renamed, and the oldest is dropped."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from logging import LogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from gateway.system.state.state_file import make_folder

FILE_BYTES: Final = 10_000_000
# Beside the one that is written.
OLDER_FILES: Final = 2


def rotated_paths(path: Path) -> list[Path]:
    """Where the parts of a log are, the newest first."""
    older = (path.with_name(f"{path.name}.{number}") for number in range(1, OLDER_FILES + 1))
    return [path, *older]


class RotatedFile(RotatingFileHandler):
    """Writes records to a file. Thread-safe.

    What can't be written, because the disk is full or the folder gone, is lost; `on_failure` is
    told so once.
    """

    def __init__(
        self, path: Path, on_failure: Callable[[str], None], *, file_bytes: int = FILE_BYTES
    ) -> None:
        super().__init__(
            path,
            maxBytes=file_bytes,
            backupCount=OLDER_FILES,
            encoding="utf-8",
            errors="backslashreplace",
            delay=True,
        )
        self._on_failure = on_failure
        self._failed = False

    def emit(self, record: LogRecord) -> None:
        # Somebody may have removed it, or its folder.
        if self.stream is not None and not os.path.exists(self.baseFilename):  # noqa: PTH110
            with contextlib.suppress(OSError):
                self.stream.close()
            self.stream = None
        super().emit(record)

    def handleError(self, record: LogRecord) -> None:  # noqa: N802
        if not self._failed:
            self._failed = True
            self._on_failure(
                f"The log {self.baseFilename} can't be written, and lines are lost: "
                f"{sys.exc_info()[1]}"
            )

    def close(self) -> None:
        """What is still in its buffer may be lost as well."""
        try:
            super().close()
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._on_failure(f"The log {self.baseFilename} can't be closed: {error}")

    def _open(self) -> io.TextIOWrapper:
        path = Path(self.baseFilename)
        make_folder(path.parent)
        stream = super()._open()
        if _ends_in_mid_line(path):
            stream.write(self.terminator)
        return stream


def _ends_in_mid_line(path: Path) -> bool:
    """As after a kill, or on a disk that was full."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
