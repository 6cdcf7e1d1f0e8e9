"""Reading a rotated log while it is written: its last lines, and then each new one once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import BinaryIO, Final, Self, cast

from gateway.system.logs.line import stamp_of
from gateway.system.logs.rotated import rotated_paths

_BLOCK_BYTES: Final = 65536


class LogReader:
    """Reads from the end that the log has now. The log may not exist yet.

    It holds its files open, so that renaming takes none away: lines are missed only if the log is
    rotated through while a file is read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Newest first.
        self._files = _open_files(path)
        self._ends = [_end_of_lines(each) for each in self._files]
        self._file = self._files[0] if self._files else None
        if self._file is not None:
            self._file.seek(self._ends[0])
        # Newer ones than the file that is read, the next first.
        self._newer: deque[BinaryIO] = deque()
        self._unfinished = b""

    @property
    def exists(self) -> bool:
        return self._file is not None

    def last(self, lines: int | None, since: str | None = None) -> list[str]:
        """The last lines before the end: so many at most, none older than a stamp.

        To be called once, before `read`.
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
        """Some of the lines that have come since the last call; none if there are no more."""
        if self._file is None and not self._begin():
            return []
        while True:
            block = self._block()
            if not block and not self._rotated():
                return []
            # Its writer closes a file before it is renamed: from now on it is complete.
            if block := block or self._block():
                *lines, self._unfinished = (self._unfinished + block).split(b"\n")
            else:
                lines, self._unfinished = [self._unfinished] if self._unfinished else [], b""
                self._next()
            if lines:
                return [each.decode("utf-8", "replace") for each in lines]

    def close(self) -> None:
        for file in (*self._files, *self._newer, *([self._file] if self._file else [])):
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _begin(self) -> bool:
        self._newer.extend(reversed(_open_files(self._path)))
        if self._newer:
            self._next()
        return self._file is not None

    def _block(self) -> bytes:
        file = cast("BinaryIO", self._file)
        if os.fstat(file.fileno()).st_size < file.tell():
            # Somebody has emptied it.
            file.seek(0)
            self._unfinished = b""
        return file.read(_BLOCK_BYTES)

    def _rotated(self) -> bool:
        """Whether there is a newer file than the one that is read."""
        mine = _identity(cast("BinaryIO", self._file))
        if not self._newer and _identity_at(self._path) not in (mine, None):
            files = _open_files(self._path)
            identities = [_identity(each) for each in files]
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
    """The parts of a log, the newest first.

    A rotation meanwhile can only move files on to names that are still to come, so none is
    missed, but one may come twice.
    """
    files: dict[tuple[int, int], BinaryIO] = {}
    for each in rotated_paths(path):
        try:
            file = each.open("rb", buffering=0)
        except FileNotFoundError:
            continue
        if files.setdefault(_identity(file), file) is not file:
            file.close()
    return list(files.values())


def _identity(file: BinaryIO) -> tuple[int, int]:
    """Isn't given to another file while this one is open."""
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
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _backwards(file: BinaryIO, end: int) -> Iterator[bytes]:
    """The lines before a position behind a line, the last first."""
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


def _is_since(line: str, since: str | None) -> bool:
    at = stamp_of(line) if since else None
    return since is None or at is None or at >= since
