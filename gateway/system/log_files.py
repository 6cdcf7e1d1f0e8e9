"""Log files: bounded by rotation, cleared of leftovers, and read while they are written."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from logging import LogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import BinaryIO, Final, Self, cast

from gateway.system.state_file import make_folder, open_private

FILE_BYTES: Final = 10_000_000
# The number of older files that a log keeps beside the file that is written.
OLDER_FILES: Final = 2
_STAMP: Final = re.compile(r'(?:\{"time": ")?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)')


def rotated_paths(path: Path) -> list[Path]:
    """The paths of a log's files, the newest first. Some files may not exist."""
    older = (path.with_name(f"{path.name}.{number}") for number in range(1, OLDER_FILES + 1))
    return [path, *older]


class RotatedFile(RotatingFileHandler):
    """Writes records to a log file, and rotates it. Thread-safe.

    A record that can't be written, as when the disk is full, is lost. `on_failure` is called once
    with a sentence that says so.
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
        # The file, or its folder, may have been removed.
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
        """Close the file. If that fails, records in its buffer are lost too."""
        try:
            super().close()
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._on_failure(f"The log {self.baseFilename} can't be closed: {error}")

    def _open(self) -> io.TextIOWrapper:
        path = Path(self.baseFilename)
        make_folder(path.parent)
        stream = open(  # noqa: SIM115 - as the base class does.
            path, "a", encoding=self.encoding, errors=self.errors, opener=open_private
        )
        if _ends_in_mid_line(path):
            stream.write(self.terminator)
        return stream


def _ends_in_mid_line(path: Path) -> bool:
    """Whether the last line has no newline, as after a kill or on a disk that was full."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


logger = logging.getLogger(__name__)

_BYTES: Final = 50_000_000
_CRASH_BYTES: Final = 10_000_000
_LOG: Final = re.compile(r"(?P<log>.+\.log)(\.\d+)?")


def remove_leftovers(folder: Path, in_use: Iterable[Path], bound_bytes: int = _BYTES) -> None:
    """Remove the oldest log files of logs that aren't in use, until the rest of these files have
    `bound_bytes` at most. `in_use` are paths of logs, without the numbers of rotated files.
    """
    names = {path.name for path in in_use}
    try:
        leftovers = [
            (status.st_mtime, status.st_size, path)
            for path in folder.iterdir()
            if (name := _LOG.fullmatch(path.name)) and name["log"] not in names
            for status in (path.stat(),)
        ]
        excess_bytes = sum(size for _, size, _ in leftovers) - bound_bytes
        for _, size, path in sorted(leftovers):
            if excess_bytes <= 0:
                return
            path.unlink()
            excess_bytes -= size
    except OSError as error:
        logger.warning("Old logs can't be removed: %s", error)


def shorten_crashes(path: Path, bound_bytes: int = _CRASH_BYTES) -> None:
    """If the file of crashes at `path` is longer than `bound_bytes`, copy it and empty it. The
    service manager holds the file open, so a rename would not end its use.
    """
    try:
        if path.stat().st_size > bound_bytes:
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            with path.open("r+b") as file:
                file.truncate()
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("%s can't be shortened: %s", path, error)


_BLOCK_BYTES: Final = 65536


class LogReader:
    """Reads a log: `last` the lines before its present end, `read` the lines after that. The log
    may not exist yet.

    The reader holds the files open, so it reads a renamed file to its end. It misses lines only if
    the log is rotated several times while it reads one file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # The files that exist now, the newest first, for `last`.
        self._files = _open_files(path)
        self._ends = [_end_of_lines(file) for file in self._files]
        self._file = self._files[0] if self._files else None
        if self._file is not None:
            self._file.seek(self._ends[0])
        # The files that are newer than `_file`, the oldest of them first.
        self._newer: deque[BinaryIO] = deque()
        self._unfinished = b""

    @property
    def exists(self) -> bool:
        return self._file is not None

    def last(self, lines: int | None, since: str | None = None) -> list[str]:
        """The last lines before the end, in order: at most `lines` (None: all), and none older than
        the stamp `since`.

        Call this once, before `read`.
        """
        position = 0 if self._file is None else self._file.tell()
        backwards = (
            line.decode("utf-8", "replace")
            for file, end in zip(self._files, self._ends, strict=True)
            for line in _backwards(file, end)
        )
        taken = list(islice(takewhile(lambda line: _is_since(line, since), backwards), lines))
        if self._file is not None:
            self._file.seek(position)
        for file in self._files[1:]:
            file.close()
        return taken[::-1]

    def read(self) -> list[str]:
        """The next lines, a block of them at most; none if no line was written since."""
        if self._file is None and not self._open():
            return []
        while True:
            block = self._block()
            if not block and not self._rotated():
                return []
            # The writer has begun a newer file, and closed this one before: this file is complete.
            if block := block or self._block():
                *lines, self._unfinished = (self._unfinished + block).split(b"\n")
            else:
                lines, self._unfinished = [self._unfinished] if self._unfinished else [], b""
                self._next()
            if lines:
                return [line.decode("utf-8", "replace") for line in lines]

    def close(self) -> None:
        for file in (*self._files, *self._newer, *([self._file] if self._file else [])):
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _open(self) -> bool:
        self._newer.extend(reversed(_open_files(self._path)))
        if self._newer:
            self._next()
        return self._file is not None

    def _block(self) -> bytes:
        file = cast("BinaryIO", self._file)
        if os.fstat(file.fileno()).st_size < file.tell():
            # The file was emptied.
            file.seek(0)
            self._unfinished = b""
        return file.read(_BLOCK_BYTES)

    def _rotated(self) -> bool:
        """Whether there is a newer file than the present one."""
        mine = _identity(cast("BinaryIO", self._file))
        if not self._newer and _identity_at(self._path) not in (mine, None):
            files = _open_files(self._path)
            identities = [_identity(file) for file in files]
            newer = identities.index(mine) if mine in identities else len(files)
            self._newer.extend(reversed(files[:newer]))
            for file in files[newer:]:
                file.close()
        return bool(self._newer)

    def _next(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._newer.popleft()


def _open_files(path: Path) -> list[BinaryIO]:
    """The files of a log, the newest first.

    A rotation during this loop only moves files to names that the loop has not reached yet. So the
    loop misses no file, but may find a file twice.
    """
    files: dict[tuple[int, int], BinaryIO] = {}
    for rotated_path in rotated_paths(path):
        try:
            file = rotated_path.open("rb", buffering=0)
        except FileNotFoundError:
            continue
        if files.setdefault(_identity(file), file) is not file:
            file.close()
    return list(files.values())


def _identity(file: BinaryIO) -> tuple[int, int]:
    """The file's device and inode, which no other file can have while this file is open."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino


def _identity_at(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _end_of_lines(file: BinaryIO) -> int:
    """The position behind the last complete line."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _backwards(file: BinaryIO, end: int) -> Iterator[bytes]:
    """The lines before the position `end`, at which a line ends. The last line comes first."""
    if end == 0:
        return
    end -= 1
    rest = b""
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        file.seek(start)
        rest, *lines = (file.read(end - start) + rest).split(b"\n")
        yield from reversed(lines)
        end = start
    yield rest


def stamp_of(line: str) -> str | None:
    """The stamp at the beginning of a line of the gateway's log or a worker's log, if any."""
    stamp = _STAMP.match(line)
    return stamp[1] if stamp else None


def _is_since(line: str, since: str | None) -> bool:
    stamped_at = stamp_of(line) if since else None
    return since is None or stamped_at is None or stamped_at >= since
